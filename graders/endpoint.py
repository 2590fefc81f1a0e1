"""A teacher anywhere: the settings of ``[teacher]`` and any OpenAI-compatible endpoint.

The only module that knows the ``openai`` package, which is loaded on first use (1 s). What an
endpoint says of a failure may hold its key in part; no more than the status is passed on.
"""

import re
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from graders.chat_model import (
    REFUSALS,
    ChatRequest,
    Failure,
    OverloadedTeacherError,
    Reply,
    TeacherError,
    reply_of,
)

if TYPE_CHECKING:
    import openai

NO_KEY = "none"
"""Stands for a key where the endpoint asks for none, such as a server of one's own."""
_PLACEHOLDER = re.compile(
    r"""<.*>|\$.*|\{.*\}|.*\.\.\.|(sk-)?[x*.]+|key|none?needed
    |(sk-)?(your|my|the|some|insert|put|enter|add|replace)[-_ ].*
    |change[-_ ]?me|placeholder|example|dummy|fake|todo|test|secret|null|undefined|api[-_ ]?key""",
    re.IGNORECASE | re.VERBOSE,
)
_PASSING = frozenset({408, 409, 425, 429})


class TeacherConfig(BaseModel):
    """Settings of ``[teacher]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    base_url: str | None = Field(default=None, pattern="^https?://")
    """An OpenAI-compatible endpoint, such as ``https://api.example.com/v1``. Without: the judge is
    ``denizen@base``, the base model in Denizen's own engine.
    """
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """The model to ask for there."""
    api_key: SecretStr | None = None
    """Its key; "none" where the endpoint asks for none. Better set as DENIZEN_TEACHER__API_KEY."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.base_url is None:
            if self.model is not None or self.api_key is not None:
                raise ValueError("teacher.base_url is missing: without it nobody else is asked")
            return self
        if self.model is None:
            raise ValueError("teacher.model is missing: it names the model at teacher.base_url")
        key = "" if self.api_key is None else self.api_key.get_secret_value().strip()
        if not key:
            raise ValueError(
                'teacher.api_key is missing: set DENIZEN_TEACHER__API_KEY ("none" where the'
                " endpoint asks for none)"
            )
        if _PLACEHOLDER.fullmatch(key):
            raise ValueError(
                'teacher.api_key is a placeholder, not a key: set the real one, or "none" where'
                " the endpoint asks for none"
            )
        return self

    @property
    def keys(self) -> list[str]:
        """The key as a secret to be kept out of logs and records; empty where there is none."""
        key = "" if self.api_key is None else self.api_key.get_secret_value().strip()
        return [key] if key and key != NO_KEY else []


class EndpointModel:
    """A model at an endpoint."""

    def __init__(self, config: TeacherConfig) -> None:
        assert config.base_url is not None and config.model is not None
        self.name = config.model
        self._config = config
        self._opened: openai.AsyncOpenAI | None = None

    async def complete(self, request: ChatRequest) -> Reply:
        """Answer; retries and the deadline are the caller's."""
        import openai

        try:
            answer = await self._client().post(
                "/chat/completions",
                body={**request.body(), "model": self.name},
                cast_to=dict[str, object],
            )
        except openai.APIStatusError as error:
            detail = f"the endpoint answered {error.status_code}"
            if error.status_code >= 500 or error.status_code in _PASSING:
                raise OverloadedTeacherError(detail) from None
            is_refusal = error.status_code in REFUSALS
            failure = Failure.REFUSED if is_refusal else Failure.UNAVAILABLE
            raise TeacherError(failure, detail) from None
        except openai.APIConnectionError as error:
            raise OverloadedTeacherError(
                f"no connection: {type(error.__cause__).__name__}"
            ) from None
        except (openai.OpenAIError, ValueError) as error:
            raise OverloadedTeacherError(f"no usable answer: {type(error).__name__}") from None
        return reply_of(answer)

    async def close(self) -> None:
        """Close the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def _client(self) -> "openai.AsyncOpenAI":
        import openai

        if self._opened is None:
            keys = self._config.keys
            self._opened = openai.AsyncOpenAI(
                base_url=self._config.base_url,
                api_key=keys[0] if keys else NO_KEY,
                max_retries=0,
                timeout=None,
            )
        return self._opened
