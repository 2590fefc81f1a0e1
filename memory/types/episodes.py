"""An episode: all calls of one task, and what people said of them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class EpisodeSource(StrEnum):
    """Who caused the episode."""

    CHAT = "chat"
    HARNESS = "harness"  # a caller's own agent program: it names a session
    AGENT = "agent"  # the built-in agent
    PRACTICE = "practice"  # a learning cycle or its gate


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """All calls of one task.

    Example:
        ``Episode(id="ep_0193-5c", source=EpisodeSource.CHAT, task_text="What is 3 times 4?",
        reference="12", grader="contains", skill_id=2, …)``
    """

    id: str
    created_at: datetime
    source: EpisodeSource
    task_text: str
    task_key: str | None = None  # ``metadata.task``: the caller's own name for this kind of task
    reference: str | None = None  # ``metadata.reference``: the right answer
    grader: str | None = None  # ``metadata.grader``
    user: str | None = None
    session: str | None = None
    tenant: str | None = None
    skill_id: int | None = None
    # The task spec that it practised, or that was derived from it; where a recorded turn was taken
    # again, the id of the episode whose turn it is.
    task_id: str | None = None
    cycle_id: str | None = None  # practice only
    learn: bool = True
    withheld: str | None = None  # why it is not learned from, where the caller did not say so
    revision: int = 1  # grows with every call, every feedback and every judgement
    digested_revision: int = 0  # the revision that grades and outcome were worked out from


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What a person said of an answer; append-only."""

    id: str
    episode_id: str
    created_at: datetime
    value: float  # in [0, 1]; a thumb is 0 or 1
    call_id: str | None = None
    comment: str | None = None
    correction: str | None = None  # what the answer should have been
    source: str = "user"

    def repeats(self, earlier: "Feedback") -> bool:
        """Say whether this adds nothing to what the same source said of the same target before."""
        words = ((self.comment, earlier.comment), (self.correction, earlier.correction))
        return self.value == earlier.value and all(new in {None, old} for new, old in words)
