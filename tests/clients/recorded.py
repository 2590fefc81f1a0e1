"""What the service kept of a client's run."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread


def episodes(service: ServiceThread) -> list[dict[str, Any]]:
    """Return every episode with its calls, oldest first."""
    rows = service.http.get("/v1/episodes?limit=100").json()["data"]
    return [service.http.get(f"/v1/episodes/{row['id']}").json() for row in reversed(rows)]


def only_episode(service: ServiceThread) -> dict[str, Any]:
    [episode] = episodes(service)
    return episode


def texts(calls: Sequence[dict[str, Any]]) -> list[str]:
    """Return what was said in each call."""
    return [call["message"]["content"] for call in calls]


def called(call: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the tools that a call's answer calls."""
    functions = [one["function"] for one in call["message"].get("tool_calls") or ()]
    return [(function["name"], function["arguments"]) for function in functions]


def assert_exact(calls: Sequence[dict[str, Any]], length: int) -> None:
    """Check that there are so many calls, all fit to learn from, each extending the one before."""
    assert len(calls) == length
    for call in calls:
        assert call["status"] == "ok"
        assert call["learnable"] is True
        assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"]) > 0
    for earlier, later in pairwise(calls):
        assert later["parent"] == earlier["id"]
        so_far = earlier["prompt_token_ids"] + earlier["completion_token_ids"]
        assert later["prompt_token_ids"][: len(so_far)] == so_far


def say(engine: FakeEngine, *answers: str) -> None:
    """Let the model give these answers, one a turn: as many as there were assistant turns."""

    def answer(_: str, messages: Sequence[Any]) -> str:
        return answers[sum(message.get("role") == "assistant" for message in messages)]

    engine.answer = answer


def tool_call(name: str, arguments: str) -> str:
    """Return a tool call as the model writes it; ``arguments`` is JSON."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
