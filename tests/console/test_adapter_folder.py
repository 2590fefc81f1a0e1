import os
from pathlib import Path

import pytest

from console.adapter_folder import AdapterFolderError, open_adapter

WEIGHTS, CONFIG, MANIFEST = "adapter_model.safetensors", "adapter_config.json", "manifest.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    for name in (WEIGHTS, CONFIG, "README.md"):
        (made / name).write_bytes(name.encode())
    return made


def read(folder: Path) -> dict[str, bytes]:
    with open_adapter(folder) as files:
        return {name: file.read() for name, file in files.items()}


def test_the_known_files_are_opened_and_the_readme_stays(folder: Path) -> None:
    assert read(folder) == {WEIGHTS: WEIGHTS.encode(), CONFIG: CONFIG.encode()}
    (folder / MANIFEST).touch()
    assert list(read(folder)) == [WEIGHTS, CONFIG, MANIFEST]


def test_files_and_folder_are_closed_afterwards(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with open_adapter(folder) as files:
        assert len(os.listdir("/proc/self/fd")) > before
    assert all(file.closed for file in files.values())
    with pytest.raises(AdapterFolderError):
        (folder / "x.bin").touch()
        read(folder)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["adapter_model.bin", ".hidden", "checkpoint", "x\n.pt"])
def test_anything_else_is_refused_by_name(folder: Path, name: str) -> None:
    (folder / name).mkdir() if name == "checkpoint" else (folder / name).touch()
    with pytest.raises(AdapterFolderError, match="also holds") as caught:
        read(folder)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_plain_files_are_read_and_a_pipe_is_not_waited_for(
    folder: Path, name: str, kind: str
) -> None:
    path = folder / name
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(AdapterFolderError, match="plain file"):
        read(folder)


def test_a_missing_folder_an_empty_one_a_file_and_a_link_are_told_apart(folder: Path) -> None:
    empty, link = folder / "empty", folder.parent / "link"
    empty.mkdir()
    link.symlink_to(folder)
    for path, message in [
        (folder / "nowhere", "No such file"),
        (empty, "is empty"),
        (folder / WEIGHTS, "Not a directory"),
        (link, "symbolic link: name the folder itself"),
        (folder / "nul\0", "null byte"),
    ]:
        with pytest.raises(AdapterFolderError, match=message):
            read(path)
    (folder / CONFIG).unlink()
    empty.rmdir()
    with pytest.raises(AdapterFolderError, match=f"lacks {CONFIG}"):
        read(folder)
