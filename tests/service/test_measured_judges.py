"""A judge earns the right to teach, or does not, by what the whole service finds out about it."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from assembly import jobs, parts
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, wait_until
from tests.service.quick_training import QuickTraining
from tests.service.test_judges import ASKED, KEY, chat, episode, judged, of, serving, status
from tests.service.test_learning import LEARNER, learn
from tests.tiny_model import VOCAB_SIZE

FENCED = re.compile(r"<<<(data-[0-9a-f]{16})\n\[\w+\]\n(.*?)\n\1>>>", re.DOTALL)
GRADERS = {"votes": 1, "min_pairs": 10, "min_canaries": 1, "max_calls_per_hour": 100_000}
ONE_STEP = LEARNER | {"steps_per_cycle": 1, "tasks_per_step": 8}
SUMS = {"task": "sums"}
NUMBERS = range(2, 16)


def product(question: str) -> int:
    left, right = question.removesuffix(" = ?").split(" * ")
    return int(left) * int(right)


def calculator(model: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """The base model is wrong about odd numbers, an adapter is always right."""
    question = str(messages[-1]["content"])
    if " * " not in question:
        return "hello"
    is_wrong = model == "base" and product(question) // 2 % 2
    return str(product(question) + bool(is_wrong))


def judge(*, knows: bool) -> Callable[[str, Sequence[Mapping[str, Any]]], str]:
    """One that can multiply, or takes right for wrong; the shorter of two equals is better."""

    def answer(_: str, messages: Sequence[Mapping[str, Any]]) -> str:
        question, said = (text for _, text in FENCED.findall(str(messages[1]["content"])))
        first = re.search(r"\d+", said)
        is_right = first is not None and int(first[0]) == product(question)
        score = (9 if is_right is knows else 1) - ("(" in said)
        ticket = re.search(r'"ticket": "([0-9a-f]+)"', str(messages[0]["content"]))
        assert ticket is not None
        return json.dumps({"ticket": ticket[1], "reason": "so it is", "score": score}) + "\n"

    return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in no time, and measure judges when a test says so."""
    monkeypatch.setattr(parts, "TrainingProcess", QuickTraining)
    monkeypatch.setattr(jobs, "TRUST_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(jobs, "PROBE_INTERVAL_S", 3_600.0)


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[FakeEngine]:
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=calculator) as engine:
        yield engine


@pytest.fixture
def teacher() -> Iterator[FakeEngine]:
    with FakeEngine(base_name="teacher-1", api_key=KEY, answer=judge(knows=True)) as teacher:
        yield teacher


def do(service: ServiceThread, job: Coroutine[Any, Any, Any]) -> None:
    """Do what the scheduler does from time to time."""
    loop = service.service._tasks[0].get_loop()
    asyncio.run_coroutine_threadsafe(job, loop).result(30)


def measure(service: ServiceThread) -> None:
    """Have the judge look at answers of known worth, and decide by them."""
    do(service, service.parts.judges.measure())
    wait_until(lambda: status(service)["waiting"] == status(service)["under_way"] == 0)
    do(service, service.parts.judges.measure())


def ask_for_products(service: ServiceThread, **metadata: Any) -> list[str]:
    """Have answers graded by a check."""
    return [
        chat(service, f"2 * {number} = ?", reference=str(2 * number), **SUMS, **metadata)
        for number in NUMBERS
    ]


def is_placed(service: ServiceThread, ids: Sequence[str]) -> bool:
    shown = [episode(service, one) for one in ids]
    return all(one["skill"] and one["outcome"] for one in shown)


def question_texts(teacher: FakeEngine) -> str:
    return json.dumps([request.body for request in teacher.requests])


