"""A learning cycle learns from checks and trusted judges, and from no other judge."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from graders.calibration import TrustConfig
from graders.catalog import find_grader
from graders.trust import JudgeTrust
from graders.types import Grader
from learner.curriculum import LearnerConfig
from learner.cycle import LearningCycle
from learner.gate import GateConfig
from learner.registry import Registry
from learner.rollouts import Practice
from learner.sources import PracticeRows
from learner.workshop import Workshop
from memory.task_store import add_task
from memory.types import Call, CycleState, Message, Split, TaskSpec, message_text
from tests import records
from tests.graders.judged import SKILL as TRUSTED
from tests.graders.judged import ScriptedJudge, checked, found_skill, judged, record
from tests.learner.adapters import FIT, write_adapter

MISTRUSTED, CHECKED, MIXED = 8, 9, 10
TASKS = {
    TRUSTED: ("judge",),
    MISTRUSTED: ("judge",),
    CHECKED: ("exact",),
    MIXED: ("judge", "exact"),
}
GROUP = 4
TASKS_PER_SKILL = 4
CONFIG = LearnerConfig(
    group_size=GROUP,
    tasks_per_step=TASKS_PER_SKILL * len(TASKS),
    steps_per_cycle=1,
    min_train_tasks=1,
    min_heldout_tasks=1,
)


class FakePointer:
    """Takes decisions and forgets them."""

    live = "base"

    async def reject(self, version: str, **_: Any) -> None:
        """Take it."""

    async def approve(self, version: str, **_: Any) -> None:
        """Take it."""


class FakeWeights:
    """Serves whatever it is given."""

    async def load_ephemeral(self, name: str, path: Path) -> None:
        """Take it."""

    def unload(self, name: str) -> None:
        """Take it."""

    async def publish(self, version: str) -> None:
        """Take it."""


class FakeTraining:
    """Keeps the rows that it was given, and answers with an adapter."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.objective_gain = 0.2

    async def __aenter__(self) -> "FakeTraining":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def step(
        self, rows_path: Path, out_dir: Path, *, keep_moments: bool = False
    ) -> dict[str, Any]:
        self.rows += [json.loads(line) for line in rows_path.read_text("utf-8").splitlines()]
        out_dir.mkdir()
        write_adapter(out_dir)
        return {"trained_tokens": len(self.rows), "grad_norm": 1.0}

    async def effect(self) -> dict[str, Any]:
        return {
            "num_rewarded_tokens": 8,
            "rewarded_logprob_before": -0.75,
            "rewarded_logprob_after": -0.9,  # as where a model learns to answer shortly
            "objective_gain": self.objective_gain,
        }


async def sample(
    *, adapter: str, messages: Sequence[Message], sampling: Mapping[str, Any], num_samples: int
) -> list[Call]:
    """Answer every other time rightly; the prompt's tokens name the task."""
    number = int(message_text(messages[-1]).split()[0])
    return [
        records.call(
            id=f"{adapter}-{number}-{n}-{len(sampling)}",
            episode_id=f"ep_p-{adapter}-{number}-{n}-{len(sampling)}",
            adapter=adapter,
            message={"role": "assistant", "content": str(number) if n % 2 else "no"},
            prompt_token_ids=(number, 1),
        )
        for n in range(num_samples)
    ]


def task_number(skill_id: int, n: int) -> int:
    return skill_id * 100 + n


@pytest.fixture
async def trust(store) -> JudgeTrust:
    for skill_id in TASKS:
        found_skill(store, skill_id)
    # 30 pairs that agree admit the judge in two skills; in the third it has 12, and all agree.
    for number, (skill_id, num) in enumerate({TRUSTED: 30, MISTRUSTED: 12, MIXED: 30}.items()):
        for n in range(num):
            grades = [checked(float(n % 2)), judged(float(n % 2))]
            await record(store, 1_000 * number + n, grades, skill_id=skill_id)
    trust = JudgeTrust(store.judge_evidence, TrustConfig(min_canaries=0))
    trust.refresh()
    return trust


@pytest.fixture
def training() -> FakeTraining:
    return FakeTraining()


