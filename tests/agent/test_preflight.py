import json
from pathlib import Path

import pytest

from agent import preflight
from agent.engine_config import EngineConfig
from agent.errors import BaseModelError, EngineStartError
from memory.errors import ConfigError


def write_model(folder: Path, config: dict | None = None, size_bytes: int = 1000) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"x" * size_bytes)
    return folder


@pytest.fixture
def model(tmp_path) -> Path:
    return write_model(tmp_path / "model", {"max_position_embeddings": 4096})


@pytest.fixture
def on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(preflight, "check_installed", lambda: None)
    monkeypatch.setattr(preflight, "is_cpu_build", lambda: True)


def test_without_vllm_the_error_says_what_to_do(model, monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineStartError, match="--engine-url"):
        preflight.check(EngineConfig(), model)


def test_without_the_plugin_no_engine_starts(model, monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setattr(preflight, "entry_points", lambda group: [])
    with pytest.raises(EngineStartError, match="denizen_cpu_lora"):
        preflight.check(EngineConfig(), model)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_complete_model_that_fits_passes(model, monkeypatch):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 64 * 2**30)
    assert preflight.check(EngineConfig(), model) == []


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_what_a_model_folder_lacks_is_named(model, missing):
    (model / missing).unlink()
    with pytest.raises(BaseModelError, match=missing.partition(".")[0]):
        preflight.check_model_folder(model)


def test_an_empty_weights_file_is_not_complete(model):
    (model / "model.safetensors").write_bytes(b"")
    with pytest.raises(BaseModelError, match=r"model\.safetensors is missing or empty"):
        preflight.check_model_folder(model)


def test_every_part_that_the_index_lists_has_to_be_there(model):
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    path = model / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    (model / "part-1.safetensors").write_bytes(b"x")
    with pytest.raises(BaseModelError, match=r"part-2\.safetensors"):
        preflight.check_model_folder(model)
    (model / "part-2.safetensors").write_bytes(b"x")
    preflight.check_model_folder(model)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(BaseModelError, match="cannot be read"):
        preflight.check_model_folder(model)


def test_more_tokens_than_positions_are_refused_naming_both_settings(model):
    preflight.check_positions(EngineConfig(max_model_len=4096), model)
    with pytest.raises(ConfigError, match=r"engine\.max_model_len is 4097.*4096.*engine\.model"):
        preflight.check_positions(EngineConfig(max_model_len=4097), model)


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"text_config": {"max_position_embeddings": 1024}}, True),
        ({"n_positions": 1024}, True),
        ({"max_position_embeddings": 1024, "rope_scaling": None}, True),
        ({"max_position_embeddings": 1024, "rope_parameters": {"factor": 4.0}}, False),
        ({}, False),
    ],
)
def test_positions_are_read_wherever_models_write_them(tmp_path, config, refused):
    model = write_model(tmp_path / "model", config)
    if refused:
        with pytest.raises(ConfigError, match="1024"):
            preflight.check_positions(EngineConfig(max_model_len=2048), model)
    else:
        preflight.check_positions(EngineConfig(max_model_len=2048), model)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_template_that_is_not_there_is_named(model, tmp_path):
    config = EngineConfig(chat_template=str(tmp_path / "none.jinja"))
    with pytest.raises(ConfigError, match=r"engine\.chat_template.*none\.jinja"):
        preflight.check(config, model)


def test_the_memory_is_weights_cache_and_overhead(tmp_path):
    model = write_model(tmp_path / "model", {"dtype": "bfloat16"}, size_bytes=1000)
    fixed = 2 * 2**30 + preflight.OVERHEAD_BYTES
    assert preflight.needed_bytes(EngineConfig(), model) == 1000 + fixed
    assert preflight.needed_bytes(EngineConfig(dtype="float32"), model) == 2000 + fixed
    assert preflight.needed_bytes(EngineConfig(dtype="auto"), model) == 1000 + fixed


def test_the_packaged_model_is_estimated_as_measured(tmp_path):
    model = write_model(tmp_path / "model", {"dtype": "bfloat16"}, size_bytes=0)
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(269_000_000)  # a sparse file
    assert preflight.needed_bytes(EngineConfig(), model) / 1e9 == pytest.approx(4.7, abs=0.05)


def test_memory_that_cannot_suffice_is_an_error_that_says_what_to_lower(model, monkeypatch):
    needed = preflight.needed_bytes(EngineConfig(kv_cache_gib=8), model)
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed - 1)
    with pytest.raises(EngineStartError, match=r"lower engine\.kv_cache_gib.*engine\.model"):
        preflight.check_memory(EngineConfig(kv_cache_gib=8), model)
    least = preflight.needed_bytes(EngineConfig(kv_cache_gib=1), model)
    monkeypatch.setattr(preflight, "available_bytes", lambda: least - 1)
    with pytest.raises(EngineStartError) as caught:
        preflight.check_memory(EngineConfig(kv_cache_gib=1), model)
    assert "lower engine.kv_cache_gib" not in str(caught.value)  # it is the least already


def test_little_memory_is_a_warning_and_unknown_memory_none(model, monkeypatch):
    needed = preflight.needed_bytes(EngineConfig(), model)
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed)
    warning = preflight.check_memory(EngineConfig(), model)
    assert warning is not None
    assert "tight" in warning
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed + preflight.TIGHT_BYTES)
    assert preflight.check_memory(EngineConfig(), model) is None
    monkeypatch.setattr(preflight, "available_bytes", lambda: None)
    assert preflight.check_memory(EngineConfig(), model) is None
