"""HTTP routes of task specs. Thin."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from learner import tasks as task_specs
from learner.tasks import TasksConfig
from memory.http import MAX_ID, MAX_PAGE, answer, page
from memory.privacy import Privacy
from memory.store import Store
from memory.tenants import caller_of
from memory.types import Split, TaskSpec
from memory.wire import read_json


def routes(
    store: Store,
    config: TasksConfig,
    privacy: Privacy,
    on_tasks: Callable[[], None],
    *,
    has_judge: bool,
) -> APIRouter:
    """Return the routes.

    Args:
        store: where tasks are kept.
        config: how they are made.
        privacy: what of them may be stored.
        on_tasks: called when new ones wait for a skill.
        has_judge: whether they may name the judge.
    """

    def make(body: Mapping[str, Any]) -> tuple[list[TaskSpec], int]:
        given = task_specs.from_body(body, config=config, has_judge=has_judge)
        kept = task_specs.as_stored(given, privacy, config=config)
        return kept, sum(one is not other for one, other in zip(given, kept, strict=True))

    router = APIRouter(prefix="/v1")

    @router.post("/tasks")
    async def add_tasks(request: Request) -> Response:
        body = read_json(await request.body())
        found, num_changed = await asyncio.to_thread(make, body)
        num_new = await asyncio.to_thread(store.tasks.add, found)
        on_tasks()
        return answer(import_report(found, num_new, num_changed=num_changed))

    @router.get("/tasks")
    def list_tasks(
        request: Request,
        limit: int = Query(50, ge=1, le=MAX_PAGE),
        after: str | None = None,
        skill: int | None = Query(None, ge=1, le=MAX_ID),
    ) -> Response:
        sight = caller_of(request).sight
        found = store.tasks.page(limit=limit + 1, after=after, skill=skill, sight=sight)
        return page(found, limit, lambda row: str(row["id"]))

    return router


def import_report(tasks: list[TaskSpec], num_new: int, *, num_changed: int) -> dict[str, int]:
    """Say what became of an import; ``redacted`` stands there where it is not none."""
    heldout = sum(task.split is Split.HELDOUT for task in tasks)
    return {
        "imported": num_new,
        "known": len(tasks) - num_new,
        "train": len(tasks) - heldout,
        "heldout": heldout,
        **({"redacted": num_changed} if num_changed else {}),
    }
