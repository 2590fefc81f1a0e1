import hashlib
import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from agent import base_model
from agent.base_model import FOLDER, base_digest, model_config, prepare_packaged_model
from agent.errors import BaseModelError


def write_model(_: Path, out: Path) -> None:
    (out / "config.json").write_text('{"hidden_size": 576}', encoding="utf-8")
    (out / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def fast_conversion(monkeypatch):
    monkeypatch.setattr(base_model, "_packaged_gguf", lambda: Path("/pretended/model.gguf"))
    monkeypatch.setattr(base_model, "_convert", write_model)


@pytest.mark.usefixtures("fast_conversion")
def test_preparing_twice_converts_once(tmp_path, monkeypatch):
    said: list[str] = []
    folder = prepare_packaged_model(tmp_path / "models", said.append)
    assert folder == tmp_path / "models" / FOLDER
    assert len(said) == 2
    monkeypatch.setattr(base_model, "_convert", lambda *_: pytest.fail("converted again"))
    assert prepare_packaged_model(tmp_path / "models", said.append) == folder
    assert len(said) == 2


@pytest.mark.usefixtures("fast_conversion")
def test_progress_bars_of_the_conversion_are_not_shown(tmp_path, monkeypatch, capsys):
    def convert_with_a_bar(gguf: Path, out: Path) -> None:
        print("Loading weights: 100%", file=sys.stderr)
        write_model(gguf, out)

    monkeypatch.setattr(base_model, "_convert", convert_with_a_bar)
    prepare_packaged_model(tmp_path, str)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("fast_conversion")
def test_a_conversion_that_failed_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    def break_half_way(_: Path, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(base_model, "_convert", break_half_way)
        with pytest.raises(BaseModelError, match="disk full"):
            prepare_packaged_model(tmp_path, print)
    assert list(tmp_path.iterdir()) == []
    assert (
        prepare_packaged_model(tmp_path, print) / "model.safetensors"
    ).read_bytes() == b"weights"


@pytest.mark.usefixtures("fast_conversion")
def test_a_killed_conversion_is_never_used(tmp_path, monkeypatch):
    def die_half_way(_: Path, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        os._exit(1)

    with monkeypatch.context() as patch:
        patch.setattr(base_model, "_convert", die_half_way)
        process = multiprocessing.get_context("fork").Process(
            target=prepare_packaged_model, args=(tmp_path, str)
        )
        process.start()
        process.join(20)
    assert process.exitcode == 1
    assert not (tmp_path / FOLDER).exists()
    assert (
        prepare_packaged_model(tmp_path, print) / "model.safetensors"
    ).read_bytes() == b"weights"


@pytest.mark.usefixtures("fast_conversion")
def test_the_slower_of_two_conversions_yields_to_the_faster(tmp_path, monkeypatch):
    def overtaken(gguf: Path, out: Path) -> None:
        write_model(gguf, out)
        faster = tmp_path / FOLDER
        faster.mkdir()
        (faster / "model.safetensors").write_bytes(b"the faster one's")

    monkeypatch.setattr(base_model, "_convert", overtaken)
    folder = prepare_packaged_model(tmp_path, print)
    assert (folder / "model.safetensors").read_bytes() == b"the faster one's"
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "PACKAGE", "no-such-package-anywhere")
    with pytest.raises(BaseModelError, match=r"no-such-package-anywhere.*engine\.model"):
        prepare_packaged_model(tmp_path, print)


def test_the_digest_covers_all_weights_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"two")
    (tmp_path / "a.safetensors").write_bytes(b"one")
    assert base_digest(tmp_path) == hashlib.sha256(b"onetwo").hexdigest()


def test_the_digest_is_kept_until_a_file_changes(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = base_digest(tmp_path)
    stamp = weights.stat().st_mtime_ns
    weights.write_bytes(b"two")
    os.utime(weights, ns=(stamp, stamp))  # same size, same time: taken as unchanged
    assert base_digest(tmp_path) == first
    os.utime(weights, ns=(stamp + 1, stamp + 1))
    assert base_digest(tmp_path) == hashlib.sha256(b"two").hexdigest()


def test_a_broken_digest_cache_is_computed_anew(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    (tmp_path / "denizen_digest.json").write_text("[1, 2", encoding="utf-8")
    assert base_digest(tmp_path) == hashlib.sha256(b"one").hexdigest()
    kept = json.loads((tmp_path / "denizen_digest.json").read_text(encoding="utf-8"))
    assert kept["sha256"] == hashlib.sha256(b"one").hexdigest()


def test_a_folder_without_weights_has_no_digest(tmp_path):
    with pytest.raises(BaseModelError, match=r"safetensors"):
        base_digest(tmp_path)


def test_the_models_sizes_are_read(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 576}', encoding="utf-8")
    assert model_config(tmp_path) == {"hidden_size": 576}


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_a_folder_without_a_readable_config_is_no_model(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(BaseModelError, match=r"config\.json"):
        model_config(tmp_path)
