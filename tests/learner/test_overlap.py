"""The next step is sampled while this one is trained, and whatever ends the one ends the other."""

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graders.catalog import find_grader
from learner.adapter_files import moments_path
from learner.curriculum import LearnerConfig
from learner.cycle import LearningCycle
from learner.errors import NoSignalError, TrainingError
from learner.gate import GateConfig
from learner.registry import Registry
from learner.rollouts import Practice
from learner.sources import Gathered, PracticeRows, StepPlan
from learner.staleness import steps_between
from learner.workshop import Progress, Workshop
from memory.errors import UnavailableError
from memory.store import Store
from memory.task_store import add_task
from memory.types import Call, CycleState, Message, Split, VersionStatus, new_id
from tests import records
from tests.graders.judged import found_skill
from tests.learner.adapters import FIT, write_adapter
from tests.learner.test_cycle_trust import FakePointer

SKILL, NUM_STEPS = 1, 4
CONFIG = LearnerConfig(
    group_size=2,
    tasks_per_step=2,
    steps_per_cycle=NUM_STEPS,
    min_train_tasks=1,
    min_heldout_tasks=1,
)
TIMEOUT_S = 60.0
"""After which what waits for each other is taken for a deadlock."""
STEP: ContextVar[int] = ContextVar("step")  # for which is sampled


async def at_once(_step: int) -> None:
    """Do not wait."""


async def never(_step: int) -> None:
    await asyncio.Event().wait()


def only(step: int, wait: Callable[[int], Awaitable[None]]) -> Callable[[int], Awaitable[None]]:
    async def at(index: int) -> None:
        if index == step:
            await wait(index)

    return at


Events = defaultdict[int, asyncio.Event]


