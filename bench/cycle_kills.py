"""Kills a service again and again while it runs a learning cycle, and starts it anew each time.

Everything is real but the engine, which is the fake one (it answers the same seed with the same
tokens), and the model, which is tiny: the store, the steps, the training process, the gate, the
pointer. A cycle is begun in a home that is copied for each run, so that all runs are of the same
cycle. A kill is SIGKILL from inside the process, a random time after the cycle came to a phase,
each phase in turn.
"""

import asyncio
import hashlib
import os
import random
import shutil
import signal
import socket
import sqlite3
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import uvloop

import settings as configuration
from agent.base_model import base_digest
from agent.http_server import listen
from assembly import parts
from bench import forked_worker
from learner import runner
from learner.adapter_files import verify
from learner.curriculum import LearnerConfig
from learner.cycle import LearningCycle
from learner.training_process import TrainingProcess
from learner.workshop import Progress, Workshop
from memory.database import Transaction
from memory.errors import AdapterError
from memory.skill_writes import save_skill
from memory.store import Store
from memory.task_store import add_task
from memory.types import Cycle, CycleState, Split, TaskSpec, task_id, utc_now
from memory.version_store import BASE
from service import Service
from tests.fake_engine import FakeEngine
from tests.running import HashEmbedder
from tests.tiny_model import VOCAB_SIZE

