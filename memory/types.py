"""The records that flow through Denizen. Read this file first.

Every record is frozen, keyword-only and slotted; a stage returns a new record instead of filling in
another stage's field. Instants are UTC-aware ``datetime``; ``None`` means "not known", and where a
number is missing a neighbouring ``*_reason`` says why. Nothing here imports more than the standard
library.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""One chat message as it stands on the wire: ``{"role": "user", "content": "6 * 7 = ?"}``."""


def utc_now() -> datetime:
    """Return the present instant, UTC-aware."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """Return an id that sorts by the millisecond it was made in: ``ep_0193a1c0b7f1-5c0f9a31``."""
    milliseconds = int(utc_now().timestamp() * 1000)
    return f"{prefix}_{milliseconds:012x}-{random.getrandbits(32):08x}"


class CallStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    CANCELLED = "cancelled"  # the client hung up; the tokens up to then are kept
    ERROR = "error"


class Edge(StrEnum):
    """How a call hangs below its parent in the episode's tree, or beside what was before."""

    CONTINUATION = "continuation"  # its messages begin with the parent's messages and answer
    RERENDERED = "rerendered"  # a continuation whose system prompt, or answer, was written anew
    FORK = "fork"  # shares a beginning with the parent's conversation, then goes another way
    RETRY = "retry"  # asks what its sibling asked; hangs where the sibling hangs
    COMPACTION = "compaction"  # the parent's history was shortened, or replaced by a summary
    SIDE_CALL = "side_call"  # asks for a title, a summary, … and quotes the parent's conversation
    SUB_AGENT = "sub_agent"  # a conversation of its own that the parent's answer started
    SESSION = "session"  # nothing but the session's name joins it to the episode


GOES_ON = frozenset({Edge.CONTINUATION, Edge.RERENDERED, Edge.FORK, Edge.COMPACTION})
"""The edges by which a conversation goes on below a call. A retry stands beside one of them, or
beside a call that is no part of the conversation.
"""


class EpisodeSource(StrEnum):
    """Who caused the episode."""

    CHAT = "chat"
    HARNESS = "harness"  # a caller's own agent program: it names a session
    AGENT = "agent"  # the built-in agent
    PRACTICE = "practice"  # a learning cycle or its gate


class Split(StrEnum):
    """Which side of the wall a task stands on, for ever."""

    TRAIN = "train"
    HELDOUT = "heldout"


class GradeKind(StrEnum):
    """Who scored; the order is the precedence when grades are merged."""

    CHECK = "check"
    PERSON = "person"
    JUDGE = "judge"
    REACTION = "reaction"  # what the user did next: evidence that is shown and decides nothing


class SkillPolicy(StrEnum):
    """Whether a skill may be learned."""

    LEARN = "learn"
    PAUSED = "paused"
    LOCKED = "locked"


class VersionStatus(StrEnum):
    """Where an adapter version is in its life; see ``VERSION_TRANSITIONS``."""

    CANDIDATE = "candidate"
    LIVE = "live"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    TAINTED = "tainted"


VERSION_TRANSITIONS: Mapping[VersionStatus, frozenset[VersionStatus]] = {
    VersionStatus.CANDIDATE: frozenset(
        {VersionStatus.LIVE, VersionStatus.REJECTED, VersionStatus.TAINTED}
    ),
    VersionStatus.LIVE: frozenset(
        {VersionStatus.RETIRED, VersionStatus.ROLLED_BACK, VersionStatus.TAINTED}
    ),
    VersionStatus.RETIRED: frozenset({VersionStatus.LIVE, VersionStatus.TAINTED}),
    VersionStatus.REJECTED: frozenset({VersionStatus.LIVE, VersionStatus.TAINTED}),
    VersionStatus.ROLLED_BACK: frozenset({VersionStatus.LIVE, VersionStatus.TAINTED}),
    VersionStatus.TAINTED: frozenset(),
}


