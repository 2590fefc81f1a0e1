"""What is put into a prompt while episodes are erased."""

from types import SimpleNamespace
from typing import Any

import pytest

from agent.prompts import Prompts
from memory.privacy import Privacy
from memory.recall import Example, RecallConfig, Recalled
from tests import records

EXAMPLE = Example(episode_id="ep_7", outcome=1.0, similarity=0.9, task="a", answer="b")
FOUND = Recalled(block="BLOCK", skill_id=1, has_guideline=False, examples=[EXAMPLE])


class SlowRecall:
    """Finds one episode; something may happen before it answers."""

    config = RecallConfig(enabled=True)

    def __init__(self) -> None:
        self.before_answer = lambda: None

    async def recall(self, task: str, **about: Any) -> Recalled:
        self.before_answer()
        return FOUND


def exchange(*texts: str, role: str = "user", parent_id: str | None = None) -> Any:
    messages = [{"role": "user", "content": text} for text in texts]
    messages[-1]["role"] = role
    return SimpleNamespace(
        ask=SimpleNamespace(body={"messages": messages}, metadata=SimpleNamespace(task=None)),
        options=SimpleNamespace(recall=None),
        place=SimpleNamespace(parent_id=parent_id, episode=records.episode()),
        recalled=None,
    )


@pytest.fixture
def recall() -> SlowRecall:
    return SlowRecall()


@pytest.fixture
def told() -> dict[str, Any]:
    """What the record says that calls were told."""
    return {}


@pytest.fixture
def prompts(recall, told) -> Prompts:
    return Prompts(Privacy(), recall, told.get)


async def test_a_block_stands_where_it_stood_when_its_parent_was_answered(prompts, told):
    first = exchange("one")
    body = await prompts.prepare(first)
    assert body["messages"][0]["content"] == "BLOCK\n\none"
    told["c1"] = first.recalled
    body = await prompts.prepare(exchange("one", "two", parent_id="c1"))
    assert [one["content"] for one in body["messages"]] == ["BLOCK\n\none", "two"]


async def test_what_is_erased_while_it_is_recalled_is_not_put_in(prompts, recall):
    recall.before_answer = lambda: prompts.forget(["ep_7"])
    asked = exchange("one")
    assert await prompts.prepare(asked) is asked.ask.body
    assert asked.recalled is None


async def test_what_is_erased_is_not_put_in_again(prompts, recall, told):
    first = exchange("one")
    await prompts.prepare(first)
    told["c1"] = first.recalled
    prompts.forget(["ep_7"])
    again = exchange("one", "two", parent_id="c1")
    assert await prompts.prepare(again) is again.ask.body


async def test_only_a_users_words_are_recalled_for(prompts):
    asked = exchange("one", "18", role="tool", parent_id="c1")
    assert await prompts.prepare(asked) is asked.ask.body
