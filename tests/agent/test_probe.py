"""What counts as an effect of an adapter."""

import asyncio
import math

import pytest

from agent import probe
from agent.errors import EngineError, EngineRejectedError
from agent.probe import largest_gap, probe_effect
from memory.errors import AdapterError


class Scripted:
    """Answers with the given rows, one after the other; None never answers."""

    def __init__(self, *rows: list[float | None] | Exception | None) -> None:
        self.rows = list(rows)

    async def prompt_logprobs(self, model: str, token_ids: list[int]) -> list[float | None]:
        row = self.rows.pop(0)
        if row is None:
            await asyncio.Event().wait()
        if isinstance(row, Exception):
            raise row
        return row


async def test_a_change_larger_than_the_noise_is_an_effect():
    await probe_effect(Scripted([None, -1.0], [None, -1.2], [None, -1.1]), "base", "v")


@pytest.mark.parametrize(
    ("adapted", "reason"),
    [
        ([None, -1.0], "no effect"),
        ([None, -1.1], "no effect"),  # as much as the base model differs from itself
        ([None, math.nan], "not finite"),
        ([None, -math.inf], "not finite"),
        (EngineRejectedError("no such model", status=404), "cannot answer"),
        (EngineError("it failed"), "cannot answer"),
    ],
)
async def test_what_is_no_effect_is_refused(adapted, reason):
    with pytest.raises(AdapterError, match=reason):
        await probe_effect(Scripted([None, -1.0], adapted, [None, -1.1]), "base", "v")


async def test_an_engine_that_never_answers_is_given_up_and_is_not_the_adapters_fault(monkeypatch):
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.05)
    with pytest.raises(EngineError, match="did not answer the probe of v") as caught:
        await probe_effect(Scripted([None, -1.0], None), "base", "v")
    assert not isinstance(caught.value, AdapterError)


def test_the_gap_is_the_largest_over_the_tokens_that_both_know():
    assert largest_gap([None, -1.0, -2.0], [None, -1.5, -2.25]) == 0.5
    assert largest_gap([None, None, -2.0], [None, -9.0, -2.0]) == 0.0
    assert math.isnan(largest_gap([math.nan, 0.0], [-1.0, -3.0]))
