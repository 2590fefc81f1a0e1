"""What a judge is asked: the rubric as instruction, and all that is judged as fenced data.

Nothing that was judged stands outside a fence, and no control token is whole inside: to a judge
that does what it is told, a judged text tells nothing. It does not know who answers.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from graders.rubrics import Rubric, prompt_file
from graders.types import Answer
from graders.verdicts import TOP_SCORE
from memory.fences import ControlTokens, fenced
from memory.types import Message

FOLLOWED = "What happened next, when this turn was taken then:"
MAX_REASON = 600  # characters, so that a rambling judge comes to its score


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One request to a judge, before it has a model and sampling parameters.

    Attributes:
        messages: chat messages.
        schema: JSON schema of the reply.
        ticket: what the verdict has to carry; nobody else has seen it.
        ids: of a ranking: what the answers are called, in the order in which they are shown.
    """

    messages: Sequence[Message]
    schema: Mapping[str, Any]
    ticket: str
    ids: Sequence[str] = ()


def score_question(answer: Answer, rubric: Rubric, control_tokens: ControlTokens) -> Question:
    """Ask how good one answer is."""
    ticket = secrets.token_hex(8)
    quoted = [
        *_task(answer.messages, answer.reference, control_tokens),
        _quote([answer.message], "The answer to be graded:", control_tokens),
    ]
    score = {"type": "integer", "minimum": 0, "maximum": TOP_SCORE}
    return Question(
        messages=_messages("score", rubric, ticket, quoted=quoted),
        schema=_schema(ticket, score=score),
        ticket=ticket,
    )


def ranking_question(
    answers: Sequence[Answer],
    rubric: Rubric,
    control_tokens: ControlTokens,
    *,
    followed: str | None = None,
) -> Question:
    """Ask for the order of a group's answers, which are shown in the order given.

    What all of them begin with (the task, and turns that they share) is shown once, before them.

    Args:
        answers: the group.
        rubric: by what they are ordered.
        control_tokens: what is broken in everything that is quoted.
        followed: where the answers are other ways to take a recorded turn: the turn that was taken
            then, and what came of it; evidence that stands between the task and the answers.
    """
    ticket = secrets.token_hex(8)
    ids = _random_ids(len(answers))
    lines = [[*answer.messages, answer.message] for answer in answers]
    num_shared = shared_length(lines)
    quoted = _task(lines[0][:num_shared], answers[0].reference, control_tokens)
    if followed is not None:
        quoted.append(fenced(control_tokens.neutralise(followed), says=FOLLOWED))
    quoted += [
        _quote(line[num_shared:], f"Answer {id}:", control_tokens)
        for id, line in zip(ids, lines, strict=True)
    ]
    ranking = {
        "type": "array",
        "items": {"type": "string", "enum": list(ids)},
        "minItems": len(ids),
        "maxItems": len(ids),
    }
    return Question(
        messages=_messages("ranking", rubric, ticket, quoted=quoted, ids=", ".join(ids)),
        schema=_schema(ticket, ranking=ranking),
        ticket=ticket,
        ids=ids,
    )


def shared_length(lines: Sequence[Sequence[Message]]) -> int:
    """Return how many messages all conversations begin with; each keeps one of its own at least."""
    shortest = min(len(line) for line in lines)
    for index in range(shortest - 1):
        if any(line[index] != lines[0][index] for line in lines):
            return index
    return shortest - 1


def said(messages: Iterable[Message]) -> str:
    """Return messages as text: role, content, and tool calls as JSON."""
    return "\n\n".join(_one(message) for message in messages)


def _one(message: Message) -> str:
    content = message.get("content")
    words = content if isinstance(content, str) else _json(content) if content else ""
    calls = message.get("tool_calls")
    parts = [words, f"tool calls: {_json(calls)}" if calls else ""]
    return f"[{message.get('role')}]\n" + "\n".join(part for part in parts if part)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _task(messages: Sequence[Message], reference: str | None, tokens: ControlTokens) -> list[str]:
    quoted = [_quote(messages, "The task:", tokens)]
    if reference is not None:
        says = "The reference, a right result:"
        quoted.append(fenced(tokens.neutralise(reference), says=says))
    return quoted


def _quote(messages: Sequence[Message], says: str, tokens: ControlTokens) -> str:
    return fenced(tokens.neutralise(said(messages)), says=says)


def _messages(
    name: str, rubric: Rubric, ticket: str, *, quoted: Sequence[str], ids: str = ""
) -> list[Message]:
    values = {"rubric": rubric.text, "ticket": ticket, "quoted": "\n\n".join(quoted), "ids": ids}

    def filled(file: str) -> str:
        return Template(prompt_file(file).text).substitute(values)

    return [
        {"role": "system", "content": filled(name)},
        {"role": "user", "content": filled(f"{name}_question")},
    ]


def _schema(ticket: str, **verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a reply; the reason stands before the verdict."""
    properties = {
        "ticket": {"type": "string", "enum": [ticket]},
        "reason": {"type": "string", "minLength": 1, "maxLength": MAX_REASON},
        **verdict,
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _random_ids(count: int) -> tuple[str, ...]:
    """Return names that tell nothing of what they name, all different."""
    ids: dict[str, None] = {}
    while len(ids) < count:
        ids[secrets.token_hex(3)] = None
    return tuple(ids)


def prompt_version(name: str) -> str:
    """Return the version of both texts that a kind of question is made of: ``score.1.1``."""
    question = prompt_file(f"{name}_question").version
    return f"{prompt_file(name).version}.{question.rpartition('.')[2]}"
