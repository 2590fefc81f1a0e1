"""What has to be true of this installation, the model and the machine before vLLM is started.

Found here it costs a moment and names the setting; found by vLLM it costs a start of half a minute
and ends in a traceback. Contradictions between settings alone are found when they are read.
"""

import importlib.util
import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agent.base_model import model_config
from agent.engine_config import EngineConfig
from agent.errors import BaseModelError, EngineStartError
from agent.machine_memory import available_bytes
from agent.vllm_command import PLUGINS, chat_template, is_cpu_build
from memory.errors import ConfigError

OVERHEAD_BYTES = 2_300_000_000
"""vLLM's three processes without weights and cache. Measured with the packaged model (0.27 GB):
4.7 GB with 2 GiB of cache; 3.4 GB, shared pages counted once, with 1 GiB."""
TIGHT_BYTES = 1_000_000_000
"""What should be left over for the service and its embedder."""
_BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def check(config: EngineConfig, model: Path) -> list[str]:
    """Check everything before a start.

    Returns:
        Warnings, one line each: it will start, but.

    Raises:
        EngineStartError: something is not installed, or memory cannot suffice.
        BaseModelError: the model's folder is not complete.
        ConfigError: a setting contradicts the model, or names a file that is not there.
    """
    check_installed()
    check_model_folder(model)
    check_positions(config, model)
    check_template(config, model)
    return [warning] if is_cpu_build() and (warning := check_memory(config, model)) else []


def check_installed() -> None:
    """Check that vLLM is there, and that it will find our plugins.

    Raises:
        EngineStartError: one of them is missing.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineStartError(
            "vLLM is not installed: run make, or name a server with --engine-url"
        )
    found = {entry.name for entry in entry_points(group="vllm.general_plugins")}
    if missing := sorted(set(PLUGINS) - found):
        raise EngineStartError(
            f"vLLM would not find {', '.join(missing)}, without which it answers wrongly or "
            "ends on a CPU: install this project (pip install --no-deps -e .)"
        )


def check_model_folder(model: Path) -> None:
    """Check that a model's folder holds its configuration, its tokenizer and all its weights.

    Raises:
        BaseModelError: something is missing, which the message names.
    """
    model_config(model)
    if not any((model / name).is_file() for name in _TOKENIZERS):
        raise BaseModelError(f"{model} holds no tokenizer: engine.model must be a complete folder")
    missing = [name for name in _weight_files(model) if not _has_bytes(model / name)]
    if missing:
        raise BaseModelError(
            f"{model} is not complete: {', '.join(missing[:3])} is missing or empty; "
            "engine.model must be a complete folder"
        )


def check_positions(config: EngineConfig, model: Path) -> None:
    """Check ``engine.max_model_len`` against the positions that the model was made for.

    Raises:
        ConfigError: it is above them.
    """
    described = _text_config(model)
    if "factor" in (described.get("rope_parameters") or described.get("rope_scaling") or {}):
        return  # stretched positions: vLLM knows each kind's arithmetic
    positions = [described[key] for key in _POSITIONS if isinstance(described.get(key), int)]
    if positions and config.max_model_len > min(positions):
        raise ConfigError(
            f"engine.max_model_len is {config.max_model_len}, above the {min(positions)} positions "
            f"of engine.model ({model}): lower engine.max_model_len to {min(positions)}"
        )


def check_template(config: EngineConfig, model: Path) -> None:
    """Check that the file of the chat template is there.

    Raises:
        ConfigError: it is not.
    """
    template = chat_template(config, model)
    if template is not None and not template.is_file():
        raise ConfigError(f"engine.chat_template: there is no file {template}")


def check_memory(config: EngineConfig, model: Path) -> str | None:
    """Compare what vLLM takes on a CPU with what can be had; a warning when little is left.

    Raises:
        EngineStartError: it cannot fit; the message says what to lower.
    """
    free, needed = available_bytes(), needed_bytes(config, model)
    if free is None or free >= needed + TIGHT_BYTES:
        return None
    found = (
        f"vLLM needs about {needed / 1e9:.1f} GB of memory with engine.kv_cache_gib "
        f"{config.kv_cache_gib}, and {free / 1e9:.1f} GB are available"
    )
    if free < needed:
        lower = "lower engine.kv_cache_gib, " if config.kv_cache_gib > 1 else ""
        raise EngineStartError(
            f"{found}: {lower}choose a smaller engine.model, or end other programs"
        )
    return f"{found}, which is tight: learning may not fit beside it"


def needed_bytes(config: EngineConfig, model: Path) -> int:
    """Return about how much memory vLLM's processes take together on a CPU."""
    stored = _text_config(model).get("dtype") or _text_config(model).get("torch_dtype")
    stored_size = _BYTES_PER_NUMBER.get(str(stored), 2)
    loaded_size = _BYTES_PER_NUMBER.get(config.dtype, stored_size)
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return weights * loaded_size // stored_size + config.kv_cache_gib * 2**30 + OVERHEAD_BYTES


def _text_config(model: Path) -> dict[str, Any]:
    """Return the part of ``config.json`` that describes the language model."""
    whole = model_config(model)
    nested = whole.get("text_config")
    return nested if isinstance(nested, dict) else whole


def _weight_files(model: Path) -> list[str]:
    """Return the names of the weights' files: those that the index lists, or those that are there.

    Raises:
        BaseModelError: there are none, or the index cannot be read.
    """
    index = model / "model.safetensors.index.json"
    if not index.is_file():
        return [path.name for path in model.glob("*.safetensors")] or ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise BaseModelError(f"{index} cannot be read: {error!r}") from error


def _has_bytes(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0
