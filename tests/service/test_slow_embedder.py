"""Grades do not wait for vectors: an embedder may wait minutes for a processor, or be missing."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from learner import intake
from learner.intake import Intake
from memory.embed import Embedding, EmbeddingError
from tests import running
from tests.running import ServiceThread, ask, wait_until


class SlowEmbedder(running.HashEmbedder):
    """Embeds nothing until it is let go, and may fail then."""

    go = threading.Event()
    fails = False

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        self.go.wait(20)
        if self.fails:
            raise EmbeddingError("no model")
        return super().embed(texts)


@pytest.fixture(autouse=True)
def embedder(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SlowEmbedder]]:
    monkeypatch.setattr(running, "HashEmbedder", SlowEmbedder)
    monkeypatch.setattr(SlowEmbedder, "go", threading.Event())
    yield SlowEmbedder
    SlowEmbedder.go.set()


def chat(service: ServiceThread, text: str) -> str:
    body = ask(text, metadata={"reference": "12"})
    answer = service.http.post("/v1/chat/completions", json=body)
    return str(answer.headers["x-denizen-episode-id"])


def shown(service: ServiceThread, episode: str) -> dict[str, Any]:
    return cast(dict[str, Any], service.http.get(f"/v1/episodes/{episode}").json())


def skills(service: ServiceThread, episodes: Sequence[str]) -> set[int | None]:
    return {shown(service, one)["skill"] for one in episodes}


def test_grades_are_stored_while_the_embedder_waits_and_skills_come_later(
    service: ServiceThread, embedder: type[SlowEmbedder]
) -> None:
    episodes = [chat(service, f"sum {n}") for n in range(20)]
    service.http.post("/v1/feedback", json={"episode_id": episodes[0], "value": 1})
    wait_until(lambda: all(shown(service, one)["outcome"] for one in episodes))
    wait_until(lambda: len(shown(service, episodes[0])["grades"]) == 2)
    assert skills(service, episodes) == {None}
    tasks = service.http.get("/v1/tasks").json()["data"]
    assert {task["skill_id"] for task in tasks} == {None}
    embedder.go.set()
    wait_until(lambda: skills(service, episodes) == {1})
    wait_until(lambda: len(service.http.get("/v1/skills").json()["data"]) == 1)
    tasks = service.http.get("/v1/tasks").json()["data"]
    assert tasks and {task["skill_id"] for task in tasks} == {1}


def test_an_embedder_that_fails_keeps_no_grade_back_and_is_asked_again(
    service: ServiceThread, embedder: type[SlowEmbedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "fails", True)
    embedder.go.set()
    episodes = [chat(service, f"sum {n}") for n in range(5)]
    wait_until(lambda: all(shown(service, one)["outcome"] for one in episodes))
    assert skills(service, episodes) == {None}
    monkeypatch.setattr(embedder, "fails", False)
    episodes.append(chat(service, "sum 9"))
    wait_until(lambda: skills(service, episodes) == {1})


async def test_after_work_that_took_long_it_rests_no_longer_than_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MAX_REST_S", 0.05)
    nothing = cast(Any, None)
    works = Intake(
        store=nothing,
        sorter=nothing,
        digestion=nothing,
        is_answering=lambda: True,
        on_digested=nothing,
    )
    began = time.monotonic()
    await asyncio.wait_for(works._rest(100.0), 5)
    assert time.monotonic() - began >= 0.05
