"""The settings of ``[engine]``, and what of them can be judged without a model or a machine."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for ``--max-lora-rank`` (``MaxLoRARanks`` in its ``config/lora.py``)."""

# fmt: off
RESERVED_FLAGS = (
    "--api-key", "--chat-template", "--config", "--dtype", "--enable-auto-tool-choice",
    "--enable-lora", "--enforce-eager", "--gpu-memory-utilization", "--host", "--max-lora-rank",
    "--max-loras", "--max-model-len", "--model", "--port", "--served-model-name", "--ssl-certfile",
    "--ssl-keyfile", "--tool-call-parser", "--uds",
)
# fmt: on
"""What the service says itself, or what would take the engine away from its address or key."""


class EngineConfig(BaseModel):
    """Where the engine is, or how to start one. Section ``[engine]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    urls: tuple[str, ...] = ()
    """vLLM servers that run already; empty: start one as a child of the service."""

    api_key: str | None = None
    """Key of the servers in ``urls``. A child gets a random one."""

    model: str | None = None
    """Folder or hub name of the base model; unset: the packaged SmolLM2-135M-Instruct."""

    max_loras: int = Field(default=4, ge=2)
    """Adapters in one batch: live, previous, the weights in practice, and one more."""

    max_lora_rank: int = 16
    """Largest adapter rank: 1, 8, 16, 32, 64, 128, 256, 320 or 512; the default is vLLM's own. The
    learner's rank may not exceed it."""

    max_model_len: int = Field(default=2048, ge=128)
    """Tokens of prompt and answer together; at most the model's positions."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Arithmetic of the base model. Where ``learner.dtype`` is another one, trainer and sampler
    differ more than they need."""

    kv_cache_gib: int = Field(default=2, ge=1)
    """Key-value cache on a CPU, in GiB; with 2 all of vLLM takes 4.7 GB (packaged model)."""

    gpu_memory_utilization: float = Field(default=0.6, gt=0.0, le=1.0)
    """Share of a GPU's memory that vLLM takes; the rest is the trainer's."""

    tool_call_parser: str | None = "hermes"
    """vLLM's parser of the model's tool calls; None: requests with automatic choice are refused."""

    chat_template: str | None = None
    """File with a chat template; unset: the model's own, or for the packaged model, whose own shows
    it no tools, a Hermes-style one."""

    pin_sessions: bool = False
    """A session keeps the version that answered its first call; needs one slot more."""

    start_timeout_s: float = Field(default=600.0, gt=0.0)
    """From start to the first answer; the packaged model takes 30 to 45 s on two cores."""

    extra_args: tuple[str, ...] = ()
    """More arguments for vLLM's server, such as ``--seed``; none that the service sets itself."""

    @field_validator("urls")
    @classmethod
    def _urls_hold_no_key(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        """Addresses are shown and logged, so what is secret has a place of its own."""
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError("an engine's URL looks like http://127.0.0.1:8001")
            if "@" in parts.netloc:
                raise ValueError("user and password do not belong into a URL: set engine.api_key")
        return urls

    @field_validator("max_lora_rank")
    @classmethod
    def _is_a_rank_of_vllm(cls, rank: int) -> int:
        if rank not in LORA_RANKS:
            raise ValueError(f"{rank} is none that vLLM takes: {', '.join(map(str, LORA_RANKS))}")
        return rank

    @field_validator("extra_args")
    @classmethod
    def _overrides_nothing(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            if (flag := reserved_flag(argument)) is not None:
                raise ValueError(f"{flag} is set by the service itself and cannot stand here")
        return arguments

    def num_slots_needed(self, *, learns: bool) -> int:
        """Return how many versions answer at once: live, previous, pinned, and in practice.

        With fewer ``max_loras`` vLLM refuses nothing: requests of the versions beyond them wait.
        """
        return 2 + self.pin_sessions + learns


def reserved_flag(argument: str) -> str | None:
    """Return the reserved flag that vLLM would read in ``argument``; never its value.

    vLLM takes ``--max_loras=2``, ``--no-enable-lora`` and the unambiguous beginning of a name too.

    Example:
        ``reserved_flag("--max_loras=2") == "--max-loras"``
    """
    if not argument.startswith("--") or argument == "--":
        return None
    name = argument.partition("=")[0].replace("_", "-")
    if name in RESERVED_FLAGS:
        return name
    plain = name.replace("--no-", "--", 1)
    return next((flag for flag in RESERVED_FLAGS if flag.startswith(plain)), None)
