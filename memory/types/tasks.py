"""A task spec: something that can be tried again, named and put on its side by its content."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from memory.types.calls import Message, message_text


class Split(StrEnum):
    """Which side of the wall a task stands on, for ever."""

    TRAIN = "train"
    HELDOUT = "heldout"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """Something that can be tried again.

    Example:
        ``TaskSpec(id="task_5c0f9a31…", messages=({"role": "user", "content": "3 * 4 = ?"},),
        reference="12", grader="contains", split=Split.TRAIN, skill_id=2,
        origin="reasoning-gym:products", …)``
    """

    id: str
    created_at: datetime
    messages: Sequence[Message]
    reference: str | None
    grader: str
    grader_config: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # max_tokens, stop, …
    split: Split
    origin: str  # "api", "jsonl:FILE", "reasoning-gym:NAME", "episode:ep_…"
    skill_id: int | None = None
    task_key: str | None = None
    tenant: str | None = None  # whose episode it was derived from

    @property
    def text(self) -> str:
        """The task as a person would say it."""
        return task_text(self.messages)


def task_text(messages: Sequence[Message]) -> str:
    """Return the first user message's text: what the episode is about."""
    return next((message_text(m) for m in messages if m.get("role") == "user"), "")


def task_id(
    messages: Sequence[Message],
    reference: str | None,
    grader: str,
    config: Mapping[str, Any],
    *,
    tenant: str | None = None,
) -> str:
    """Name a task by its content, so that importing it twice is importing it once.

    Equal tasks of two tenants are two tasks.
    """
    content: list[Any] = [list(messages), reference, grader, dict(config)]
    content += [] if tenant is None else [tenant]
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return "task_" + hashlib.sha256(canonical.encode()).hexdigest()[:20]


def split_of(messages: Sequence[Message], *, heldout_share: float) -> Split:
    """Put a task on one side of the wall by the hash of what is asked, the same for ever.

    Neither reference, system prompt, white space nor the way a text is written as parts enters:
    the same question stays on its side however it is asked.
    """
    asked = [m for m in messages if m.get("role") not in {"system", "developer"}]
    words = [[m.get("role"), *message_text(m).split()] for m in asked]
    canonical = json.dumps(words, ensure_ascii=False)
    return Split.HELDOUT if fraction_of(canonical) < heldout_share else Split.TRAIN


def fraction_of(text: str) -> float:
    """Return a number in [0, 1) by the hash of a text, the same for ever."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 0x1_0000_0000
