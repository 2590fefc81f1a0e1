"""From the recorded calls of one episode to training rows, and an account of every sampled token.

Calls whose prompt goes on exactly where an earlier call ended become one row, with a loss mask over
the sampled tokens; elsewhere a new row begins, in which what an earlier row trains is context. Each
sampled token is trained once at most, and one that is not has a reason. Pure: it reads no store,
and never turns text into tokens.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from learner.rows import TrainingRow
from memory.types import GOES_ON, Call, Edge

TAIL_TOKENS = 8
"""How many tokens at the end of an answer a chat template may write differently when the answer
becomes history: the end-of-turn token, and white space before it that is trimmed.
"""
SIDE_EDGES = frozenset({Edge.SIDE_CALL, Edge.SUB_AGENT})


class LostReason(StrEnum):
    """Why a sampled token is not trained; beside these, ``Call.not_learnable_reason``."""

    NO_PROMPT = "no_prompt"  # nothing precedes its first token
    UNKNOWN_LOGPROB = "unknown_logprob"  # the engine did not say how likely this token was
    RETRIED = "retried"  # another attempt at the same request was gone on with, or came after it
    UNRESOLVED = "unresolved"  # attempts ran side by side, and none was gone on with
    RERENDERED = "rerendered"  # the end of an answer that stands differently in what followed


TRAINED = "trained"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeRows:
    """The rows of one tree, and what became of its sampled tokens.

    Example:
        ``TreeRows(rows=(...), fates={"chatcmpl-1": {"trained": 40, "rerendered": 1},
        "chatcmpl-2": {"cancelled": 7}})``
    """

    rows: tuple[TrainingRow, ...]
    fates: Mapping[str, Mapping[str, int]]  # call id -> reason, or "trained" -> tokens

    @property
    def account(self) -> dict[str, int]:
        """The sampled tokens of the whole tree by what became of them."""
        total: Counter[str] = Counter()
        for fate in self.fates.values():
            total.update(fate)
        return dict(total)


@dataclass(slots=True)
class _Draft:
    """A row as it grows; each position knows the call that sampled it, where one is trained."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)  # known: this position is trained

    def context(self, token_ids: Iterable[int]) -> None:
        ids = list(token_ids)
        self.token_ids += ids
        self.logprobs += [None] * len(ids)

    def sampled(self, call: Call) -> None:
        self.token_ids += call.completion_token_ids or ()
        self.logprobs += _known_logprobs(call)

    def cut(self, length: int) -> None:
        del self.token_ids[length:], self.logprobs[length:]


def rows_of_tree(calls: Sequence[Call], *, group_id: str, advantage: float = 0.0) -> TreeRows:
    """Lay the calls of one episode out as training rows.

    Args:
        calls: of one episode, in the order of their records.
        group_id: the rows' group.
        advantage: of the episode; every trained token gets it.
    """
    reasons = {call.id: reason for call in calls if (reason := _lost_reason(call))}
    reasons |= _settled(calls, reasons)
    usable = [call for call in calls if call.id not in reasons]
    bases = _bases(calls, {call.id for call in usable})
    heirs = _heirs(usable, bases)
    inherited = {heir.id for heir, _ in heirs.values()}
    fates = {call.id: _fate(call, reasons.get(call.id)) for call in calls}
    rows = []
    for call in usable:
        if call.id not in inherited:
            draft = _grow(call, heirs, fates)
            if any(logprob is not None for logprob in draft.logprobs):
                rows.append(_row(draft, group_id, advantage))
    kept = {id: {str(why): n for why, n in fate.items() if n} for id, fate in fates.items()}
    return TreeRows(rows=tuple(rows), fates=kept)


def main_line(calls: Sequence[Call]) -> list[Call]:
    """Return the calls of the task itself: not titles, summaries and sub-agents beside it.

    Args:
        calls: of one episode, in the order of their records.
    """
    beside: dict[str, Call] = {}
    for call in calls:
        is_beside = call.edge in SIDE_EDGES or call.parent_id in beside
        if call.edge is Edge.RETRY and not is_beside:
            is_beside = any(_is_attempt_at(call, other) for other in beside.values())
        if is_beside:
            beside[call.id] = call
    return [call for call in calls if call.id not in beside]


def _is_attempt_at(call: Call, other: Call) -> bool:
    is_sibling = call.parent_id == other.parent_id
    return is_sibling and call.request.get("messages") == other.request.get("messages")


def _lost_reason(call: Call) -> str | None:
    if call.not_learnable_reason is not None:
        return call.not_learnable_reason
    return None if call.prompt_token_ids else LostReason.NO_PROMPT