class CycleState(StrEnum):
    """Where a learning cycle is, or how it ended."""

    RUNNING = "running"
    PROMOTED = "promoted"  # the candidate is live
    PROPOSED = "proposed"  # the gate passed; a person decides
    REJECTED = "rejected"  # the gate found a loss
    INCONCLUSIVE = "inconclusive"  # the gate could not tell
    NO_SIGNAL = "no_signal"  # nothing to learn from; nothing was published
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # it could not go on: the service ended, or its words were erased


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One completion, token for token.

    Example:
        ``Call(id="chatcmpl-8c1", episode_id="ep_0193-5c", adapter="denizen-000007",
        request={"messages": [{"role": "user", "content": "3 * 4 = ?"}], "max_tokens": 8},
        message={"role": "assistant", "content": "12"}, prompt_token_ids=(1, 9, 8),
        completion_token_ids=(33, 2), sampler_logprobs=(-0.41, -0.02), finish_reason="stop",
        status=CallStatus.OK, latency_ms=81.5, …)``
    """

    id: str
    episode_id: str
    created_at: datetime
    adapter: str  # "base", or the adapter version that sampled: "denizen-000007"
    request: Mapping[str, Any]  # the client's body, without ``metadata``
    message: Message | None  # the assistant's message as assembled; None when nothing came
    prompt_token_ids: Sequence[int] | None  # as the engine reports them; None: it did not
    completion_token_ids: Sequence[int] | None  # [L], the final end-of-sequence token included
    sampler_logprobs: Sequence[float | None] | None  # [L]; None where unknown, never 0.0 instead
    finish_reason: str | None
    status: CallStatus
    latency_ms: float
    parent_id: str | None = None  # the call that this one hangs below
    edge: Edge | None = None  # why it belongs to its episode; None: it began it
    session: str | None = None
    usage: Mapping[str, Any] | None = None
    error: str | None = None
    learn: bool = True  # False: the caller sent ``x-denizen-learn: off``
    withheld: str | None = None  # why it is kept from learning whatever the caller says
    recalled: Mapping[str, Any] | None = None  # what memory put into the prompt, and from where

    @property
    def text_only_reason(self) -> str | None:
        """Say what the engine left out of a complete answer that learning needs; None: nothing."""
        if self.status is not CallStatus.OK or self.withheld is not None:
            return None
        if not self.completion_token_ids or self.prompt_token_ids is None:
            return "no_token_ids"
        if self.sampler_logprobs is None or len(self.sampler_logprobs) != len(
            self.completion_token_ids
        ):
            return "no_logprobs"
        return None

    @property
    def not_learnable_reason(self) -> str | None:
        """Say why no training row can be made of this call; None when one can."""
        if not self.learn:
            return "learning_off"
        if self.withheld is not None:
            return self.withheld
        if self.status is not CallStatus.OK:
            return self.status.value
        return self.text_only_reason


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
    task_id: str | None = (
        None  # the task spec that this episode practised, or that was derived from it
    )
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """One grader's score of one answer.

    Example:
        ``Grade(kind=GradeKind.CHECK, grader="contains", version="1", value=0.5, explanation="'12'
        found in 8 characters")``
    """

    kind: GradeKind
    grader: str
    version: str
    value: float | None  # in [0, 1]; None: could not score
    unscored_reason: str | None = None
    explanation: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.unscored_reason:
                raise ValueError(f"grade of {self.grader!r} has no value and no unscored_reason")
        elif not 0.0 <= self.value <= 1.0:
            raise ValueError(f"grade of {self.grader!r} is {self.value}, outside [0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The merged grades of an episode, and which kind of grader decided."""

    value: float | None
    provenance: GradeKind | None  # None: nothing could score
    num_grades: int
    unscored_reason: str | None = None


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """A discovered task type."""

    id: int
    title: str
    created_at: datetime
    policy: SkillPolicy = SkillPolicy.LEARN
    task_key: str | None = None
    tenant: str | None = None
    key_terms: Sequence[str] = ()  # the most telling words of its texts
    is_kept: bool = False  # a person named, merged or split it: the system leaves it as it is
    num_episodes: int = 0
    num_graded: int = 0
    mean_outcome: float | None = None
    num_train_tasks: int = 0
    num_heldout_tasks: int = 0
    num_live_graded: int = 0  # graded episodes that cannot be replayed, and may be learned from
    has_live_contrast: bool = False  # whether their outcomes differ
    num_new_signal: int = 0  # graded episodes and new tasks since the last cycle on this skill


class SkillEvent(StrEnum):
    """What happened to a skill."""

    FOUNDED = "founded"
    MERGED_INTO = "merged_into"  # it became part of another
    ABSORBED = "absorbed"  # another became part of it
    SPLIT_FROM = "split_from"  # it was a part of another
    SPLIT_OFF = "split_off"  # a part of it became another
    RENAMED = "renamed"
    POLICY = "policy"
    JOINED = "joined"  # texts that waited, or were another skill's, were put under it
    LEFT = "left"  # texts that are like no others of it wait for a skill again
    ERASED = "erased"  # some of its texts were erased


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillChange:
    """One event in a skill's history; append-only.

    Example:
        ``SkillChange(skill_id=7, created_at=…, actor="system", event=SkillEvent.SPLIT_FROM,
        other_id=2, detail="31 episodes")``
    """

    skill_id: int
    created_at: datetime
    actor: str  # "system" or "person"
    event: SkillEvent
    other_id: int | None = None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterVersion:
    """One immutable set of LoRA weights.

    Example:
        ``AdapterVersion(id="denizen-000007", parent="denizen-000006", base_digest="9f…",
        sha256="41…", rank=16, alpha=32, target_modules=("q_proj", …), status=VersionStatus.LIVE,
        cycle_id="cycle_0193-11", …)``
    """

    id: str
    parent: str  # "base", or a version id
    created_at: datetime
    base_digest: str  # sha256 of the base model's weights
    sha256: str  # of adapter_model.safetensors
    rank: int
    alpha: int
    target_modules: Sequence[str]
    status: VersionStatus
    origin: str = "cycle"  # "cycle" | "import"
    cycle_id: str | None = None
    size_bytes: int = 0
    reason: str | None = None  # why it was imported


@dataclass(frozen=True, kw_only=True, slots=True)
class PointerMove:
    """One change of what is live; append-only."""

    id: int
    created_at: datetime
    from_version: str
    to_version: str
    kind: str  # "promote" | "rollback"
    reason: str
    actor: str
    forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycle:
    """One learning run: from a start version through steps and a gate to a verdict."""

    id: str
    created_at: datetime
    state: CycleState
    start_version: str
    skill_ids: Sequence[int]
    reason: str  # why it started
    ended_at: datetime | None = None
    candidate: str | None = None
    end_reason: str | None = None
    receipt: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None  # a GateReport as JSON
    base_digest: str | None = None  # sha256 of the base model's weights
    settings_sha256: str | None = None  # of the settings that decide what its steps do
    num_resumes: int = 0  # services that went on with it after another had ended
    num_deaths: int = 0  # of these, after one that was killed
    was_stopped: bool = False  # the service was stopped in an orderly way while it ran


class TaskRole(StrEnum):
    """What a cycle does with a task."""

    TRAIN = "train"  # may be practised
    HELDOUT = "heldout"  # proves a gain
    GUARD = "guard"  # of another skill: proves that it lost nothing
    REHEARSAL = "rehearsal"  # of another skill: practised, too, so that it loses nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleStage:
    """One sampling of a cycle: what is tried with one set of weights for one purpose.

    Example:
        ``CycleStage(cycle_id="cycle_0193-11", name="step-03")``
    """

    cycle_id: str
    name: str  # "before" and "after" on held-out tasks, "step-03" to learn from


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleStep:
    """One optimizer step and its receipt."""

    cycle_id: str
    index: int
    created_at: datetime
    receipt: Mapping[str, Any]


def message_text(message: Message) -> str:
    """Return a message's text; parts of a list content are joined by newlines, as vLLM does."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


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
    fraction = int(hashlib.sha256(canonical.encode()).hexdigest()[:8], 16) / 0x1_0000_0000
    return Split.HELDOUT if fraction < heldout_share else Split.TRAIN
