"""The records that flow through Denizen. Read this package first, a noun a module.

Every record is frozen, keyword-only and slotted; a stage returns a new record instead of filling in
another stage's field. Instants are UTC-aware ``datetime``; ``None`` means "not known", and where a
number is missing a neighbouring ``*_reason`` says why. Nothing here imports more than the standard
library. Others take every record from here: ``from memory.types import Call, Episode``.
"""

from memory.types.calls import GOES_ON, Call, CallStatus, Edge, Message, message_text
from memory.types.cycles import Cycle, CycleStage, CycleState, CycleStep, TaskRole
from memory.types.episodes import Episode, EpisodeSource, Feedback
from memory.types.grades import Grade, GradeKind, Outcome
from memory.types.ids import new_id, utc_now
from memory.types.skills import Skill, SkillChange, SkillEvent, SkillPolicy
from memory.types.tasks import Split, TaskSpec, fraction_of, split_of, task_id, task_text
from memory.types.versions import VERSION_TRANSITIONS, AdapterVersion, PointerMove, VersionStatus

__all__ = [
    "GOES_ON",
    "VERSION_TRANSITIONS",
    "AdapterVersion",
    "Call",
    "CallStatus",
    "Cycle",
    "CycleStage",
    "CycleState",
    "CycleStep",
    "Edge",
    "Episode",
    "EpisodeSource",
    "Feedback",
    "Grade",
    "GradeKind",
    "Message",
    "Outcome",
    "PointerMove",
    "Skill",
    "SkillChange",
    "SkillEvent",
    "SkillPolicy",
    "Split",
    "TaskRole",
    "TaskSpec",
    "VersionStatus",
    "fraction_of",
    "message_text",
    "new_id",
    "split_of",
    "task_id",
    "task_text",
    "utc_now",
]
