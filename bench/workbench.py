"""What learning is measured with: the engine as the service starts it, practice, and training.

Everything is the product's own: vLLM with its plugins, the slot that loads weights by name, the
sampler, the graders, the store, and the training process. It does not know what is learned.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.adapter_slot import AdapterSlot
from agent.engine import EngineConfig, VllmProcess
from agent.policy import PolicyClient
from agent.sampler import Sampler
from bench.learning_mix import Scores, scores_of
from graders.catalog import find_grader
from learner.rollouts import Practice, Trial
from learner.sources import FULL_DISTRIBUTION
from learner.trainer_config import TrainerConfig
from learner.training_process import TrainingProcess
from memory.errors import NotFoundError
from memory.store import Store
from memory.types import TaskSpec
from memory.version_store import BASE

Keep = Callable[[dict[str, Any]], None]
"""Told what is known so far, each time that is more."""

MAX_RESIDENT = 4
NUM_AT_ONCE = 64
"""Tasks that are answered at once where each is answered once. Where a request asks for several
rollouts it is 16, as in the service."""


class NoVersions:
    """There are no versions: all weights here are passing ones."""

    async def path_of(self, version: str) -> Path:
        """Raise ``NotFoundError``."""
        raise NotFoundError(f"the bench has no version {version}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights that the engine can answer with.

    Example:
        ``Weights(name="denizen-000001-step-05", path=Path("run/step-05"))``
    """

    name: str
    path: Path | None  # None: the base model


BASE_WEIGHTS = Weights(name=BASE, path=None)


class Workbench:
    """One engine, and what is done with it; see ``opened``."""

    def __init__(self, client: PolicyClient, *, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.store = Store(folder / "denizen.db")
        self.slot = AdapterSlot([client], NoVersions(), max_resident=MAX_RESIDENT)
        self._num_runs = 0

    def new_run(self) -> int:
        """Return a number that no run before had; the names of its weights carry it."""
        self._num_runs += 1
        return self._num_runs

    async def rollouts(
        self, tasks: Sequence[TaskSpec], weights: Weights, *, num_samples: int, temperature: float
    ) -> list[list[Trial]]:
        """Try each task ``num_samples`` times as a learning cycle does; return them by task.

        Raises:
            RuntimeError: a task could not be tried.
        """
        tried = await self._practice(num_samples).practise(
            tasks,
            adapter=weights.name,
            num_samples=num_samples,
            sampling={"temperature": temperature, **FULL_DISTRIBUTION},
        )
        if any(len(trials) != num_samples for trials in tried):
            raise RuntimeError("a task could not be tried; the log says why")
        return tried

    async def score(
        self,
        tasks: Sequence[TaskSpec],
        weights: Weights,
        *,
        num_samples: int = 1,
        temperature: float = 0.0,
    ) -> Scores:
        """Answer each task, once and greedily if not said otherwise; return what that is worth."""
        is_loaded = weights.name == BASE or weights.name in self.slot.resident
        if not is_loaded:
            await self.load(weights)
        tried = await self.rollouts(
            tasks, weights, num_samples=num_samples, temperature=temperature
        )
        if not is_loaded:
            self.slot.unload(weights.name)
        return scores_of([trial for trials in tried for trial in trials])

    async def load(self, weights: Weights, *, instead_of: Weights = BASE_WEIGHTS) -> None:
        """Let the engine answer with new weights, and forget those before."""
        if weights.path is not None:
            await self.slot.load_ephemeral(weights.name, weights.path)
        if instead_of.path is not None:
            self.slot.unload(instead_of.name)

    def training(self, config: TrainerConfig, *, parent: Path | None = None) -> TrainingProcess:
        """Return a training process, not started yet."""
        return TrainingProcess(
            model_dir=self.model,
            config=config,
            parent_adapter=parent,
            log_path=self.folder / "learner.log",
            nice=0,  # nothing is answered meanwhile that should go first
        )

    def _practice(self, num_samples: int) -> Practice:
        return Practice(
            sample=Sampler(self.slot),
            grader_of=lambda task: find_grader(task.grader),
            store=self.store,
            max_in_flight=16 if num_samples > 1 else NUM_AT_ONCE,
        )


@asynccontextmanager
async def opened(model: Path, folder: Path) -> AsyncIterator[Workbench]:
    """Start vLLM on a model, and end it when the block ends.

    Args:
        model: the base model's folder.
        folder: exists; takes database, logs and weights.
    """
    config = EngineConfig(max_loras=MAX_RESIDENT, kv_cache_gib=1)
    engine = VllmProcess(config, model=model, log_path=folder / "engine.log")
    await engine.start(say)
    try:
        async with attached(engine.url, engine.api_key, model=model, folder=folder) as bench:
            yield bench
    finally:
        await engine.stop()


@asynccontextmanager
async def attached(
    url: str, api_key: str | None, *, model: Path, folder: Path
) -> AsyncIterator[Workbench]:
    """Work with an engine that runs already."""
    async with PolicyClient(url, api_key) as client:
        bench = Workbench(client, model=model, folder=folder)
        try:
            await bench.slot.restore(client)
            yield bench
        finally:
            await bench.slot.close()
            bench.store.close()


def say(line: str) -> None:
    """Tell whoever waits how far it is."""
    print(line, file=sys.stderr, flush=True)