def test_a_judge_that_agrees_with_the_checks_teaches_what_no_check_can_grade(
    engine, teacher, tmp_path
) -> None:
    with serving(
        tmp_path, engine, teacher=of(teacher), graders=GRADERS, learner=ONE_STEP
    ) as service:
        checked = ask_for_products(service)
        alone = chat(service, "3 * 4 = ?", **ASKED, **SUMS)
        wait_until(lambda: is_placed(service, [*checked, alone]) and bool(judged(service, alone)))
        assert episode(service, alone)["outcome"]["value"] is None
        assert not any(judged(service, one) for one in checked)

        measure(service)
        do(service, service.parts.judges.probe())
        do(service, service.parts.judges.measure())
        assert all(judged(service, one) for one in checked)
        [standing] = service.http.get("/v1/status").json()["judges"]
        assert (standing["num_pairs"], standing["is_trusted"]) == (len(checked), True)
        assert standing["canaries"]["judged"]["injected"] == 2
        # Checks go on deciding where they can, and the judge decides where nobody else does.
        wait_until(lambda: episode(service, alone)["outcome"]["value"] == 0.9)
        assert episode(service, alone)["outcome"]["provenance"] == "judge"
        outcomes = [episode(service, one)["outcome"] for one in checked]
        assert {outcome["provenance"] for outcome in outcomes} == {"check"}

        body = {"tasks": [task(number) for number in range(60)]}
        assert service.http.post("/v1/tasks", json=body).json()["imported"] == 60
        cycle = learn(service)
        assert cycle["state"] == "promoted", cycle["end_reason"]
        assert cycle["receipt"]["rollouts_by_provenance"]["judge"] > 0
        assert "advisory" not in cycle["receipt"]["skipped_rollouts"]
        assert "The reference, a right result" not in question_texts(teacher)


def task(number: int) -> dict[str, Any]:
    """Make a task that names the judge; every other one has a reference, which it is not shown."""
    prompt = f"{2 + number % 8} * {20 + number // 8} = ?"
    given = {"prompt": prompt, "grader": "judge", "task_key": SUMS["task"]}
    return given | ({"reference": str(product(prompt))} if number % 2 else {})


def test_a_judge_that_contradicts_the_checks_stays_an_adviser(engine, teacher, tmp_path) -> None:
    teacher.answer = judge(knows=False)
    graders = GRADERS | {"min_canaries": 0}
    with serving(
        tmp_path, engine, teacher=of(teacher), graders=graders, learner=ONE_STEP
    ) as service:
        checked = ask_for_products(service)
        alone = chat(service, "3 * 4 = ?", **ASKED, **SUMS)
        wait_until(lambda: is_placed(service, [*checked, alone]) and bool(judged(service, alone)))
        measure(service)
        [standing] = service.http.get("/v1/status").json()["judges"]
        assert (standing["num_pairs"], standing["is_trusted"]) == (len(checked), False)
        assert standing["agreement"]["agreement"] == 0.0
        wait_until(lambda: is_placed(service, [alone]))
        outcome = episode(service, alone)["outcome"]
        assert (outcome["value"], outcome["provenance"]) == (None, None)
        assert {episode(service, one)["outcome"]["provenance"] for one in checked} == {"check"}


def test_rollouts_that_only_an_adviser_grades_teach_nothing(engine, teacher, tmp_path) -> None:
    with serving(
        tmp_path, engine, teacher=of(teacher), graders=GRADERS, learner=ONE_STEP
    ) as service:
        body = {"tasks": [task(number) for number in range(60)]}
        service.http.post("/v1/tasks", json=body)
        cycle = learn(service)
        assert cycle["state"] == "no_signal"
        assert set(cycle["receipt"]["skipped_rollouts"]) == {"advisory"}
        assert set(cycle["receipt"]["rollouts_by_provenance"]) == {"none"}


@pytest.mark.parametrize(("mode", "is_used"), [("all", True), ("asked", False), ("off", False)])
def test_answers_of_known_worth_are_shown_to_a_judge_only_where_it_is_in_use(
    engine, teacher, tmp_path, mode, is_used
) -> None:
    graders = GRADERS | {"judge": mode}
    with serving(tmp_path, engine, teacher=of(teacher), graders=graders) as service:
        learned = ask_for_products(service)
        body = {"messages": [{"role": "user", "content": "2 * 3 = ?"}], "model": "denizen"}
        kept = service.http.post(
            "/v1/chat/completions",
            json=body | {"metadata": SUMS | {"reference": "6"}},
            headers={"x-denizen-learn": "off"},
        ).headers["x-denizen-episode-id"]
        wait_until(lambda: is_placed(service, [*learned, kept]))
        measure(service)
        assert [bool(judged(service, one)) for one in learned] == [is_used] * len(learned)
        assert judged(service, kept) == []


def test_where_no_judge_is_set_up_no_task_may_name_one(engine, tmp_path) -> None:
    with serving(tmp_path, engine, graders={"judge": "off"}) as service:
        response = service.http.post("/v1/tasks", json={"tasks": [task(1)]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "grader")
