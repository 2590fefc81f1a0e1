"""A judge: a chat model that scores one answer by a rubric, several times.

The median of the votes counts where most of them agree with it; else the judge abstains. Length is
controlled for in two places and in no formula: the rubric says that it is no merit, and each grade
keeps the answer's length, so that whoever measures the judge finds out whether it follows. It does
not know who is judged, or whether its grades may teach.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from graders import votes as voting
from graders.judge_prompt import Question, prompt_version, score_question
from graders.rubrics import Rubric, default_rubric
from graders.types import Answer
from graders.verdicts import ScoreVerdict, read_score
from graders.votes import Asks, Vote, VotesConfig
from memory.fences import ControlTokens
from memory.types import Grade, GradeKind

JUDGE = "judge"
"""What ``metadata.grader`` calls it."""
AGREEMENT = 0.2
"""How far from the median a vote agrees with it: two of ten points."""
SPLIT = "split"  # the votes have no common middle
MAX_CACHED = 4_096


class GradeCache:
    """What was judged, by content: the same is not asked twice.

    Only scores are kept; what failed may succeed.
    """

    def __init__(self, at_most: int = MAX_CACHED) -> None:
        self._at_most = at_most
        self._grades: OrderedDict[str, Grade] = OrderedDict()

    def get(self, key: str) -> Grade | None:
        """Return a grade that was kept."""
        grade = self._grades.get(key)
        if grade is not None:
            self._grades.move_to_end(key)
        return grade

    def put(self, key: str, grade: Grade) -> None:
        """Keep a grade in the place of the one that was used least recently."""
        self._grades[key] = grade
        if len(self._grades) > self._at_most:
            self._grades.popitem(last=False)

    def clear(self) -> None:
        """Forget all: explanations say what answers said, which may have been erased."""
        self._grades.clear()


class Judge:
    """Scores one answer by a rubric; a ``Grader``.

    Args:
        teacher: the model behind it.
        rubric: a skill's own; None: the default one, by the task.
        has_reference: whether it is shown the answers' references, which makes it another version.
        config: how often it is asked, and how.
        control_tokens: the literals that the model's tokenizer reads as tokens.
        cache: what was judged before.
    """

    name = JUDGE
    kind = GradeKind.JUDGE

    def __init__(
        self,
        teacher: Asks,
        *,
        rubric: Rubric | None = None,
        has_reference: bool = False,
        config: VotesConfig | None = None,
        control_tokens: ControlTokens | None = None,
        cache: GradeCache | None = None,
    ) -> None:
        self.rubric = _seen(rubric, has_reference) or default_rubric(has_reference=has_reference)
        self._has_reference = has_reference
        self._teacher = teacher
        self._config = config or VotesConfig()
        self._control_tokens = control_tokens or ControlTokens()
        self._cache = cache or GradeCache(0)

    @property
    def version(self) -> str:
        """Name all that a grade depends on: prompt, rubric, votes, model."""
        return judge_version("score", self.rubric, self._config, self._teacher.name)

    async def grade(self, answer: Answer) -> Grade:
        """Score an answer; without a readable majority that agrees there is no value."""
        if not self._has_reference:
            answer = replace(answer, reference=None)
        key = content_key(self.version, self.rubric, answer)
        if (known := self._cache.get(key)) is not None:
            return known

        def ask(_: int) -> Question:
            return score_question(answer, self.rubric, self._control_tokens)

        def read(text: str, question: Question) -> ScoreVerdict:
            return read_score(text, ticket=question.ticket)

        votes = await voting.cast(self._teacher, self._config, ask, read)
        grade = self._merge(votes, answer)
        if grade.value is not None:
            self._cache.put(key, grade)
        return grade

    def _merge(self, votes: Sequence[Vote[ScoreVerdict]], answer: Answer) -> Grade:
        verdicts = voting.readable(votes)
        values = [verdict.value for verdict in verdicts if verdict.value is not None]
        evidence = evidence_of(votes, self._config) | {
            "scores": [None if v.verdict is None else v.verdict.value for v in votes],
            "answer_characters": len(answer.text),
        }
        if not voting.has_quorum(votes):
            return self._unscored(voting.why_unread(votes), evidence)
        middle = median(values)
        near = [one for one in verdicts if _agrees(one, middle)]
        if 2 * len(near) <= len(values):
            return self._unscored(SPLIT, evidence)
        return Grade(
            kind=self.kind,
            grader=self.name,
            version=self.version,
            value=middle,
            explanation=min(near, key=lambda one: _distance(one, middle)).explanation,
            evidence=evidence,
        )

    def _unscored(self, reason: str, evidence: Mapping[str, Any]) -> Grade:
        return Grade(
            kind=self.kind,
            grader=self.name,
            version=self.version,
            value=None,
            unscored_reason=reason,
            evidence=evidence,
        )


def _seen(rubric: Rubric | None, has_reference: bool) -> Rubric | None:
    """Give a skill's rubric another name where a reference stands beside it: an easier task."""
    if rubric is None or not has_reference:
        return rubric
    return replace(rubric, version=f"{rubric.version}+reference")


def judge_version(kind: str, rubric: Rubric, config: VotesConfig, model: str) -> str:
    """Return ``score.1.1/rubric_task.1/3x0.7/MODEL``."""
    how = f"{config.votes}x{config.temperature:g}"
    return f"{prompt_version(kind)}/{rubric.version}/{how}/{model}"


def evidence_of(votes: Sequence[Vote[Any]], config: VotesConfig) -> dict[str, Any]:
    """Return what a judge's grade rests on, whatever was asked."""
    failure = voting.failure_of(votes)
    return {
        "seeds": [vote.seed for vote in votes],
        "temperature": config.temperature,
        "unread": [vote.reason for vote in votes],
        "may_pass": failure is not None and not voting.has_quorum(votes),
    }


def content_key(version: str, rubric: Rubric, answer: Answer) -> str:
    """Name a judgement by all that enters it."""
    told = [list(answer.messages), answer.message, answer.reference, rubric.text, version]
    canonical = json.dumps(told, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _distance(verdict: ScoreVerdict, middle: float) -> float:
    return float("inf") if verdict.value is None else abs(verdict.value - middle)


def _agrees(verdict: ScoreVerdict, middle: float) -> bool:
    return _distance(verdict, middle) <= AGREEMENT + 1e-9
