"""The general probe: what is asked, what its figures are, and when it has none."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from learner.general_probe import GeneralProbe, exchanges_of_file

FALLS = {"base": -1.0, "denizen-000001": -1.25, "denizen-000002": -2.0}


class Engine:
    """Writes a token a word, and finds words of answers as likely as its weights say."""

    def __init__(self, opening: Sequence[int] = ()) -> None:
        self._opening = tuple(opening)  # of an answer that is to be given
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    async def encode(self, messages: Sequence[Any]) -> list[int]:
        words = [1, *range(100, 100 + len(messages[0]["content"].split())), 2]
        if len(messages) == 1:
            return [*words, *self._opening]
        return [*words, *range(500, 500 + len(messages[1]["content"].split()))]

    async def logprobs(self, *, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        self.asked.append((adapter, tuple(token_ids)))
        return [None, *(FALLS[adapter] if t >= 500 else -9.0 for t in token_ids[1:])]


NUM_WORDS = sum(len(one["assistant"].split()) for one in exchanges_of_file())


@pytest.mark.parametrize("opening", [(), (7, 8)], ids=["plain", "opens with a thought"])
async def test_only_the_answers_tokens_count_under_each_of_the_three(
    opening: tuple[int, ...],
) -> None:
    engine = Engine(opening)
    probe = GeneralProbe(engine.encode, engine.logprobs)
    found, why = await probe.compare("denizen-000001", "denizen-000002")
    assert why is None
    assert found is not None
    assert found.num_tokens == NUM_WORDS
    assert (found.base, found.live, found.candidate) == pytest.approx((-1.0, -1.25, -2.0))
    assert len(engine.asked) == 3 * len(exchanges_of_file())


async def test_a_first_version_is_compared_with_the_base_that_is_live() -> None:
    engine = Engine()
    found, _ = await GeneralProbe(engine.encode, engine.logprobs).compare("base", "denizen-000001")
    assert found is not None
    assert (found.base, found.live, found.candidate) == pytest.approx((-1.0, -1.0, -1.25))
    assert len(engine.asked) == 2 * len(exchanges_of_file()), "the base is asked once"


@pytest.mark.parametrize(
    "error",
    [
        EngineRejectedError("the template wants a system message", status=400),
        EngineError("the template wants a system message"),
    ],
)
async def test_an_engine_that_cannot_be_asked_is_no_figure_and_says_why(error: Exception) -> None:
    async def refuse(_messages: Sequence[Any]) -> list[int]:
        raise error

    found, why = await GeneralProbe(refuse, Engine().logprobs).compare("base", "denizen-000001")
    assert found is None
    assert why == "the engine cannot be asked: the template wants a system message"


async def test_tokens_of_which_one_version_says_nothing_are_no_figure() -> None:
    async def silent(*, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        told = await Engine().logprobs(adapter=adapter, token_ids=token_ids)
        return told if adapter == "base" else [*told[:-1], None]

    found, why = await GeneralProbe(Engine().encode, silent).compare("base", "denizen-000001")
    assert found is None
    assert why == "the engine gave no log-probability of some tokens"


async def test_an_engine_that_went_away_is_told() -> None:
    async def gone(**_: Any) -> list[float | None]:
        raise EngineUnavailableError("the engine is restarting")

    with pytest.raises(EngineUnavailableError):
        await GeneralProbe(Engine().encode, gone).compare("base", "denizen-000001")
