"""Tokens from the engine's answer through the record to training rows (cases P-34 and P-35).

A program's sessions of three turns, of two kinds: in one the engine samples tokens that its text
is not encoded to, in the other its chat template leaves earlier thoughts out of a prompt.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assembly import parts
from learner.rows import TrainingRow, read_rows
from tests.fake_engine import FakeEngine
from tests.fake_engine.tokens import EOS, logprob, text_of, tokenize
from tests.running import ServiceThread, wait_until
from tests.service.quick_training import QuickTraining
from tests.service.test_learning import learn
from tests.service.test_live_learning import SETTINGS, can_learn, work
from tests.tiny_model import VOCAB_SIZE

THOUGHT = re.compile(r"<think>.*?</think>")
ALL_AT_ONCE = {"steps_per_cycle": 1, "live_episodes_per_step": 16}


class TwistedEngine(FakeEngine):
    """Samples tokens that no text is encoded to, and forgets what it has thought."""

    def tokenize(self, text: str) -> list[int]:
        shift = 0 if "<think>" in text else 1
        return [3 + (token - 3 + shift) % (VOCAB_SIZE - 3) for token in super().tokenize(text)]

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()
    ) -> list[int]:
        seen = [{**one, "content": THOUGHT.sub("", text_of(one))} for one in messages]
        return super().prompt_ids(seen, tools)


def thinks_or_not(_model: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Think in every second pair of sessions, of which one succeeds."""
    said = text_of(messages[-1])
    number = int(said.split()[-1]) if said[-1].isdigit() else 0
    return f"<think>what to do about {said}</think> done" if number // 2 % 2 else f"{said} is done"


@dataclass(frozen=True)
class Turn:
    """What the engine got and sampled."""

    answer: str
    prompt: tuple[int, ...]
    sampled: tuple[int, ...]

    @property
    def row(self) -> tuple[Any, ...]:
        """The training row that this turn alone makes, without its advantages."""
        told = [logprob("base", place, token) for place, token in enumerate(self.sampled)]
        known = np.array(told, np.float32).tolist()  # as they are kept
        num = len(self.prompt)
        mask = (False,) * num + (True,) * len(known)
        return (*self.prompt, *self.sampled), mask, ((None,) * num + tuple(known))


@dataclass(frozen=True)
class Session:
    """The turns of a session, and the rows that were trained of it."""

    turns: Sequence[Turn]
    rows: Sequence[TrainingRow]


@pytest.fixture(scope="module")
def sessions(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Session]]:
    trained: list[TrainingRow] = []

    class KeepsRows(QuickTraining):
        async def step(self, rows_path: Path, *args: Any, **fields: Any) -> dict[str, Any]:
            trained.extend(read_rows(rows_path))
            return await super().step(rows_path, *args, **fields)

    settings = {**SETTINGS, "learner": SETTINGS["learner"] | ALL_AT_ONCE}
    engine = TwistedEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=thinks_or_not)
    with (
        pytest.MonkeyPatch.context() as patch,
        engine,
        ServiceThread(tmp_path_factory.mktemp("tokens"), engine.url, settings) as service,
    ):
        patch.setattr(parts, "TrainingProcess", KeepsRows)
        episodes = [work(service, n, float(n % 2), num_turns=3) for n in range(16)]
        wait_until(lambda: can_learn(service))
        learn(service)
        asked = [r.body for r in engine.requests if r.path == "/v1/chat/completions"]
        yield [
            Session(
                turns=[
                    turn_of(engine, body)
                    for body in asked
                    if text_of(body["messages"][0]) == f"mend build {number}"
                ],
                rows=[row for row in trained if row.group_id == f"live-{episode}"],
            )
            for number, episode in enumerate(episodes)
        ]


def turn_of(engine: FakeEngine, body: Mapping[str, Any]) -> Turn:
    answer = engine.answer(body["model"], body["messages"])
    prompt = tuple(engine.prompt_ids(body["messages"]))
    return Turn(answer=answer, prompt=prompt, sampled=(*engine.tokenize(answer), EOS))


def of_kind(sessions: Sequence[Session], *, thinks: bool) -> list[Session]:
    """Return the sessions of a kind that were trained, a quarter being held out."""
    found = [one for one in sessions if ("<think>" in one.turns[0].answer) == thinks and one.rows]
    assert len(found) >= 3
    return found


def assert_rows_are_turns(session: Session) -> None:
    rows = [(one.token_ids, one.loss_mask, one.sampler_logprobs) for one in session.rows]
    assert sorted(rows, key=repr) == sorted((one.row for one in session.turns), key=repr)


def test_what_was_sampled_is_trained_where_its_text_is_encoded_to_other_tokens(
    sessions: Sequence[Session],
) -> None:
    for session in of_kind(sessions, thinks=False):
        first, second, _ = session.turns
        encoded = tuple(tokenize(first.answer, VOCAB_SIZE))
        assert not set(encoded) & set(first.sampled)
        assert second.prompt[len(first.prompt) :][: len(encoded)] == encoded
        assert_rows_are_turns(session)


def test_each_turn_is_trained_on_the_prompt_it_had_where_earlier_thoughts_are_left_out(
    sessions: Sequence[Session],
) -> None:
    for session in of_kind(sessions, thinks=True):
        first, second, third = session.turns
        for before, after in ((first, second), (second, third)):
            assert after.prompt[: len(before.prompt)] == before.prompt
            assert after.prompt[len(before.prompt)] != before.sampled[0]
        assert_rows_are_turns(session)