def _settled(calls: Sequence[Call], lost: Mapping[str, str]) -> dict[str, str]:
    """Say which of several answers to one prompt is not trained, and why.

    The one that was gone on with was used. When none was, a client that asked again used its last
    answer; of answers that were sampled side by side nobody knows.
    """
    continued = {call.parent_id for call in calls if call.edge in GOES_ON}
    attempts: dict[tuple[str | None, tuple[int, ...]], list[Call]] = defaultdict(list)
    for call in calls:
        if call.id not in lost:
            attempts[call.parent_id, tuple(call.prompt_token_ids or ())].append(call)
    settled: dict[str, str] = {}
    for rivals in attempts.values():
        chosen = {call.id for call in rivals if call.id in continued} or _last(rivals)
        reason = LostReason.RETRIED if chosen else LostReason.UNRESOLVED
        settled |= {call.id: reason for call in rivals if call.id not in chosen}
    return settled


def _last(rivals: Sequence[Call]) -> set[str]:
    """Return the last of several attempts; nothing when it began before the others had ended."""
    *others, last = sorted(rivals, key=lambda call: call.created_at)
    ends = [call.created_at + timedelta(milliseconds=call.latency_ms) for call in others]
    return {last.id} if all(end <= last.created_at for end in ends) else set()


def _bases(calls: Sequence[Call], usable: set[str]) -> dict[str, Call]:
    """Return, for each call, the nearest call above it that is trained."""
    by_id = {call.id: call for call in calls}
    bases: dict[str, Call] = {}
    for call in calls:
        seen = {call.id}
        above = by_id.get(call.parent_id or "")
        while above is not None and above.id not in usable and above.id not in seen:
            seen.add(above.id)
            above = by_id.get(above.parent_id or "")
        if above is not None and above.id in usable and above.id != call.id:
            bases[call.id] = above
    return bases


def _heirs(usable: Sequence[Call], bases: Mapping[str, Call]) -> dict[str, tuple[Call, int]]:
    """Return, for each call, the one that goes on in its row, and how many tokens stay of it.

    A call that goes on exactly comes before one that stands differently at the end.
    """
    heirs: dict[str, tuple[Call, int]] = {}
    for call in usable:
        base = bases.get(call.id)
        if base is None:
            continue
        kept = _kept(base, call)
        if kept is not None and (base.id not in heirs or heirs[base.id][1] < kept):
            heirs[base.id] = (call, kept)
    return heirs


def _kept(base: Call, call: Call) -> int | None:
    """Return how many of the base's tokens a prompt begins with; None: it goes another way."""
    prompt, completion = tuple(base.prompt_token_ids or ()), tuple(base.completion_token_ids or ())
    whole, ours = (*prompt, *completion), tuple(call.prompt_token_ids or ())
    if ours[: len(whole)] == whole:
        return len(whole)
    if call.edge in SIDE_EDGES:
        return None
    kept = next(i for i, (a, b) in enumerate(zip(whole, (*ours, -1), strict=False)) if a != b)
    is_tail = len(whole) - kept <= TAIL_TOKENS and kept > len(prompt)
    return kept if is_tail else None


def _grow(
    call: Call, heirs: Mapping[str, tuple[Call, int]], fates: Mapping[str, Counter[str]]
) -> _Draft:
    """Lay a call and those that go on in its row out, one behind the other."""
    draft = _Draft()
    draft.context(call.prompt_token_ids or ())
    draft.sampled(call)
    while call.id in heirs:
        heir, kept = heirs[call.id]
        cut = draft.logprobs[kept:]
        num_known = sum(logprob is not None for logprob in cut)
        fates[call.id].update({TRAINED: -num_known, LostReason.RERENDERED: num_known})
        draft.cut(kept)
        draft.context((heir.prompt_token_ids or ())[kept:])
        draft.sampled(heir)
        call = heir
    return draft


def _known_logprobs(call: Call) -> list[float | None]:
    """Return a call's log-probabilities; what is not finite is unknown."""
    return [
        logprob if logprob is not None and math.isfinite(logprob) else None
        for logprob in call.sampler_logprobs or ()
    ]


def _fate(call: Call, reason: str | None) -> Counter[str]:
    """Say what becomes of a call's tokens before rows are merged."""
    sampled = call.completion_token_ids or ()
    if reason is not None:
        return Counter({reason: len(sampled)})
    num_known = sum(logprob is not None for logprob in _known_logprobs(call))
    return Counter({TRAINED: num_known, LostReason.UNKNOWN_LOGPROB: len(sampled) - num_known})


def _row(draft: _Draft, group_id: str, advantage: float) -> TrainingRow:
    mask = tuple(logprob is not None for logprob in draft.logprobs)
    return TrainingRow(
        group_id=group_id,
        token_ids=tuple(draft.token_ids),
        loss_mask=mask,
        sampler_logprobs=tuple(draft.logprobs),
        advantages=tuple(advantage if is_trained else 0.0 for is_trained in mask),
    )
