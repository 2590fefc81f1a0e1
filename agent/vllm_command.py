"""What vLLM is started with: its command line and its environment, from the settings.

Whether they fit the model and the machine is ``agent/preflight.py``'s business.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from agent.base_model import FOLDER as PACKAGED_MODEL
from agent.engine_config import EngineConfig

PLUGINS = ("denizen_cpu_lora", "denizen_cpu_seed")
TOOL_TEMPLATE = Path(__file__).parent / "templates/smollm2_hermes.jinja"
"""For the packaged model, whose own template renders no tools; without tools both say the same."""


def command_line(config: EngineConfig, model: Path, port: int) -> list[str]:
    """Return the program and its arguments. The key is not among them: others can read them."""
    # fmt: off
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1", "--port", str(port),
        "--model", str(model), "--served-model-name", "base",
        "--dtype", config.dtype, "--max-model-len", str(config.max_model_len),
        "--enable-lora", "--max-loras", str(config.max_loras),
        "--max-lora-rank", str(config.max_lora_rank),
        "--disable-uvicorn-access-log",
    ]
    # fmt: on
    if config.tool_call_parser is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_call_parser]
    if (template := chat_template(config, model)) is not None:
        command += ["--chat-template", str(template)]
    if is_cpu_build():
        command += ["--enforce-eager"]
    else:
        command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    return [*command, *config.extra_args]


def chat_template(config: EngineConfig, model: Path) -> Path | None:
    """Return the file of the chat template; None: the model's own."""
    if config.chat_template is not None:
        return Path(config.chat_template).expanduser()
    return TOOL_TEMPLATE if model.name == PACKAGED_MODEL else None


def environment(config: EngineConfig, api_key: str) -> dict[str, str]:
    """Return this process's environment with what vLLM needs besides."""
    wanted = {
        "VLLM_API_KEY": api_key,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **wanted, **_plugins(os.environ)}


def _plugins(outer: Mapping[str, str]) -> dict[str, str]:
    """Let our plugins in where an allow-list is set."""
    allowed = outer.get("VLLM_PLUGINS")
    return {} if allowed is None else {"VLLM_PLUGINS": ",".join([allowed, *PLUGINS])}


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU package, which is distributed as ``vllm-cpu``."""
    with suppress(PackageNotFoundError):
        distribution("vllm-cpu")
        return True
    return False
