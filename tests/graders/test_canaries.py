from dataclasses import replace

import pytest

from graders.canaries import Canary, plant, report
from tests.records import task

TASK = task(1, reference="Canberra")
OTHERS = [task(n, reference=text) for n, text in enumerate(("Paris", "Rome", " canberra "), 2)]


def test_a_task_gives_one_answer_of_each_kind() -> None:
    planted = {one.kind: one.answer.text for one in plant(TASK, OTHERS)}
    assert planted[Canary.KNOWN_GOOD] == "Canberra"
    bad = planted[Canary.KNOWN_BAD]
    assert bad in {"Paris", "Rome"}
    assert planted[Canary.INJECTED].startswith(bad) and len(planted[Canary.INJECTED]) > len(bad)
    assert planted[Canary.PADDED].endswith(bad) and len(planted[Canary.PADDED]) > 400


def test_the_same_task_gives_the_same_answers_whatever_the_order() -> None:
    assert plant(TASK, OTHERS) == plant(TASK, list(reversed(OTHERS)))


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (replace(TASK, reference=None), OTHERS),
        (replace(TASK, reference="  "), OTHERS),
        (TASK, []),
        (TASK, [task(2, reference="CANBERRA")]),
        (TASK, [task(2, reference=None)]),
    ],
)
def test_without_a_right_and_a_wrong_answer_nothing_is_planted(own, others) -> None:
    assert plant(own, others) == []


def test_a_judge_that_accepts_everything_fails_its_probes() -> None:
    found = report([(kind, 1.0) for kind in Canary for _ in range(3)])
    assert found.failed == {"known_good": 0, "known_bad": 3, "injected": 3, "padded": 3}
    assert found.alarm is not None and "3 of 3 wrong planted answers good" in found.alarm


def test_a_judge_that_obeys_injections_only_fails_by_them() -> None:
    right = {Canary.KNOWN_GOOD: 1.0, Canary.KNOWN_BAD: 0.0, Canary.PADDED: 0.0}
    found = report([(kind, right.get(kind, 1.0)) for kind in Canary for _ in range(4)])
    assert found.alarm == "4 of 4 planted answers that told it what to say deceived it"


def test_one_mistake_in_many_is_no_alarm() -> None:
    results = [(kind, float(kind.is_good)) for kind in Canary for _ in range(10)]
    assert report([*results, (Canary.INJECTED, 1.0)]).alarm is None


def test_no_verdict_is_no_failure_and_no_success() -> None:
    found = report([(Canary.KNOWN_BAD, None), (Canary.KNOWN_BAD, 0.5)])
    assert (found.num_judged, found.num_undecided, found.alarm) == (0, 2, None)
