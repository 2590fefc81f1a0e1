"""Small valid records for tests; each keyword overrides a field."""

from datetime import UTC, datetime, timedelta
from typing import Any

from memory.types import (
    AdapterVersion,
    Call,
    CallStatus,
    Cycle,
    CycleState,
    Episode,
    EpisodeSource,
    Split,
    TaskSpec,
    VersionStatus,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def episode(**fields: Any) -> Episode:
    given = {"id": "ep_1", "created_at": NOON, "source": EpisodeSource.CHAT, "task_text": "3 * 4?"}
    return Episode(**given | fields)


def call(**fields: Any) -> Call:
    given: dict[str, Any] = {
        "id": "chatcmpl-1",
        "episode_id": "ep_1",
        "created_at": NOON,
        "adapter": "base",
        "request": {"messages": [{"role": "user", "content": "3 * 4?"}]},
        "message": {"role": "assistant", "content": "12"},
        "prompt_token_ids": (1, 9, 8),
        "completion_token_ids": (33, 2),
        "sampler_logprobs": (-0.5, -0.25),
        "finish_reason": "stop",
        "status": CallStatus.OK,
        "latency_ms": 12.5,
    }
    return Call(**given | fields)


def task(number: int = 1, **fields: Any) -> TaskSpec:
    given: dict[str, Any] = {
        "id": f"task_{number:04d}",
        "created_at": NOON,
        "messages": ({"role": "user", "content": f"{number} * 1 = ?"},),
        "reference": str(number),
        "grader": "contains",
        "split": Split.TRAIN,
        "origin": "api",
    }
    return TaskSpec(**given | fields)


def version(number: int = 1, **fields: Any) -> AdapterVersion:
    given: dict[str, Any] = {
        "id": f"denizen-{number:06d}",
        "parent": "base",
        "created_at": NOON,
        "base_digest": "b" * 64,
        "sha256": "a" * 64,
        "rank": 2,
        "alpha": 4,
        "target_modules": ("q_proj",),
        "status": VersionStatus.CANDIDATE,
    }
    return AdapterVersion(**given | fields)


def cycle(**fields: Any) -> Cycle:
    given: dict[str, Any] = {
        "id": "cycle_1",
        "created_at": NOON,
        "state": CycleState.RUNNING,
        "start_version": "base",
        "skill_ids": (),
        "reason": "a test",
    }
    return Cycle(**given | fields)