@dataclass
class Engine:
    """Has weights and answers with them, every other time rightly; tokens say whose they are."""

    loaded: set[str] = field(default_factory=lambda: {"base"})
    asked: dict[int, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    began: Events = field(default_factory=lambda: defaultdict(asyncio.Event))
    at: Callable[[int], Awaitable[None]] = at_once
    num_ended: int = 0  # requests that were cut short

    async def load_ephemeral(self, name: str, path: Path) -> None:
        assert (path / "adapter_model.safetensors").exists()
        self.loaded.add(name)

    def unload(self, name: str) -> None:
        self.loaded.remove(name)

    async def publish(self, version: str) -> None:
        self.loaded.add(version)

    async def sample(
        self,
        *,
        adapter: str,
        messages: Sequence[Message],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        assert adapter in self.loaded
        seed, whose = sampling.get("seed", 0), adapter.partition("-step-")[2]
        if seed:  # practice, not a held-out task
            await self._practise(whose, seed)
        assert adapter in self.loaded, "the weights stay until their answer has ended"
        number = str(messages[0]["content"]).split()[0]
        return [
            records.call(
                id=new_id("c"),
                episode_id=new_id("ep"),
                adapter=adapter,
                message={"role": "assistant", "content": number if n % 2 == 0 else "no"},
                completion_token_ids=(seed % 97 + n, zlib.crc32(whose.encode()) % 97),
            )
            for n in range(num_samples)
        ]

    async def _practise(self, whose: str, seed: int) -> None:
        step = STEP.get()
        self.asked[step].add((whose, seed))
        self.began[step].set()
        try:
            await self.at(step)
        except asyncio.CancelledError:
            self.num_ended += 1
            raise


@dataclass
class Training:
    """Writes adapters; keeps the rows of each step."""

    rows: dict[int, str] = field(default_factory=dict)
    began: Events = field(default_factory=lambda: defaultdict(asyncio.Event))
    at: Callable[[int], Awaitable[None]] = at_once

    async def __aenter__(self) -> "Training":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def step(
        self, rows_path: Path, out_dir: Path, *, keep_moments: bool = False
    ) -> dict[str, Any]:
        index = int(out_dir.name.removeprefix("step-"))
        self.began[index].set()
        await self.at(index)
        self.rows[index] = rows_path.read_text("utf-8")
        out_dir.mkdir()
        write_adapter(out_dir)
        moments_path(out_dir).touch()
        return {"trained_tokens": 4, "grad_norm": 1.0}

    async def effect(self) -> None:
        """Know nothing of it."""


class Watched(PracticeRows):
    """Says for which step it samples, and when that is written down."""

    def __init__(self, practice: Practice, config: LearnerConfig) -> None:
        super().__init__(practice, config)
        self.gathered: Events = defaultdict(asyncio.Event)

    async def gather(self, plan: StepPlan) -> Gathered:
        STEP.set(plan.index)
        found = await super().gather(plan)
        self.gathered[plan.index].set()
        return found


class WatchedProgress(Progress):
    """Says when a step begins."""

    reached: Events

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "step" and value:
            self.reached[value].set()


class Home:
    """A store with a cycle in it, and one service after another that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.store = Store(folder / "denizen.db")
        found_skill(self.store, SKILL)
        tasks = [
            records.task(n, split=Split.TRAIN if n < 12 else Split.HELDOUT, skill_id=SKILL)
            for n in range(16)
        ]
        self.store.database.write(lambda db: [add_task(db, task) for task in tasks])
        self.store.cycles.start(records.cycle(skill_ids=(SKILL,)))
        self.serve()

    def serve(self, *, is_ahead: bool = True) -> None:
        """Start what runs the cycle, as each service does anew."""
        self.engine, self.training = Engine(), Training()
        practice = Practice(
            sample=self.engine.sample, grader_of=lambda t: find_grader(t.grader), store=self.store
        )
        self.rows = Watched(practice, CONFIG)
        shop = Workshop(
            store=self.store,
            registry=Registry(self.store.versions, self.folder / "adapters", FIT),
            pointer=FakePointer(),  # type: ignore[arg-type]
            practice=practice,
            rows=self.rows,
            sampled_ahead=[self.rows] if is_ahead else [],
            weights=self.engine,
            base_digest=FIT.base_digest,
            open_training=lambda _parent, _step: self.training,  # type: ignore[arg-type, return-value]
            work_dir=self.folder / "work",
            learner=CONFIG,
            gate=GateConfig(min_tasks=2),
            promotes_by_itself=False,
        )
        self.progress = WatchedProgress()
        self.progress.reached = defaultdict(asyncio.Event)
        self.cycle = LearningCycle(self.store.cycles.get("cycle_1"), shop, self.progress)

    async def run(self) -> tuple[CycleState, str | None]:
        """Run the cycle to its end."""
        async with asyncio.timeout(TIMEOUT_S):
            ended = await self.cycle.run()
        return ended.state, ended.end_reason

    async def stop_when(self, *events: asyncio.Event) -> None:
        """Run the cycle until all of these have happened, and stop the service there."""
        task = asyncio.create_task(self.cycle.run())
        async with asyncio.timeout(TIMEOUT_S):
            for event in events:
                await event.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        self.store.cycles.take_up("cycle_1")

    def ages(self) -> list[int | None]:
        """Return how old the oldest row of each step is."""
        steps = self.store.cycles.steps("cycle_1")
        assert all(one.receipt["staleness_mean"] == one.receipt["staleness_max"] for one in steps)
        return [one.receipt["staleness_max"] for one in steps]

    def whose(self, step: int) -> set[str]:
        """Return which step's weights were asked for a step's rollouts; "": the first ones."""
        return {whose.removesuffix("-cycle_1") for whose, _ in self.engine.asked[step]}


@contextmanager
def opened(folder: Path) -> Iterator[Home]:
    home = Home(folder)
    yield home
    home.store.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path / "home") as home:
        yield home


def only_this_task_runs() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_step_is_sampled_while_the_one_before_is_trained(home):
    async def until_trained(step: int) -> None:
        if step > 1:
            await home.training.began[step - 1].wait()

    async def until_sampled(step: int) -> None:
        if step < NUM_STEPS:
            await home.engine.began[step + 1].wait()

    home.engine.at, home.training.at = until_trained, until_sampled
    state, reason = await home.run()
    assert state is CycleState.INCONCLUSIVE, reason
    assert [home.whose(step) for step in (1, 2, 3, 4)] == [{""}, {""}, {"01"}, {"02"}]
    assert home.ages() == [0, 1, 1, 1]
    assert home.store.cycles.get("cycle_1").receipt["staleness_max"] == 1
    assert home.engine.loaded == {"base", "denizen-000001"}
    assert only_this_task_runs()


async def test_without_sampling_ahead_every_step_is_fresh(home):
    home.serve(is_ahead=False)
    await home.run()
    assert [home.whose(step) for step in (1, 2, 3, 4)] == [{""}, {"01"}, {"02"}, {"03"}]
    assert home.ages() == [0, 0, 0, 0]


async def test_a_step_that_taught_nothing_makes_no_rollout_older(home):
    async def has_no_signal(_step: int) -> None:
        raise NoSignalError("none")

    home.training.at = only(2, has_no_signal)
    await home.run()
    assert [home.whose(step) for step in (1, 2, 3, 4)] == [{""}, {""}, {"01"}, {"01"}]
    assert home.ages() == [0, 1, 0, 1]


async def test_a_step_that_fails_ends_what_is_sampled_beside_it(home):
    async def fails(step: int) -> None:
        await home.engine.began[step + 1].wait()
        raise TrainingError("the process died")

    home.training.at, home.engine.at = only(2, fails), only(3, never)
    state, reason = await home.run()
    assert (state, reason) == (CycleState.FAILED, "TrainingError: the process died")
    assert home.engine.num_ended == CONFIG.tasks_per_step
    assert home.engine.loaded == {"base"}
    assert only_this_task_runs()


async def test_sampling_that_fails_costs_no_step_that_is_trained_meanwhile(home):
    async def fails(_step: int) -> None:
        raise UnavailableError("the engine went away")

    home.engine.at = only(3, fails)
    state, reason = await home.run()
    assert (state, reason) == (CycleState.FAILED, "UnavailableError: the engine went away")
    assert len(home.store.cycles.steps("cycle_1")) == 2
    assert home.engine.loaded == {"base"}
    assert only_this_task_runs()


async def test_a_cycle_that_is_stopped_ends_what_is_sampled_beside_it(home):
    home.training.at, home.engine.at = only(2, never), only(3, never)
    await home.stop_when(home.training.began[2], home.engine.began[3])
    assert home.engine.num_ended == CONFIG.tasks_per_step
    assert home.engine.loaded == {"base"}
    assert only_this_task_runs()


@pytest.mark.parametrize("stopped", ["both", "trained", "sampled"])
async def test_a_cycle_stopped_anywhere_goes_on_with_the_rollouts_that_it_would_have_had(
    home, tmp_path, stopped
):
    with opened(tmp_path / "whole") as whole:
        await whole.run()
        expected = whole.training.rows
        ages, asked = whole.ages(), dict(whole.engine.asked)
    if stopped != "trained":
        home.training.at = only(2, never)
    if stopped != "sampled":
        home.engine.at = only(3, never)
    await home.stop_when(
        *{
            "both": (home.training.began[2], home.engine.began[3]),
            "trained": (home.progress.reached[3], home.engine.began[3]),
            "sampled": (home.training.began[2], home.rows.gathered[3]),
        }[stopped]
    )
    rows = home.training.rows
    # Whoever goes on may expect another number for the version to come.
    home.store.versions.add(records.version(7, status=VersionStatus.RETIRED), ())
    home.serve()
    await home.run()
    assert rows | home.training.rows == expected
    assert home.ages() == ages
    assert {step: home.engine.asked[step] for step in home.engine.asked} == {
        step: asked[step] for step in ((4,) if stopped == "sampled" else (3, 4))
    }


def test_weights_of_another_cycle_are_of_unknown_age():
    lineage = (
        "denizen-000007",
        "denizen-000008-step-01-5eed5eed",
        "denizen-000008-step-03-5eed5eed",
    )
    assert [steps_between(name, lineage) for name in lineage] == [2, 1, 0]
    assert steps_between("denizen-000009-step-01-5eed5eed", lineage) == 1
    assert steps_between("denizen-000008-step-01-0ff0ff0f", lineage) is None
    assert steps_between("base", lineage) is None
