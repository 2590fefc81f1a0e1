"""OpenAI's older completions: a prompt of text or token ids, continued as it stands.

Passed through to the engine's own route, which reports token ids on each choice.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from agent.chat_request import MAX_CHOICES, MAX_TOKENS, Metadata, Sampling
from agent.dialects.chat import OpenAiReply
from agent.dialects.dialect import Ask, FindCall
from agent.policy import COMPLETIONS_PATH
from memory.errors import DenizenError
from memory.wire import parse_body

MAX_TOKEN_ID = 2**31 - 1
WITHOUT_EFFECT = {"metadata", "user", "store", "echo", "best_of"}


class CompletionsRequest(Sampling):
    """OpenAI's parameters and the sampling parameters that vLLM adds."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=200)
    prompt: str | list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]]
    metadata: Metadata | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    best_of: None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool | None = None
    echo: bool | None = None
    user: str | None = None
    store: bool | None = None  # accepted and without effect: whether to keep is said by header

    @field_validator("prompt", mode="before")
    @classmethod
    def _only_one(cls, prompt: Any) -> Any:
        """Take the one prompt out of a list of one."""
        if not isinstance(prompt, list) or all(isinstance(one, int) for one in prompt):
            return prompt
        if len(prompt) > 1:
            raise ValueError("one request asks for one prompt; send the others on their own")
        return prompt[0]

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, prompt: str | list[int]) -> str | list[int]:
        if not prompt:
            raise ValueError("the prompt is empty")
        return prompt

    @field_validator("echo")
    @classmethod
    def _no_echo(cls, echo: bool | None) -> bool | None:
        if echo:
            raise ValueError(
                "not supported: with an echo the engine does not tell the prompt's tokens from the"
                " sampled ones; put the prompt in front yourself"
            )
        return echo


class Completions:
    """``POST /v1/completions``."""

    def read(self, body: dict[str, Any], find_call: FindCall) -> Ask:
        """Read a request."""
        asked = parse_body(CompletionsRequest, body)
        upstream = {key: value for key, value in body.items() if key not in WITHOUT_EFFECT}
        upstream |= {"prompt": asked.prompt, "return_token_ids": True}
        upstream["logprobs"] = asked.logprobs or 0  # 0: of the sampled token alone
        return Ask(
            model=asked.model,
            path=COMPLETIONS_PATH,
            body=upstream,
            messages=[{"role": "user", "content": _shown(asked.prompt)}],
            record={"dialect": "completions"}
            | {key: value for key, value in body.items() if key != "metadata"},
            stream=bool(asked.stream),
            reply=lambda _: OpenAiReply(
                model=asked.model,
                asked_logprobs=asked.logprobs is not None,
                asked_token_ids=bool(asked.return_token_ids),
                asked_usage=bool((asked.stream_options or {}).get("include_usage")),
            ),
            metadata=asked.metadata or Metadata(),
            user=asked.user,
        )

    def error(self, error: DenizenError) -> dict[str, Any]:
        """Return OpenAI's error body."""
        return error.body()


def _shown(prompt: str | list[int]) -> str:
    """Return a prompt as words; one of token ids keeps them, as nobody here knows their text."""
    return prompt if isinstance(prompt, str) else "token ids " + " ".join(map(str, prompt))