def cycle_of(store, trust: JudgeTrust, training: FakeTraining, tmp_path, skills) -> LearningCycle:
    def write(db) -> None:
        for skill_id, graders in TASKS.items():
            for n in range(TASKS_PER_SKILL + 2):
                fields = {"skill_id": skill_id, "grader": graders[n % len(graders)]}
                split = Split.TRAIN if n < TASKS_PER_SKILL else Split.HELDOUT
                add_task(db, records.task(task_number(skill_id, n), split=split, **fields))

    store.database.write(write)
    judge = ScriptedJudge(lambda text, question: float(text == question.split()[0]))

    def grader_of(task: TaskSpec) -> Grader:
        return judge if task.grader == "judge" else find_grader(task.grader)

    practice = Practice(sample=sample, grader_of=grader_of, store=store, trust=trust)
    shop = Workshop(
        store=store,
        registry=Registry(store.versions, tmp_path / "adapters", FIT),
        pointer=FakePointer(),  # type: ignore[arg-type]
        practice=practice,
        rows=PracticeRows(practice, CONFIG),
        weights=FakeWeights(),
        open_training=lambda _parent, _step: training,  # type: ignore[arg-type, return-value]
        base_digest=FIT.base_digest,
        work_dir=tmp_path / "work",
        learner=CONFIG,
        gate=GateConfig(min_tasks=2),
        promotes_by_itself=False,
    )
    cycle = records.cycle(skill_ids=tuple(skills))
    store.cycles.start(cycle)
    return LearningCycle(cycle, shop)


async def test_a_cycle_uses_what_checks_and_trusted_judges_say_and_counts_each(
    store, trust, training, tmp_path
):
    cycle = await cycle_of(store, trust, training, tmp_path, TASKS).run()
    assert cycle.state is not CycleState.FAILED, cycle.end_reason
    taught = Counter(row["token_ids"][0] // 100 for row in training.rows)
    num = TASKS_PER_SKILL * GROUP
    assert taught == {TRUSTED: num, CHECKED: num, MIXED: num}
    assert cycle.receipt["rollouts_by_provenance"] == {
        "judge": num + num // 2,  # of the trusted skill, and half of the mixed one's
        "check": num + num // 2,
        "none": num,
    }
    assert cycle.receipt["skipped_rollouts"] == {"advisory": num}
    [step] = store.cycles.steps(cycle.id)
    assert step.receipt["skipped_groups"] == {"too_few": TASKS_PER_SKILL}
    assert step.receipt["num_rows"] == 3 * num
    # Rightly answered rows are reinforced, whoever said so.
    assert {round(row["advantages"][-1], 3) for row in training.rows} == {0.5, -0.5}


async def test_a_cycle_on_a_mistrusted_judge_alone_ends_without_signal(
    store, trust, training, tmp_path
):
    cycle = await cycle_of(store, trust, training, tmp_path, [MISTRUSTED]).run()
    assert cycle.state is CycleState.NO_SIGNAL
    assert training.rows == []
    assert cycle.receipt["skipped_rollouts"] == {"advisory": TASKS_PER_SKILL * GROUP}
    practised = store.episodes.page(limit=500, source="practice")
    outcomes = {row["outcome"].unscored_reason for row in practised if row["skill"] == MISTRUSTED}
    assert outcomes == {
        "judge not trusted yet: 12 of 30 pairs",
    }


async def test_a_cycle_on_a_trusted_judge_alone_learns(store, trust, training, tmp_path):
    cycle = await cycle_of(store, trust, training, tmp_path, [TRUSTED]).run()
    assert cycle.candidate == "denizen-000001"
    assert cycle.receipt["rollouts_by_provenance"] == {"judge": TASKS_PER_SKILL * GROUP}
    assert len(training.rows) == TASKS_PER_SKILL * GROUP
    assert cycle.gate is not None
    assert cycle.gate["overall"]["num_tasks"] > 0
    # What a judge said is noted with the version that it taught.
    told = store.episodes.trained_on(store.versions.episodes_of(cycle.candidate)[0])
    assert (told[0]["outcome_provenance"], told[0]["outcome_changed"]) == ("judge", False)


@pytest.mark.parametrize(("gain", "effect"), [(0.2, "rose"), (0.0, "no effect")])
async def test_p42_a_cycle_says_whether_rewarded_answers_became_likelier_than_others(
    store, trust, training, tmp_path, gain: float, effect: str
) -> None:
    training.objective_gain = gain
    cycle = await cycle_of(store, trust, training, tmp_path, [CHECKED]).run()
    assert cycle.receipt["effect"] == effect
    assert cycle.receipt["objective_gain"] == gain
    assert ("no effect" in (cycle.end_reason or "")) == (effect == "no effect")
