"""A general probe: how likely ordinary answers are to a version, whatever it has practised.

Ten short exchanges of our own (``general_probe.json``), always the same, never trained on. It is a
weak test: it sees a model that is being ruined, not one that gets a little worse at something.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.drift import ProbeFigures
from learner.live_proof import LogprobFn
from memory.errors import DenizenError, UnavailableError
from memory.types import Message
from memory.version_store import BASE

FILE = Path(__file__).with_name("general_probe.json")


class EncodeFn(Protocol):
    """Writes a conversation as the model's chat template does."""

    async def __call__(self, messages: Sequence[Message]) -> Sequence[int]:
        """Return its token ids.

        They end where the assistant's answer would begin; where the last message is its own, with
        that message's text.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A conversation in tokens, and how many of them stand before the answer."""

    token_ids: tuple[int, ...]
    num_asked: int


class GeneralProbe:
    """Asks an engine how likely the probe's answers are."""

    def __init__(self, encode: EncodeFn, logprobs: LogprobFn) -> None:
        self._encode = encode
        self._logprobs = logprobs

    async def compare(self, live: str, candidate: str) -> tuple[ProbeFigures | None, str | None]:
        """Return the figures of base, live version and candidate; without any, None and why.

        Raises:
            UnavailableError: the engine went away.
        """
        try:
            exchanges = [await self._exchange(**pair) for pair in exchanges_of_file()]
            found = {
                adapter: [p for one in exchanges for p in await self._answer(adapter, one)]
                for adapter in dict.fromkeys((BASE, live, candidate))
            }
        except UnavailableError:
            raise
        except DenizenError as error:  # a candidate is not lost for a figure of it
            return None, f"the engine cannot be asked: {error.message}"
        num_tokens = len(found[BASE])
        if not num_tokens or any(len(logprobs) != num_tokens for logprobs in found.values()):
            return None, "the engine gave no log-probability of some tokens"
        base, lives, candidates = (
            math.fsum(found[one]) / num_tokens for one in (BASE, live, candidate)
        )
        figures = ProbeFigures(num_tokens=num_tokens, base=base, live=lives, candidate=candidates)
        return figures, None

    async def _exchange(self, user: str, assistant: str) -> Exchange:
        asked: list[Message] = [{"role": "user", "content": user}]
        before = await self._encode(asked)
        whole = await self._encode([*asked, {"role": "assistant", "content": assistant}])
        # A template may open an answer otherwise than it writes one that is given (with a thought).
        same = [a == b for a, b in zip(before, whole, strict=False)]
        num_asked = same.index(False) if False in same else len(same)
        return Exchange(token_ids=tuple(whole), num_asked=num_asked)

    async def _answer(self, adapter: str, one: Exchange) -> list[float]:
        """Return the known log-probabilities of the answer's tokens."""
        told = await self._logprobs(adapter=adapter, token_ids=one.token_ids)
        return [p for p in told[one.num_asked :] if p is not None]


def exchanges_of_file() -> list[dict[str, str]]:
    """Return the probe's exchanges: a user's words and an assistant's."""
    found: list[dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
