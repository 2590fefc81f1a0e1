"""Turns that are sampled at recorded token ids, not at a prompt that is rendered again."""

import pytest

from agent.errors import EngineRejectedError
from agent.sampler import TurnSampler

PREFIX = (5, 9, 70_001, 3)
REQUEST = {"messages": [{"role": "user", "content": "mend it"}], "tools": [{"type": "function"}]}


async def taken(slot, **sampling):
    return await TurnSampler(slot)(
        adapter="base",
        prompt_token_ids=PREFIX,
        request=REQUEST,
        sampling={"temperature": 1.0, "max_tokens": 8, "seed": 3} | sampling,
        num_samples=3,
    )


async def test_the_engine_is_asked_at_exactly_the_recorded_tokens(slot, engine):
    calls = await taken(slot)
    [asked] = [one.body for one in engine.requests if one.body and "prompt" in one.body]
    assert asked["prompt"] == list(PREFIX)
    assert (asked["n"], asked["seed"], asked["max_tokens"]) == (3, 3, 8)
    assert asked["skip_special_tokens"] is False, "a tool call's markup is part of what it said"
    assert "messages" not in asked and "tools" not in asked
    assert len(calls) == len({call.id for call in calls}) == 3
    assert len({call.episode_id for call in calls}) == 3
    for call in calls:
        assert tuple(call.prompt_token_ids) == PREFIX
        assert len(call.sampler_logprobs) == len(call.completion_token_ids) > 0
        assert call.message["content"]
        assert call.request["messages"] == REQUEST["messages"]
        assert "prompt" not in call.request, "the tokens are kept once"


async def test_what_the_engine_refuses_is_an_error_of_the_request(slot):
    with pytest.raises(EngineRejectedError):
        await taken(slot, max_tokens=10**6)
