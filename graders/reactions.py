"""What the user, or the world, did after an answer, read by rules from what the next call was told.

Evidence that is shown beside an answer; it never decides an outcome: a person who asks again may
have changed their mind, and a "thanks" may be manners. The rules read English words; of other
languages they see repetition, edits and failed tools only. It does not know how grades are merged.
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memory.types import Call, Edge, Grade, GradeKind, Message, message_text

NAME, VERSION = "reaction", "1"
READ_CHARACTERS = 2_000  # of each message; a reaction stands at the beginning
REPEATED = 0.85  # share of common words, or of equal characters, from which it is the same question
EDITED = 0.6  # share of equal characters from which a text is an edit of another
LEAST_EDITED = 40  # characters; shorter texts are alike by accident

_SAYS_WRONG = re.compile(
    r"""\b(?:(?:that|this|it|the[ ]answer|your[ ]answer|you)(?:['’](?:s|re)|[ ](?:is|are|was))?
            [ ](?:still[ ])?(?:wrong|incorrect|mistaken
                |not[ ](?:right|correct|true|what[ ]i[ ](?:asked|meant|wanted)))
        |(?:does[ ]not|doesn['’]t|did[ ]not|didn['’]t)[ ]work
        |(?:isn['’]t|is[ ]not|wasn['’]t)[ ]
            (?:right|correct|true|what[ ]i[ ](?:asked|meant|wanted))
        |try[ ]again|wrong[ ]answer)\b
        |^(?:no|nope|wrong|incorrect)\b(?![ ](?:problem|worries|need|more|further|thanks))""",
    re.IGNORECASE | re.VERBOSE,
)
_ACCEPTS = re.compile(
    r"""^(?:thanks|thank[ ]you|thx|great|perfect|excellent|awesome|nice
        |(?:that|it)(?:['’]s|[ ]is)?[ ](?:right|correct|works?|perfect|great|it)
        |works|exactly|correct|yes,?[ ](?:that|exactly))\b""",
    re.IGNORECASE | re.VERBOSE,
)
_BUT = re.compile(r"\b(?:but|however|except|though|although|instead)\b", re.IGNORECASE)
_FAILED = re.compile(
    r"^\W*(?:error|traceback|exception|fatal|failed|command not found|permission denied)\b"
    r"|^Traceback \(most recent call last\)|\bexit(?:ed with)? (?:code|status) [1-9]",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reaction:
    """One sign of what an answer was worth."""

    rule: str
    value: float  # which way it points: 0 against the answer, 1 for it
    says: str


def read_reactions(calls: Sequence[Call]) -> list[Grade]:
    """Return what followed each answer of a conversation, as grades that decide nothing.

    Args:
        calls: the calls of the task itself, in the order of their records.
    """
    by_id = {call.id: call for call in calls}
    grades = []
    for call in calls:
        if call.edge is Edge.RETRY:
            before = next((c for c in calls if c is not call and _asks_the_same(c, call)), None)
            found = [Reaction(rule="asked_again", value=0.0, says="the same request came again")]
        else:
            before = by_id.get(call.parent_id or "")
            found = list(_told(before, call)) if before is not None else []
        if before is not None and before.message:
            grades += [_grade(reaction, before, call) for reaction in found]
    return grades


def _told(before: Call, after: Call) -> Iterator[Reaction]:
    """Yield what the messages that came after an answer say of it."""
    asked = before.request.get("messages") or []
    messages = after.request.get("messages") or []
    if after.edge not in {Edge.CONTINUATION, Edge.RERENDERED}:
        return  # a fork goes back before the answer: what comes then is not about it
    new = messages[len(asked) + 1 :]
    answer = message_text(before.message or {})[:READ_CHARACTERS]
    for message in new:
        text = message_text(message)[:READ_CHARACTERS].strip()
        if message.get("role") in {"tool", "function"} and _failed(text):
            yield Reaction(rule="tool_failed", value=0.0, says=f"the tool failed: {_short(text)}")
        if message.get("role") == "user" and text:
            reaction = _of_user(text, _last_user(asked), answer)
            if reaction is not None:
                yield reaction


def _of_user(text: str, question: str, answer: str) -> Reaction | None:
    """Read one user message; of several signs the first that is plain."""
    if question and _is_same(text, question):
        return Reaction(rule="repeats", value=0.0, says=f"asked the same again: {_short(text)}")
    if _SAYS_WRONG.search(text[:200]):
        return Reaction(rule="says_wrong", value=0.0, says=f"said it is wrong: {_short(text)}")
    if _is_edit(text, answer):
        return Reaction(rule="edits", value=0.5, says=f"gave it back changed: {_short(text)}")
    if _ACCEPTS.search(text) and not _BUT.search(text[:200]):
        return Reaction(rule="accepts", value=1.0, says=f"accepted it: {_short(text)}")
    return None


def _is_same(text: str, other: str) -> bool:
    words, others = (set(re.findall(r"\w+", one.casefold())) for one in (text, other))
    if not words or not others:
        return False
    if text.split() == other.split():
        return True
    # A changed number is another question, however alike the rest is.
    if {w for w in words if w.isdigit()} != {w for w in others if w.isdigit()}:
        return False
    return len(words & others) / len(words | others) >= REPEATED


def _is_edit(text: str, answer: str) -> bool:
    if min(len(text), len(answer)) < LEAST_EDITED or text == answer:
        return False
    matcher = difflib.SequenceMatcher(None, text, answer, autojunk=False)
    return matcher.quick_ratio() >= EDITED and matcher.ratio() >= EDITED


def _failed(text: str) -> bool:
    if text.startswith("{"):
        try:
            told: Any = json.loads(text)
        except ValueError:
            return bool(_FAILED.search(text))
        return bool(told.get("error") or told.get("is_error") or told.get("success") is False)
    return bool(_FAILED.search(text))


def _asks_the_same(call: Call, other: Call) -> bool:
    return call.request.get("messages") == other.request.get("messages")


def _last_user(messages: Sequence[Message]) -> str:
    texts = [message_text(one) for one in messages if one.get("role") == "user"]
    return texts[-1][:READ_CHARACTERS].strip() if texts else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 80 else line[:80] + "…")


def _grade(reaction: Reaction, before: Call, after: Call) -> Grade:
    return Grade(
        kind=GradeKind.REACTION,
        grader=NAME,
        version=VERSION,
        value=reaction.value,
        explanation=reaction.says,
        evidence={"rule": reaction.rule, "call_id": before.id, "next_call_id": after.id},
    )
