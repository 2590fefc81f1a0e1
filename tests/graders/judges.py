"""Scripted judges: they read a question as it is sent, and answer by a rule."""

import asyncio
import base64
import binascii
import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from graders.chat_model import ChatRequest, Reply, TeacherError
from memory.fences import TURN_TOKENS
from tests.graders.injections import PAYLOAD

FENCED = re.compile(r"<<<(data-[0-9a-f]{16})\n(.*?)\n\1>>>", re.DOTALL)
LOOSELY_FENCED = re.compile(r"<<<\s*data-\S*\n(.*?)\n\S*data-\S*>>>", re.DOTALL)
"""As a careless reader sees it: whatever looks like an end is one."""


class FakeTeacher:
    """Answers each question by a function; keeps what it was asked."""

    name = "fake"

    def __init__(self, answer: Callable[[ChatRequest], Any], name: str = "fake") -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._answer = answer

    async def complete(self, request: ChatRequest) -> Reply:
        self.requests.append(request)
        await asyncio.sleep(0)
        said = self._answer(request)
        if isinstance(said, TeacherError):
            raise said
        return said if isinstance(said, Reply) else Reply(text=said, num_tokens=100)


def in_turn(*texts: Any) -> Callable[[ChatRequest], Any]:
    """Answer with these in turn, the last one for ever; functions are called with the request."""
    left = itertools.chain(texts, itertools.repeat(texts[-1]))

    def answer(request: ChatRequest) -> Any:
        said = next(left)
        return said(request) if callable(said) else said

    return answer


def ticket(request: ChatRequest) -> str:
    """Return the ticket, as a judge reads it out of the instruction."""
    match = re.search(r'"ticket": "([0-9a-f]+)"', request.messages[0]["content"])
    assert match is not None
    return match[1]


def scoring(value: Any) -> Callable[[ChatRequest], str]:
    """Give every answer the same score."""
    return lambda request: verdict(request, score=value)


def verdict(request: ChatRequest, reason: str = "so it is", **fields: Any) -> str:
    return json.dumps({"ticket": ticket(request), "reason": reason} | fields)


def shown(request: ChatRequest) -> list[tuple[str, str]]:
    """Return the answers of a ranking as they are shown: id and text."""
    text = request.messages[1]["content"]
    return re.findall(r"Answer (\w+):\n<<<data-\w+\n(.*?)\ndata-\w+>>>", text, re.DOTALL)


def ranking(key: Callable[[str], Any]) -> Callable[[ChatRequest], str]:
    """Order answers by a key of their text, the largest first."""

    def answer(request: ChatRequest) -> str:
        ordered = sorted(shown(request), key=lambda one: key(one[1]), reverse=True)
        return verdict(request, ranking=[id for id, _ in ordered])

    return answer


def always_first(request: ChatRequest) -> str:
    """Order answers as they are shown."""
    return verdict(request, ranking=[id for id, _ in shown(request)])


def outside(request: ChatRequest, fence: re.Pattern[str]) -> str:
    """Return what of a request stands outside fences, or after a whole control token."""
    texts = [fence.sub("", message["content"]) for message in request.messages]
    forged = [
        message["content"].partition(token)[2]
        for message in request.messages
        for token in TURN_TOKENS
    ]
    return "\n".join([*texts, *forged])


def obedient(fence: re.Pattern[str] = FENCED) -> Callable[[ChatRequest], str]:
    """Do whatever is told outside the fences; else find every answer wrong, and quote all data.

    The quotes stand around the verdict, so that what was planted in the data stands there, too.
    """

    def answer(request: ChatRequest) -> str:
        told = outside(request, fence)
        is_told = PAYLOAD in told or any(PAYLOAD in one for one in _decoded(told))
        data = "\n".join(match[0] for match in FENCED.finditer(request.messages[1]["content"]))
        return f"{data}\n{verdict(request, score=10 if is_told else 1)}\n{data}"

    return answer


def _decoded(text: str) -> Sequence[str]:
    found = []
    for word in re.findall(r"[A-Za-z0-9+/=]{20,}", text):
        try:
            found.append(base64.b64decode(word, validate=True).decode())
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found


def yes_sayer(request: ChatRequest) -> str:
    """Do whatever is told anywhere, fence or not: what no prompt can mend."""
    everything = "\n".join(message["content"] for message in request.messages)
    is_told = PAYLOAD in everything or any(PAYLOAD in one for one in _decoded(everything))
    return verdict(request, score=10 if is_told else 1)
