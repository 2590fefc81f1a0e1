"""Task specs: made from wire bodies, JSON lines, reasoning-gym, and live episodes.

Knows what makes a task that can be tried again and graded. It does not know where tasks are kept,
how they are practised, or how skills are found.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from graders import reasoning
from graders.catalog import DEFAULT_GRADER, require_gradable, require_known
from graders.judge import JUDGE
from learner.task_bodies import GeneratedTasksBody, GivenTasksBody, TaskBody
from memory.errors import InvalidRequestError
from memory.privacy import Privacy
from memory.redaction import MARK
from memory.types import (
    Episode,
    EpisodeSource,
    Message,
    TaskSpec,
    message_text,
    split_of,
    task_id,
    utc_now,
)
from memory.wire import parse_body

GYM_PREFIX = "reasoning-gym:"
GYM_ALIASES = {"sums": "chain_sum"}
_LONGEST_ANSWER = 512  # tokens; a quarter of the embedded engine's context
# A request with one of these is answered in a form that its messages alone do not ask for.
_SHAPING_OPTIONS = ("tools", "functions", "response_format")


class TasksConfig(BaseModel):
    """How task specs are made."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    heldout_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of tasks, by the hash of their messages, that is never trained on. A quarter of 200
    tasks gives the gate 50 pairs."""
    max_tokens: int = Field(default=24, ge=1)
    """Tokens a practised answer may have when neither task nor reference asks for more. Short
    answers of reasoning-gym fit, and a rambling one ends early (prototype run on two cores)."""


def from_body(body: Mapping[str, Any], *, config: TasksConfig, has_judge: bool) -> list[TaskSpec]:
    """Make the tasks that the body of ``POST /v1/tasks`` gives or asks to generate.

    Generating takes seconds; call it off the event loop.

    Args:
        body: The body.
        config: How task specs are made.
        has_judge: Whether tasks may name the judge.

    Raises:
        InvalidRequestError: The first fault, with ``param``.
    """
    if "from" not in body:
        given = parse_body(GivenTasksBody, body)
        return [
            _given_task(task, "api", config, has_judge=has_judge, where=f"tasks.{number}: ")
            for number, task in enumerate(given.tasks)
        ]
    asked = parse_body(GeneratedTasksBody, body)
    if not asked.origin.startswith(GYM_PREFIX):
        raise InvalidRequestError(
            f"from is {asked.origin!r}; expected {GYM_PREFIX}NAME, such as {GYM_PREFIX}products",
            param="from",
        )
    name = asked.origin.removeprefix(GYM_PREFIX)
    return from_reasoning_gym(
        name, n=asked.n, seed=asked.seed, settings=asked.settings, config=config
    )


def as_stored(
    tasks: Sequence[TaskSpec], privacy: Privacy, *, config: TasksConfig
) -> list[TaskSpec]:
    """Return tasks as they may be stored: without secrets, and without forged turns.

    A mark differs from process to process; id and split are told by its kind alone, so that a task
    that is given again is the same one. Two that differ in nothing but a secret are one.

    Raises:
        InvalidRequestError: the first that may not be stored, with its number.
    """
    stored = []
    for number, task in enumerate(tasks):
        try:
            kept = privacy.task(task)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"tasks.{number}: {error.message}", param=error.param
            ) from error
        stored.append(task if kept is task else _named_anew(kept, config))
    return stored


def _named_anew(task: TaskSpec, config: TasksConfig) -> TaskSpec:
    content = json.dumps([task.messages, task.reference, task.grader_config])
    messages, reference, grader_config = json.loads(MARK.sub(r"[\1]", content))
    return dataclasses.replace(
        task,
        id=task_id(messages, reference, task.grader, grader_config, tenant=task.tenant),
        split=split_of(messages, heldout_share=config.heldout_share),
    )


def from_reasoning_gym(
    name: str, *, n: int, seed: int, settings: Mapping[str, Any], config: TasksConfig
) -> list[TaskSpec]:
    """Make ``n`` different tasks of a reasoning-gym family, fewer when the family has no more.

    They are graded by the family's own scorer. ``sums`` is taken for ``chain_sum``.

    Args:
        name: The library's name of the family, such as ``"products"``.
        n: How many.
        seed: The same seed and settings give the same tasks.
        settings: Fields of the family's config, such as ``{"min_digits": "1", "max_digits": "1"}``.
        config: How task specs are made.

    Raises:
        InvalidRequestError: Unknown family or setting, or a value that does not fit it.
    """
    name = GYM_ALIASES.get(name, name)
    return [
        _task(
            messages=[{"role": "user", "content": entry["question"]}],
            reference=entry["answer"],
            grader=reasoning.REASONING_GYM.name,
            grader_config={"dataset": name, "entry": entry},
            origin=f"{GYM_PREFIX}{name}",
            config=config,
        )
        for entry in reasoning.generate(name, n=n, seed=seed, settings=settings)
    ]


def from_episode(
    episode: Episode, request: Mapping[str, Any], *, correction: str | None, config: TasksConfig
) -> TaskSpec | None:
    """Make a task of a live single-turn episode whose right answer is known.

    Args:
        episode: The episode.
        request: Its only call's body.
        correction: What a person says the answer should have been; wins over the episode's
            reference, which it corrects.
        config: How task specs are made.

    Returns:
        None when it cannot be tried again as it was, or not graded: practice, learning off, more
        than one turn, tools, anything but text, no right answer, a judge as its grader, or one that
            needs more.
    """
    reference = episode.reference if correction is None else correction
    grader = episode.grader or DEFAULT_GRADER
    if episode.source is EpisodeSource.PRACTICE or not episode.learn or grader == JUDGE:
        return None
    if not _is_single_turn_text(request):
        return None
    try:
        require_gradable(grader, reference=reference, config={})
    except InvalidRequestError:
        return None
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return _task(
        messages=request["messages"],
        reference=reference,
        grader=grader,
        sampling={"max_tokens": limit, "stop": request.get("stop")},
        origin=f"episode:{episode.id}",
        task_key=episode.task_key,
        skill_id=episode.skill_id,
        tenant=episode.tenant,
        config=config,
    )


def _given_task(
    body: TaskBody, origin: str, config: TasksConfig, *, has_judge: bool, where: str
) -> TaskSpec:
    try:
        require_known(body.grader, has_judge=has_judge)
        require_gradable(body.grader, reference=body.reference, config=body.grader_config)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}{error.message}", param=error.param) from error
    return _task(
        messages=body.conversation,
        reference=body.reference,
        grader=body.grader,
        grader_config=body.grader_config,
        sampling=body.sampling.model_dump(),
        origin=origin,
        task_key=body.task_key,
        config=config,
    )


def _task(
    *,
    messages: Sequence[Message],
    reference: str | None,
    config: TasksConfig,
    sampling: Mapping[str, Any] | None = None,
    **fields: Any,
) -> TaskSpec:
    bounds = {key: value for key, value in (sampling or {}).items() if value is not None}
    # A token has at least about one character, so a right answer always fits.
    room = max(config.max_tokens, min(len(reference or ""), _LONGEST_ANSWER))
    return TaskSpec(
        id=task_id(
            messages,
            reference,
            fields["grader"],
            fields.get("grader_config", {}),
            tenant=fields.get("tenant"),
        ),
        created_at=utc_now(),
        messages=tuple(messages),
        reference=reference,
        sampling={"max_tokens": room, **bounds},
        split=split_of(messages, heldout_share=config.heldout_share),
        **fields,
    )


def _is_single_turn_text(request: Mapping[str, Any]) -> bool:
    if any(request.get(option) for option in _SHAPING_OPTIONS):
        return False
    messages = request.get("messages") or []
    roles = [message.get("role") for message in messages]
    asked = [role for role in roles if role not in {"system", "developer"}]
    return asked == ["user"] and roles[-1] == "user" and all(map(_is_text, messages))


def _is_text(message: Message) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    only_text = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    return only_text and bool(message_text(message).strip())
