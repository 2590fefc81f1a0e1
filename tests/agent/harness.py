"""A harness that asks and lets answer, without an engine."""

import itertools
from typing import Any

from agent.placement import Asked, Place, Placement
from memory.types import CallStatus, Message, utc_now
from tests import records

TASK = "Please find out why the nightly build of the parser fails since Tuesday."
ANSWER = "The nightly build fails because the new grammar file is missing from the archive."
SUMMARY = (
    "The user wants to know why the nightly build fails. We found that the grammar file is not "
    "packed. The next step is to add it to the manifest and to run the build again."
)
SUBTASK = "Read the build log of last Tuesday and report the first error that you find in it."
numbers = itertools.count()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def delegating(text: str) -> Message:
    function = {"name": "agent", "arguments": f'{{"prompt": "{text}"}}'}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "t1", "type": "function", "function": function}],
    }


class Harness:
    """Asks and lets answer, without an engine."""

    def __init__(self, store: Any) -> None:
        self.placement = Placement(store.episodes)

    async def ask(
        self,
        messages: list[Message],
        answer: Message | None,
        status: CallStatus = CallStatus.OK,
        **fields: Any,
    ) -> tuple[str, Place]:
        """Return the call's id and its place."""
        place = self.placement.place(Asked(messages=messages, **fields))
        return await self.answer(place, answer, status), place

    async def answer(
        self, place: Place, answer: Message | None, status: CallStatus = CallStatus.OK
    ) -> str:
        call = records.call(
            id=f"call-{next(numbers)}",
            created_at=utc_now(),
            episode_id=place.episode.id,
            request={"messages": place.asked.messages},
            message=answer,
            status=status,
            parent_id=place.parent_id,
            edge=place.edge,
        )
        await self.placement.keep(place, [call]).written
        return call.id
