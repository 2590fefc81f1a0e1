import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from learner.adapter_files import (
    publish,
    removed_on_failure,
    seal,
    sealed_versions,
    stage,
    sweep_staging,
    verify,
)
from learner.adapter_format import inspect
from memory.errors import AdapterError, UnavailableError
from tests.learner.adapters import write_adapter

ROOT = Path(__file__).parents[2]
VERSION = "denizen-000007"


def sealed(root: Path, version: str = VERSION) -> Any:
    staging = write_adapter(stage(root))
    return seal(
        staging, root, version, inspect(staging), base_digest="b" * 64, parent="denizen-000006"
    )


def test_sealed_version_is_verified_and_complete(tmp_path: Path) -> None:
    manifest = sealed(tmp_path)
    folder = tmp_path / VERSION
    assert sorted(p.name for p in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    ]
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["rank"] == 2
    assert verify(tmp_path, VERSION) == manifest
    assert verify(tmp_path, VERSION, expected_sha256=manifest.sha256, base_digest="b" * 64)
    assert sealed_versions(tmp_path) == [VERSION]
    assert sweep_staging(tmp_path) == []


def test_version_is_never_overwritten(tmp_path: Path) -> None:
    manifest = sealed(tmp_path)
    with pytest.raises(AdapterError, match="exists already"):
        sealed(tmp_path)
    assert verify(tmp_path, VERSION) == manifest


@pytest.mark.parametrize(
    "name",
    [
        "",
        "base",
        "denizen-7",
        "denizen-0000071",
        "denizen-000007 ",
        "denizen-000007\n",
        "denizen-000007.",
        "denizen-00000\u0667",  # an Arabic seven
        "denizen-000007/../../etc",
        "../denizen-000007",
        "/etc",
        "denizen-000007\0",
        "x" * 300,
    ],
)
def test_name_from_outside_reaches_no_file(tmp_path: Path, name: str) -> None:
    staging = write_adapter(stage(tmp_path))
    with pytest.raises(AdapterError, match="expected a version name"):
        seal(staging, tmp_path, name, inspect(staging), base_digest="b", parent="base")
    with pytest.raises(AdapterError, match="expected a version name"):
        verify(tmp_path, name)
    assert list(tmp_path.iterdir()) == [staging]


def test_staging_is_taken_away_when_the_work_in_it_fails_and_a_full_disk_is_said(
    tmp_path: Path,
) -> None:
    with pytest.raises(AdapterError), removed_on_failure(stage(tmp_path)):
        raise AdapterError("no")
    staging = write_adapter(stage(tmp_path))
    with (
        pytest.raises(UnavailableError, match="No space left") as caught,
        removed_on_failure(staging),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.status == 503
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_may_not_last_is_not_published(tmp_path: Path, monkeypatch) -> None:
    staging = write_adapter(stage(tmp_path))
    sync = os.fsync

    def fail_for_the_root(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == tmp_path.stat().st_ino:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_the_root)
    with pytest.raises(OSError, match="Input/output"):
        publish(staging, tmp_path / VERSION)
    assert list(tmp_path.iterdir()) == [staging]


def test_one_changed_byte_is_found(tmp_path: Path) -> None:
    sealed(tmp_path)
    weights = tmp_path / VERSION / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the sign or exponent stays finite
    weights.write_bytes(content)
    with pytest.raises(AdapterError, match=r"sha256 is expected as .* found"):
        verify(tmp_path, VERSION)


def test_alpha_changed_after_training_is_found(tmp_path: Path) -> None:
    sealed(tmp_path)
    path = tmp_path / VERSION / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"lora_alpha": 64}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(AdapterError, match="alpha is expected as 4, found 64"):
        verify(tmp_path, VERSION)


def test_other_hash_in_the_records_is_found(tmp_path: Path) -> None:
    sealed(tmp_path)
    with pytest.raises(AdapterError, match="sha256 is expected as 000"):
        verify(tmp_path, VERSION, expected_sha256="0" * 64)


