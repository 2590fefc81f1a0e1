"""A store with judged answers in a skill, and scripted judges."""

from collections.abc import Callable, Sequence
from typing import Any

from graders.outcome import merge
from graders.types import Answer
from memory.database import Transaction
from memory.grade_rows import set_grades
from memory.skill_writes import save_skill
from memory.store import Store
from memory.types import Grade, GradeKind, task_text
from tests import records

SKILL = 7


def found_skill(store: Store, skill_id: int = SKILL, **fields: Any) -> None:
    given = {"title": "sums", "tenant": None, "task_key": None, "embedder": "hash"}
    given |= {"centroid_D": None, "count": 0}
    store.database.write(lambda db: save_skill(db, skill_id=skill_id, **given | fields))


def judged(value: float | None, **fields: Any) -> Grade:
    given: dict[str, Any] = {"kind": GradeKind.JUDGE, "grader": "judge", "version": "1"}
    reason = None if value is not None else "judge_timeout"
    return Grade(**given | {"value": value, "unscored_reason": reason} | fields)


def checked(value: float, kind: GradeKind = GradeKind.CHECK) -> Grade:
    return Grade(kind=kind, grader=f"a {kind}", version="1", value=value)


async def record(
    store: Store, number: int, grades: Sequence[Grade], *, text: str = "12", **fields: Any
) -> str:
    """Record an answer with its grades; an advisory judge gives it no outcome."""
    id = f"ep_{number:04d}"
    its = records.episode(id=id, **{"skill_id": SKILL} | fields)
    answer = records.call(
        id=f"c{number}", episode_id=id, message={"role": "assistant", "content": text}
    )
    await store.episodes.record(its, [answer], [None])

    def write(db: Transaction) -> None:
        set_grades(db, its, grades, merge(grades))

    await store.database.write_async(write)
    return id


class ScriptedJudge:
    """Scores by a rule over the answer's text and the question."""

    name, version, kind = "judge", "1", GradeKind.JUDGE

    def __init__(self, rule: Callable[[str, str], float | None]) -> None:
        self._rule = rule
        self.asked: list[Answer] = []

    async def grade(self, answer: Answer) -> Grade:
        self.asked.append(answer)
        return judged(self._rule(answer.text, task_text(answer.messages)))


class ScriptedRanker:
    """Ranks two answers in both orders by a rule that sees them as shown; a flip is a tie."""

    name, version = "judge_ranking", "1"

    def __init__(self, first_wins: Callable[[str, str], bool]) -> None:
        self._first_wins = first_wins

    async def rank(self, answers: Sequence[Answer]) -> list[Grade]:
        orders, ranked = [[0, 1], [1, 0]], []
        for order in orders:
            shown = [answers[place].text for place in order]
            ranked.append(order if self._first_wins(*shown) else order[::-1])
        winners = {one[0] for one in ranked}
        evidence = {"orders": orders, "ranked": ranked}
        fields = {"grader": self.name, "evidence": evidence}
        if len(winners) == 2:
            return [judged(None, **fields | {"unscored_reason": "tie"}) for _ in answers]
        return [judged(float(place in winners), **fields) for place in (0, 1)]
