"""What happened next: the turns of a recorded episode, each with what came after it, as text.

A later message shows what a turn led to: a tool's result, what the user answered, how it went on;
so does how the episode ended, as checks and people say. What a judge has made of it stays out: a
judge must not be shown its own verdict as evidence. Pure: it reads no store, and does not know what
is done with the turns.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graders.judge_prompt import said
from learner.trees import main_line
from memory.types import Call, CallStatus, Edge, Feedback, GradeKind, Message, Outcome

NUM_FIRST, NUM_LAST = 4, 2
"""Messages after the turn that are told: the turn itself and its nearest consequences, and the end
of the work."""
MAX_CHARACTERS = 1_500
"""Of each. All of it is 9,000 characters at most, some 2,500 tokens beside a prefix of
``max_row_tokens``."""
GOES_ON = frozenset({Edge.CONTINUATION, Edge.RERENDERED, Edge.RETRY})
"""The edges below a turn by which its own conversation goes on; a fork's goes another way."""
FREE_CHOICES = frozenset({None, "auto", "none"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    r"""A turn that was taken, and what came of it.

    Example:
        ``Turn(call=Call(id="chatcmpl-8c1", …), followed="[assistant]\ntool calls: […]\n\n[tool]
        \n2 tests failed\n\n[how it ended]\ngraded 0.00 by a check (1 is best)")``
    """

    call: Call
    followed: str


def turns_of(
    calls: Sequence[Call], outcome: Outcome | None, feedback: Sequence[Feedback]
) -> list[Turn]:
    """Return the turns of the task itself that could have been taken in another way.

    Left out are calls that may not teach or whose answer's form was forced, calls beside the task
    (titles, sub-agents), and turns of which nothing is known that came after.

    Args:
        calls: of one episode, in the order of their records; their tokens are not looked at.
        outcome: of the episode; None: it has none yet.
        feedback: what people said of it.
    """
    line = main_line(calls)
    below: dict[str, list[Call]] = defaultdict(list)
    for call in line:
        if call.parent_id is not None and call.edge in GOES_ON:
            below[call.parent_id].append(call)
    ending = _ending(outcome, feedback)
    turns = []
    for call in line:
        later = _later(call, below)
        if _may_teach(call) and call.message is not None and (later or ending):
            parts = [said([message]) for message in (call.message, *later)]
            turns.append(Turn(call=call, followed="\n\n".join([*_shortened(parts), *ending])))
    return turns


def _may_teach(call: Call) -> bool:
    is_kept = not call.learn or call.withheld is not None
    return call.status is CallStatus.OK and not is_kept and _is_free(call.request)


def _is_free(request: Mapping[str, Any]) -> bool:
    """Say whether an answer could have any form: tokens alone do not repeat what forced it."""
    choice, form = request.get("tool_choice"), request.get("response_format") or {}
    is_forced = isinstance(choice, dict) or choice not in FREE_CHOICES
    is_chat = bool(request.get("messages")) and request.get("dialect") != "completions"
    return is_chat and not is_forced and form.get("type", "text") == "text"


def _later(call: Call, below: Mapping[str, Sequence[Call]]) -> list[Message]:
    """Return the messages after a turn, along the attempts that were gone on with."""
    later: list[Message] = []
    while attempts := below.get(call.id, ()):
        after = next((one for one in reversed(attempts) if one.id in below), attempts[-1])
        later += _messages(after)[len(_messages(call)) + 1 :]  # after what was asked, and the turn
        later += [] if after.message is None else [after.message]
        call = after
    return later


def _messages(call: Call) -> Sequence[Message]:
    return call.request.get("messages") or ()


def _shortened(parts: Sequence[str]) -> list[str]:
    """Leave out the middle of many parts, and of each long one."""
    num_left_out = len(parts) - NUM_FIRST - NUM_LAST
    if num_left_out > 0:
        gap = f"[… {num_left_out} messages …]"
        parts = [*parts[:NUM_FIRST], gap, *parts[-NUM_LAST:]]
    return [_cut(part) for part in parts]


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def _ending(outcome: Outcome | None, feedback: Sequence[Feedback]) -> list[str]:
    """Return what checks and people say of the whole; nothing where they say nothing."""
    told = []
    by = None if outcome is None or outcome.value is None else outcome.provenance
    if outcome is not None and by in {GradeKind.CHECK, GradeKind.PERSON}:
        told.append(f"graded {outcome.value:.2f} by a {by} (1 is best)")
    for one in feedback:
        told += [] if one.comment is None else [f"a person said: {one.comment}"]
        told += [] if one.correction is None else [f"it should have been: {one.correction}"]
    return [_cut("\n".join(["[how it ended]", *told]))] if told else []
