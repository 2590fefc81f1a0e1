"""A judge that compares: the answers of one group are ordered together, several times.

They are shown in other orders each time, the second time in the reverse of the first, so that
every answer of a pair was once the earlier and once the later. A pair counts where most votes
prefer the same answer whichever stands first: what a judge says of seats instead of answers
decides nothing. It does not know where groups come from, nor whether its grades may teach.

Its own agreement with checks and people cannot be measured: nobody else orders its groups. What
speaks for it is the agreement of the same model's scores by the same rubric, ``scored_as``, since
to compare is the easier task; that it compares as well as it scores is an assumption.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from graders import votes as voting
from graders.judge import evidence_of, judge_version
from graders.judge_prompt import Question, prompt_version, ranking_question
from graders.rubrics import Rubric, default_rubric
from graders.types import Answer
from graders.verdicts import RankingVerdict, read_ranking
from graders.votes import Asks, VotesConfig
from memory.fences import ControlTokens
from memory.types import Grade, GradeKind

RANKING = "judge_ranking"
TIE = "tie"  # no comparison of this answer with another held in both orders
MAX_GROUP = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Ballot:
    """One vote on a group, by the answers' places in it.

    Example:
        ``Ballot(shown=(2, 0, 1), ranked=(0, 2, 1))``
    """

    shown: Sequence[int]
    ranked: Sequence[int]  # the best first


class RankingJudge:
    """Orders the answers of one group.

    Args:
        teacher: the model behind it.
        rubric: a skill's own; None: the default one, by the task.
        has_reference: for the default rubric: whether the answers have a reference.
        config: how often it is asked, and how; two votes at least.
        control_tokens: the literals that the model's tokenizer reads as tokens.
        seed: of the orders.
    """

    name = RANKING
    kind = GradeKind.JUDGE

    def __init__(
        self,
        teacher: Asks,
        *,
        rubric: Rubric | None = None,
        has_reference: bool = False,
        config: VotesConfig | None = None,
        control_tokens: ControlTokens | None = None,
        seed: int = 0,
    ) -> None:
        self.rubric = rubric or default_rubric(has_reference=has_reference)
        self._teacher = teacher
        self._config = config or VotesConfig()
        if self._config.votes < 2:
            raise ValueError("a ranking needs two votes at least: one for either order")
        self._control_tokens = control_tokens or ControlTokens()
        self._seed = seed

    @property
    def version(self) -> str:
        """Name all that a grade depends on: prompt, rubric, votes, model."""
        return judge_version("ranking", self.rubric, self._config, self._teacher.name)

    async def rank(self, answers: Sequence[Answer], *, followed: str | None = None) -> list[Grade]:
        """Return a grade for each answer, in their order.

        The value is the share of the other answers that it beats; a tie counts half. An answer
        none of whose comparisons holds has no value.

        Args:
            answers: the group.
            followed: what happened next in the record, see ``ranking_question``.

        Raises:
            ValueError: fewer than 2 answers, or more than 32.
        """
        if not 2 <= len(answers) <= MAX_GROUP:
            raise ValueError(f"a group of {len(answers)} cannot be ranked: 2 to {MAX_GROUP}")
        orders = shown_orders(len(answers), self._config.votes, self._seed)

        def ask(number: int) -> Question:
            shown = [answers[place] for place in orders[number]]
            return ranking_question(shown, self.rubric, self._control_tokens, followed=followed)

        def read(text: str, question: Question) -> "_Placed":
            verdict = read_ranking(text, ticket=question.ticket, ids=question.ids)
            return _Placed(verdict=verdict, ids=question.ids)

        votes = await voting.cast(self._teacher, self._config, ask, read)
        evidence = evidence_of(votes, self._config) | {"orders": [list(one) for one in orders]}
        if not voting.has_quorum(votes):
            reason = voting.why_unread(votes)
            return [self._grade(None, reason=reason, evidence=evidence) for _ in answers]
        ballots = [
            _ballot(vote.verdict, order)
            for vote, order in zip(votes, orders, strict=True)
            if vote.verdict is not None
        ]
        evidence["ranked"] = [list(ballot.ranked) for ballot in ballots]
        values = win_shares(ballots, len(answers))
        explanation = voting.readable(votes)[0].explanation
        return [
            self._grade(
                value,
                reason=None if value is not None else TIE,
                evidence=evidence | {"place": place, "answer_characters": len(answer.text)},
                explanation=explanation,
            )
            for place, (value, answer) in enumerate(zip(values, answers, strict=True))
        ]

    def _grade(
        self,
        value: float | None,
        *,
        reason: str | None,
        evidence: Mapping[str, Any],
        explanation: str = "",
    ) -> Grade:
        return Grade(
            kind=self.kind,
            grader=self.name,
            version=self.version,
            value=value,
            unscored_reason=reason,
            explanation=explanation,
            evidence=evidence,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    """A verdict with the ids of its own question, by which it is matched with answers."""

    verdict: RankingVerdict
    ids: Sequence[str]

    @property
    def unread(self) -> Any:
        return self.verdict.unread

    @property
    def explanation(self) -> str:
        return self.verdict.explanation


def _ballot(placed: _Placed, shown: Sequence[int]) -> Ballot:
    answer_of = dict(zip(placed.ids, shown, strict=True))
    ranked = tuple(answer_of[id] for id in placed.verdict.ids or ())
    return Ballot(shown=tuple(shown), ranked=ranked)


def scored_as(version: str) -> str | None:
    """Return the version of the judge that scores by the same model, rubric and votes.

    None for a version that is none of this prompt's: of that nothing is known.
    """
    prompt, _, how = version.partition("/")
    return f"{prompt_version('score')}/{how}" if prompt == prompt_version("ranking") else None


def ranked_as(version: str) -> str:
    """Return the version of the ranking judge beside a judge that scores."""
    return f"{prompt_version('ranking')}/{version.partition('/')[2]}"


def shown_orders(num_answers: int, num_votes: int, seed: int) -> list[tuple[int, ...]]:
    """Return the order of each vote; each odd one (from 0) is the reverse of the one before it."""
    rng, orders = random.Random(seed), list[tuple[int, ...]]()
    while len(orders) < num_votes:
        order = tuple(rng.sample(range(num_answers), num_answers))
        orders += [order, order[::-1]]
    return orders[:num_votes]


def win_shares(ballots: Sequence[Ballot], num_answers: int) -> list[float | None]:
    """Return of each answer which share of the others it beats; a tie counts half.

    That is Copeland's score over n - 1, of pairwise majorities that have to hold in both orders.

    Returns:
        [num_answers]; None for an answer whose every pair is a tie: nothing was found out.
    """
    points, num_decided = [0.0] * num_answers, [0] * num_answers
    for one, other in combinations(range(num_answers), 2):
        winner = preferred(ballots, one, other)
        if winner is None:
            points[one] += 0.5
            points[other] += 0.5
            continue
        points[winner] += 1.0
        num_decided[one] += 1
        num_decided[other] += 1
    return [
        won / (num_answers - 1) if decided else None
        for won, decided in zip(points, num_decided, strict=True)
    ]


def preferred(ballots: Sequence[Ballot], one: int, other: int) -> int | None:
    """Return which of two answers more than half of the votes prefer, whichever stands first.

    None where the majority is another in the other order, or where there is none.
    """
    earlier = [ballot for ballot in ballots if _before(ballot.shown, one, other)]
    later = [ballot for ballot in ballots if not _before(ballot.shown, one, other)]
    if not earlier or not later:
        return None
    for candidate, rival in ((one, other), (other, one)):
        if all(
            2 * sum(_before(ballot.ranked, candidate, rival) for ballot in part) > len(part)
            for part in (earlier, later)
        ):
            return candidate
    return None


def _before(order: Sequence[int], one: int, other: int) -> bool:
    return order.index(one) < order.index(other)
