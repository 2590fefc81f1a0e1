"""The bodies of ``POST /v1/tasks``: a task as a caller writes it.

Form only: whether the grader exists and has what it reads is for ``learner.tasks`` to judge.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from graders.catalog import DEFAULT_GRADER
from memory.types import Message

_MAX_GENERATED = 10_000


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]


class MessageBody(BaseModel):
    """One message of a task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: Text


class SamplingBody(BaseModel):
    """How a practised answer is bounded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None


class TaskBody(BaseModel):
    """One task as a caller gives it: ``{"prompt": "3 * 4 = ?", "reference": "12"}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prompt: Text | None = None
    """The user's message; give this or ``messages``."""
    messages: list[MessageBody] | None = None
    """A conversation whose next answer is practised; the last message is the user's."""
    reference: Annotated[str, Field(coerce_numbers_to_str=True)] | None = None
    """The right answer. A judge is not shown it, but planted answers are made of it."""
    grader: str = DEFAULT_GRADER
    """The grader's name."""
    grader_config: dict[str, JsonValue] = Field(default_factory=dict)
    """What the grader reads beside the reference, such as ``{"pattern": "^[0-9]+$"}``."""
    sampling: SamplingBody = SamplingBody()
    """Bounds of the practised answer."""
    task_key: str | None = Field(default=None, min_length=1, max_length=200)
    """The caller's own name for this kind of task; the same key is the same skill."""

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is not None and (not self.messages or self.messages[-1].role != "user"):
            raise ValueError("the last of messages must be the user's")
        return self

    @property
    def conversation(self) -> list[Message]:
        """The messages, or the prompt as one."""
        if self.messages is None:
            return [{"role": "user", "content": self.prompt}]
        return [message.model_dump() for message in self.messages]


class GivenTasksBody(BaseModel):
    """``POST /v1/tasks`` with the tasks themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: list[TaskBody] = Field(min_length=1)


class GeneratedTasksBody(BaseModel):
    """``POST /v1/tasks`` with a generator: ``{"from": "reasoning-gym:products", "n": 200}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: str = Field(alias="from")
    n: int = Field(default=200, ge=1, le=_MAX_GENERATED)
    seed: int = Field(default=1, ge=0)
    settings: dict[str, JsonValue] = Field(default_factory=dict, alias="set")