def test_version_for_another_base_is_refused(tmp_path: Path) -> None:
    sealed(tmp_path)
    with pytest.raises(AdapterError, match=r"base_digest is expected as bbb.* found ccc"):
        verify(tmp_path, VERSION, base_digest="c" * 64)


def test_folder_under_another_versions_name_is_found(tmp_path: Path) -> None:
    sealed(tmp_path)
    (tmp_path / VERSION).rename(tmp_path / "denizen-000008")
    with pytest.raises(AdapterError, match="version is expected as denizen-000007"):
        verify(tmp_path, "denizen-000008")


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"target_modules": 3}'])
def test_unreadable_manifest_is_refused(tmp_path: Path, content: str | None) -> None:
    sealed(tmp_path)
    manifest = tmp_path / VERSION / "manifest.json"
    if content is None:
        manifest.unlink()
    else:
        manifest.write_text(content, encoding="utf-8")
    with pytest.raises(AdapterError, match=r"manifest"):
        verify(tmp_path, VERSION)


def test_symlinked_version_is_refused(tmp_path: Path) -> None:
    sealed(tmp_path)
    (tmp_path / VERSION).rename(tmp_path / "elsewhere")
    (tmp_path / VERSION).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AdapterError, match="expected a folder"):
        verify(tmp_path, VERSION)


def test_missing_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="expected a folder"):
        verify(tmp_path, VERSION)


def test_sweep_removes_leftovers_and_nothing_else(tmp_path: Path) -> None:
    manifest = sealed(tmp_path)
    leftover = write_adapter(stage(tmp_path))
    assert sweep_staging(tmp_path) == [leftover]
    assert sorted(p.name for p in tmp_path.iterdir()) == [VERSION]
    assert verify(tmp_path, VERSION) == manifest


def test_publish_does_not_replace_a_folder(tmp_path: Path) -> None:
    final = tmp_path / "step-01"
    final.mkdir()
    with pytest.raises(AdapterError, match="exists already"):
        publish(stage(tmp_path), final)


SEAL_AND_DIE = """
import builtins, io, os, pathlib, signal, sys
from learner.adapter_files import seal, stage
from learner.adapter_format import inspect
from tests.learner.adapters import write_adapter

root, die_at = pathlib.Path(sys.argv[1]), int(sys.argv[2])
calls = 0

def deadly(function, is_counted=lambda *args: True):
    def run(*args, **options):
        global calls
        if is_counted(*args):
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return run

writes = lambda *args: len(args) > 1 and any(c in str(args[1]) for c in "wax+")
staging = write_adapter(stage(root))
facts = inspect(staging)
os.fsync, os.replace, os.open = deadly(os.fsync), deadly(os.replace), deadly(os.open)
builtins.open = io.open = deadly(io.open, writes)
seal(staging, root, "denizen-000007", facts, base_digest="b" * 64, parent="base")
print(calls)
"""


def test_kill_at_any_point_leaves_a_complete_version_or_none(tmp_path: Path) -> None:
    num_without, num_with = 0, 0
    for die_at in range(1, 100):
        root = tmp_path / str(die_at)
        ended = subprocess.run(
            [sys.executable, "-c", SEAL_AND_DIE, str(root), str(die_at)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        swept = sweep_staging(root)
        if sealed_versions(root):
            verify(root, VERSION, base_digest="b" * 64)
            assert swept == []
            num_with += 1
        else:
            assert len(swept) == 1
            num_without += 1
        assert [p.name for p in root.iterdir()] == sealed_versions(root)
        if ended.returncode == 0:
            break
    else:
        pytest.fail("the seal never came to its end")
    # open for writing, then open + fsync of three files and the folder, then the rename
    assert num_without >= 9
    # killed after the rename but before the parent folder was synced, and the whole run
    assert num_with >= 2
