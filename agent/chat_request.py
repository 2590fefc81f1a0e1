"""The body of ``POST /v1/chat/completions``: what is accepted, and what goes to the engine.

Unknown parameters are refused by name instead of being dropped in silence. It does not know which
model answers.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memory.errors import InvalidRequestError

MAX_MESSAGES = 2_048
MAX_TOOLS = 256
MAX_STOPS = 16
MAX_CHOICES = 16  # ``n``: the engine itself accepts 16,384 and freezes
MAX_TOKENS = 1_000_000
NOT_FOR_THE_ENGINE = {
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
}


class Metadata(BaseModel):
    """What a caller says about the task; never forwarded. Other keys are the caller's own."""

    model_config = ConfigDict(extra="ignore")

    task: str | None = None
    reference: str | None = None
    grader: str | None = None
    user: str | None = None


class ChatMessage(BaseModel):
    """One message of the history; fields beyond the role are the engine's business."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None

    @field_validator("content")
    @classmethod
    def _text_is_text(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "text" and not isinstance(part.get("text"), str):
                raise ValueError("a part of type text needs its text as a string")
        return content


class Sampling(BaseModel):
    """How tokens are drawn, as chat completions and plain completions both say it."""

    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None


class ChatRequest(Sampling):
    """OpenAI's parameters and the sampling parameters that vLLM adds.

    Those that can have no effect on one's own engine are accepted, as clients send them by habit.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=200)
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    metadata: Metadata | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)  # vLLM follows the next if both come
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    user: str | None = None
    store: bool | None = None  # no effect: whether to keep is said by header
    service_tier: str | None = None  # no effect, as the rest
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


def check_format(body: Mapping[str, Any], *, param: str) -> None:
    """Refuse a form of the answer together with tools.

    vLLM would force the form on every answer, and no tool could ever be called.

    Raises:
        InvalidRequestError: names ``param``.
    """
    kind = (body.get("response_format") or {}).get("type", "text")
    if kind != "text" and body.get("tools") and body.get("tool_choice") != "none":
        raise InvalidRequestError(
            f"{param} {kind} and tools exclude each other, as no tool could be called: ask with"
            " tools first, then for the form with tool_choice none",
            param=param,
        )


def upstream_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine is asked: the caller's body, and token ids and log-probabilities.

    ``developer`` becomes ``system``, for which every chat template has a form. The model's name is
    left to whoever knows which weights answer.
    """
    upstream = {key: value for key, value in body.items() if key not in NOT_FOR_THE_ENGINE}
    upstream["messages"] = [
        message | {"role": "system"} if message.get("role") == "developer" else message
        for message in body["messages"]
    ]
    upstream["return_token_ids"] = True
    upstream["logprobs"] = True
    return upstream