LEARNER: dict[str, Any] = {
    "enabled": False,
    "rank": 2,
    "alpha": 4,
    "dtype": "float32",
    "group_size": 3,
    "tasks_per_step": 4,
    "steps_per_cycle": 2,
    "max_sequence_gap": 100.0,  # the fake engine's log-probabilities are not the tiny model's
    "num_threads": 1,
}
OVERLAPPING = {"overlap": True, "steps_per_cycle": 3}
"""The third step is the first that is sampled by weights of a step, and not by the newest."""
ANSWER_S = 0.2
"""Seconds until the engine answers where steps overlap; about as long as a step is trained."""
CYCLE_ID = "cycle_0199a0000000-5eed5eed"
NUM_TASKS = 40
POLL_S = 0.01
STEP_PHASES = {"practising", "training"}
ENDED = "ended"
""""Phase" of a cycle that has its verdict."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """When a service is to be killed."""

    phase: str
    delay_s: float


@dataclass(kw_only=True)
class Life:
    """What a service said of its cycle while it lived."""

    phases: list[tuple[str, float]] = field(default_factory=list)  # and when each began, seconds
    was_killed: bool = False


class ForkedTraining(TrainingProcess):
    """A training process that is a fork of one that has loaded torch."""

    socket_path: ClassVar[Path]

    def __init__(self, **options: Any) -> None:
        """Take what a real one takes."""
        super().__init__(**options)
        module = self._command.index("learner.worker")
        self._command[module : module + 1] = [forked_worker.__name__, str(self.socket_path)]


def kill_cycles(
    folder: Path,
    num_kills: int,
    *,
    most_in_a_cycle: int,
    is_forked: bool,
    overlaps: bool,
    rng: random.Random,
) -> dict[str, Any]:
    """Kill services until there were ``num_kills``; return what came of their cycles.

    Args:
        folder: holds the base model in ``model``; for the homes of the services.
        num_kills: in all.
        most_in_a_cycle: after as many deaths a cycle would be taken for the cause of them.
        is_forked: whether training processes are forks, which saves the seconds of loading torch.
        overlaps: whether steps are sampled while the ones before are trained.
        rng: decides when.
    """
    if overlaps:
        LEARNER.update(OVERLAPPING)
    runner.MAX_DEATHS = most_in_a_cycle
    model, begun, whole = folder / "model", folder / "begun", folder / "whole"
    _wait_for(_fork(partial(_begin, begun, model)))
    with _engine(model) as engine_url, _workers(folder / "workers", is_forked):
        shutil.copytree(begun, whole)
        lasts = _seconds_of(_live(whole, engine_url, None))
        expected = _result(whole)
        if expected["state"] != CycleState.PROMOTED:
            raise RuntimeError(f"the undisturbed run failed: {expected}")
        tally = Tally(expected=expected, lasts=lasts)
        while tally.killed_in.total() < num_kills:
            run = folder / "run"
            shutil.copytree(begun, run)
            num = min(most_in_a_cycle, num_kills - tally.killed_in.total())
            tally.disturb(run, engine_url, num, rng)
            shutil.rmtree(run)
    return tally.to_json()


@dataclass(kw_only=True)
class Tally:
    """What came of the kills so far."""

    expected: Mapping[str, Any]  # of the undisturbed run
    lasts: Mapping[str, float]  # seconds that a phase takes, in the order of phases
    killed_in: Counter[str] = field(default_factory=Counter)
    num_cycles: int = 0
    num_same: int = 0
    num_late: int = 0
    num_not_whole: int = 0

    def disturb(self, home: Path, engine_url: str, num: int, rng: random.Random) -> None:
        """Let a cycle come to its end through ``num`` kills, in the phases hit least so far."""
        self.num_cycles += 1
        phases = list(self.lasts)
        chosen = sorted(phases, key=lambda phase: (self.killed_in[phase], rng.random()))[:num]
        for phase in sorted(chosen, key=phases.index):
            kill = Kill(phase=phase, delay_s=rng.uniform(0, self.lasts[phase]))
            life = _live(home, engine_url, kill)
            self.num_not_whole += _num_not_whole(home)
            if not life.was_killed:
                self.num_late += 1  # the cycle had ended by then
                break
            self.killed_in[life.phases[-1][0]] += 1
        else:
            _live(home, engine_url, None)
        found = _result(home)
        self.num_same += found == self.expected
        if found != self.expected:
            print(f"expected {self.expected}, found {found}", file=sys.stderr)

    def to_json(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "num_kills": self.killed_in.total(),
            "num_cycles": self.num_cycles,
            "num_same_adapter": self.num_same,
            "num_adapters_not_whole": self.num_not_whole,
            "num_late": self.num_late,
            "killed_in": {phase: self.killed_in[phase] for phase in [*self.lasts, ENDED]},
            "seconds_of_a_run": round(sum(self.lasts.values()), 2),
        }


def _seconds_of(life: Life) -> dict[str, float]:
    return {phase: end - start for (phase, start), (_, end) in pairwise(life.phases)}


def _result(home: Path) -> dict[str, Any]:
    """Return what a cycle has come to: its verdict, its steps' weights, the version's files."""
    with closing(sqlite3.connect(home / "denizen.db")) as db:
        state, candidate, reason = db.execute(
            "SELECT state, candidate, end_reason FROM cycles WHERE id = ?", (CYCLE_ID,)
        ).fetchone()
        steps = db.execute(
            """SELECT json_extract(receipt, '$.sha256') FROM cycle_steps ORDER BY "index" """
        ).fetchall()
        live = db.execute("SELECT to_version FROM pointer_moves ORDER BY id").fetchall()
    files = {
        str(path.relative_to(home / "adapters")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((home / "adapters").glob("denizen-*/*"))
    }
    return {"state": state, "reason": reason, "steps": steps, "live": live, candidate: files}


def _num_not_whole(home: Path) -> int:
    """Count versions that are listed, and so offered, and are not what was sealed."""
    with closing(sqlite3.connect(home / "denizen.db")) as db:
        listed = db.execute("SELECT id, sha256 FROM adapter_versions").fetchall()
    num = 0
    for version, sha256 in listed:
        try:
            verify(home / "adapters", version, expected_sha256=sha256)
        except AdapterError:
            num += 1
    return num


@contextmanager
def _engine(model: Path) -> Iterator[str]:
    """Run a fake engine in a child of its own; yield its address."""
    reader, writer = os.pipe()

    def work() -> None:
        with FakeEngine(vocab_size=VOCAB_SIZE, root=str(model), answer=_answer) as engine:
            engine.control(delay_s=ANSWER_S if LEARNER.get("overlap") else 0.0)
            os.write(writer, f"{engine.url}\n".encode())
            threading.Event().wait()

    with _beside(work), os.fdopen(reader, encoding="utf-8") as pipe:
        yield pipe.readline().strip()
    os.close(writer)


@contextmanager
def _workers(path: Path, is_forked: bool) -> Iterator[None]:
    """Let training processes be forks of one that has loaded torch, where that is asked for."""
    if not is_forked:
        yield
        return
    ForkedTraining.socket_path = path
    setattr(parts, TrainingProcess.__name__, ForkedTraining)
    with forked_worker.listen(path) as listener, _beside(lambda: forked_worker.serve(listener)):
        yield


@contextmanager
def _beside(work: Callable[[], object]) -> Iterator[None]:
    """Do work in a child until the context ends."""
    pid = _fork(work)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(weights: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """An adapter gives the bare number, the base model rambles around it."""
    number = str(messages[-1]["content"]).split()[0]
    return f"well , that would be {number} then" if weights == "base" else number


def _begin(home: Path, model: Path) -> None:
    """Make a home in which a cycle has begun, and its service was stopped before it did a thing."""
    home.mkdir()
    store = Store(home / "denizen.db")
    config = LearnerConfig(**LEARNER)

    def write(db: Transaction) -> None:
        save_skill(
            db,
            skill_id=1,
            title="numbers",
            tenant=None,
            task_key=None,
            embedder=HashEmbedder.id,
            centroid_D=None,
            count=0,
        )
        for number in range(NUM_TASKS):
            add_task(db, _task(number))

    store.database.write(write)
    store.cycles.start(
        Cycle(
            id=CYCLE_ID,
            created_at=utc_now(),
            state=CycleState.RUNNING,
            start_version=BASE,
            skill_ids=(1,),
            reason="a benchmark",
            base_digest=base_digest(model),
            settings_sha256=config.sha256,
        )
    )
    store.cycles.note_stop(CYCLE_ID)
    store.close()


def _task(number: int) -> TaskSpec:
    messages = ({"role": "user", "content": f"{number} is which number?"},)
    return TaskSpec(
        id=task_id(messages, str(number), "contains", {}),
        created_at=utc_now(),
        messages=messages,
        reference=str(number),
        grader="contains",
        split=Split.HELDOUT if number % 4 == 0 else Split.TRAIN,
        origin="api",
        skill_id=1,
    )


def _live(home: Path, engine_url: str, kill: Kill | None) -> Life:
    """Run a service until its cycle has ended or it is killed."""
    reader, writer = os.pipe()
    pid = _fork(partial(_serve, home, engine_url, kill, writer))
    os.close(writer)
    life = Life()
    with os.fdopen(reader, encoding="utf-8") as pipe:
        for line in pipe:
            at, _, phase = line.rstrip("\n").partition(" ")
            life.phases.append((phase, float(at)))
    life.was_killed = _wait_for(pid) == -signal.SIGKILL
    return life


def _serve(home: Path, engine_url: str, kill: Kill | None, writer: int) -> None:
    """Run the service in this process; say each phase of its cycle."""

    def enter(phase: str) -> None:
        os.write(writer, f"{time.monotonic()} {phase}\n".encode())
        if kill is not None and kill.phase == phase:
            threading.Timer(kill.delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    class SayingProgress(Progress):
        """Says where the cycle is as soon as it is there."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "phase":
                enter(f"{value} {self.step}" if value in STEP_PHASES else value)

    def saying(cycle: Cycle, workshop: Workshop, progress: Progress | None = None) -> LearningCycle:
        return LearningCycle(cycle, workshop, progress or SayingProgress())

    setattr(runner, LearningCycle.__name__, saying)
    sections = {"engine": {"urls": (engine_url,)}, "learner": LEARNER}
    own = Service(configuration.load(home, sections), home, HashEmbedder())
    with (home / "said.log").open("ab") as log, listen("127.0.0.1", 0) as listener:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        uvloop.run(_until_ended(own, listener))
    enter(ENDED)


async def _until_ended(own: Service, listener: socket.socket) -> None:
    running = asyncio.create_task(own.run(listener))
    while not running.done() and (own._server is None or own.parts.store.cycles.running()):
        await asyncio.sleep(POLL_S)
    own.request_stop()
    await running


def _fork(work: Callable[[], object]) -> int:
    """Run work in a child, which ends as it ends; return its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _wait_for(pid: int) -> int:
    """Return a child's status, negative for a signal.

    Raises:
        RuntimeError: it failed.
    """
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 0:
        raise RuntimeError("a child failed; what it said stands above, or in its home's said.log")
    return status
