"""The learning cases that other projects were bitten by, one test each, by their numbers."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graders.catalog import find_grader
from learner import microbatches
from learner.curriculum import LearnerConfig
from learner.errors import NoSignalError, TrainingError
from learner.gate import GateConfig, Verdict, compare
from learner.microbatches import collate
from learner.rollouts import Practice
from learner.rows import Rollout, RolloutGroup, SkipReason, TrainingRow, rows_of
from learner.sources import PracticeRows, StepPlan
from learner.staleness import staleness
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from learner.trees import rows_of_tree
from memory.store import Store
from memory.task_store import add_task
from memory.types import Call, Edge, Message
from tests import records
from tests.learner.training_rows import UNIFORM, make_row, make_rows
from tests.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
CONFIG = TrainerConfig(rank=4, alpha=8, dtype="float32")
EOS = 2


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def rollout(reward: float | None, **changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "prompt_token_ids": (1, 9, 8),
        "completion_token_ids": (33, EOS),
        "sampler_logprobs": (UNIFORM, UNIFORM),
        "finish_reason": "stop",
    }
    return Rollout(reward=reward, **fields | changes)


def group(*rewards: float | None, **changes: Any) -> RolloutGroup:
    rollouts = [rollout(reward, **changes) for reward in rewards]
    return RolloutGroup(id="g", task_id="task_1", skill_id=1, rollouts=rollouts)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer._named_parameters().items()}


def call(name: str, prompt: list[int], completion: list[int], **fields: Any) -> Call:
    given = {
        "id": name,
        "prompt_token_ids": tuple(prompt),
        "completion_token_ids": tuple(completion),
        "sampler_logprobs": (UNIFORM,) * len(completion),
    }
    return records.call(**given | fields)


def test_p31_groups_without_contrast_teach_nothing_and_are_counted(model_dir: Path) -> None:
    batch = rows_of([group(1.0, 1.0, 1.0, 1.0), group(0.3)])
    assert batch.rows == ()
    assert batch.skipped_groups == {SkipReason.ZERO_SIGNAL: 1, SkipReason.TOO_FEW: 1}
    trainer = Trainer(model_dir, CONFIG)
    before = weights(trainer)
    with pytest.raises(NoSignalError):
        trainer.step(batch.rows)
    assert all(torch.equal(before[name], after) for name, after in weights(trainer).items())
    # means 0.1 and 0.9: each group is centered on its own, not on 0.5
    far = rows_of([group(0.0, 0.2), group(0.8, 1.0)])
    assert [row.advantages[-1] for row in far.rows] == pytest.approx([-0.1, 0.1, -0.1, 0.1])


def test_p32_a_missing_reward_leaves_and_nan_never_reaches_the_weights(model_dir: Path) -> None:
    batch = rows_of([group(1.0, None, 0.0)])
    assert batch.rows == rows_of([group(1.0, 0.0)]).rows
    assert batch.skipped_rollouts == {SkipReason.UNSCORED: 1}
    with pytest.raises(ValueError, match="finite"):
        rows_of([group(1.0, math.nan)])
    nan = dataclasses.replace(
        group(1.0, 0.0), rollouts=[rollout(1.0, sampler_logprobs=(math.nan, UNIFORM)), rollout(0.0)]
    )
    receipt = Trainer(model_dir, CONFIG).step(rows_of([nan]).rows)
    assert (receipt.num_unknown_tokens, receipt.trained_tokens) == (1, 3)
    assert math.isfinite(receipt.loss)
    broken = Trainer(model_dir, CONFIG)
    with torch.no_grad():
        broken._parameters[0].fill_(math.nan)
    before = weights(broken)
    with pytest.raises(TrainingError, match="must be finite"):
        broken.step(batch.rows)
    after = weights(broken)
    assert all(torch.equal(before[n], after[n]) for n in list(before)[1:])


@pytest.mark.parametrize(
    "rows",
    [[make_row(seed=i, advantage=(0.5, -0.5)[i % 2]) for i in range(8)], make_rows()],
    ids=["of one length", "of many lengths"],
)
def test_p33_the_update_does_not_depend_on_accumulation(
    model_dir: Path, rows: list[TrainingRow]
) -> None:
    deltas = []
    for num_tokens in (72, 36, 9):  # all eight rows at once, about four, one
        config = CONFIG.model_copy(update={"tokens_per_microbatch": num_tokens})
        trainer = Trainer(model_dir, config)
        before = weights(trainer)
        trainer.step(rows)
        deltas.append(
            torch.cat([(after - before[n]).flatten() for n, after in weights(trainer).items()])
        )
    for delta in deltas[1:]:
        assert float((delta - deltas[0]).norm() / deltas[0].norm()) < 1e-3


def test_p34_trained_ids_are_the_sampled_ones() -> None:
    # 33 and 34 are two halves of what a tokenizer would write as one token
    sampled = (33, 34, EOS)
    batch = rows_of([group(1.0, 0.0, completion_token_ids=sampled, sampler_logprobs=(-1.0,) * 3)])
    assert collate(batch.rows[:1], CPU).target_N.tolist() == list(sampled)


def test_p35_a_template_that_strips_thinking_forks_into_rows_of_what_was_seen() -> None:
    think, one, two, three = 70, 31, 32, 33
    calls = [
        call("a", [1, 10], [think, 71, one, EOS]),
        call("b", [1, 10, one, EOS, 11], [think, 72, two, EOS], parent_id="a", edge=Edge.FORK),
        call(
            "c",
            [1, 10, one, EOS, 11, two, EOS, 12],
            [think, 73, three, EOS],
            parent_id="b",
            edge=Edge.FORK,
        ),
    ]
    rows = rows_of_tree(calls, group_id="g", advantage=1.0).rows
    assert len(rows) == 3
    for row, one_call in zip(rows, calls, strict=True):
        prompt, completion = one_call.prompt_token_ids or (), one_call.completion_token_ids or ()
        assert row.token_ids == (*prompt, *completion)
        assert row.loss_mask == (False,) * len(prompt) + (True,) * len(completion)


def test_p36_tool_tokens_are_read_and_not_trained(model_dir: Path) -> None:
    def row(tool: list[int]) -> TrainingRow:
        calls = [
            call("a", [1, 10], [20, 21, EOS]),
            call(
                "b", [1, 10, 20, 21, EOS, *tool], [22, EOS], parent_id="a", edge=Edge.CONTINUATION
            ),
        ]
        [found] = rows_of_tree(calls, group_id="g", advantage=1.0).rows
        return found

    receipts = []
    for tool in ([40, 41, 42], [50, 51, 52]):
        receipts.append(Trainer(model_dir, CONFIG).step([row(tool)]))
        assert collate([row(tool)], CPU).target_N.tolist() == [20, 21, EOS, 22, EOS]
    assert [receipt.trained_tokens for receipt in receipts] == [5, 5]
    assert row([40, 41, 42]).loss_mask == row([50, 51, 52]).loss_mask
    assert receipts[0].loss != receipts[1].loss, "what the tool said is seen"


def test_p37_an_end_of_sequence_that_is_also_padding_is_trained(model_dir: Path) -> None:
    # lengths 2 and 4: whatever shorter rows might be padded with, counts come from lengths
    short = rollout(1.0)
    long = rollout(0.0, completion_token_ids=(33, EOS, EOS, EOS), sampler_logprobs=(UNIFORM,) * 4)
    batch = rows_of([dataclasses.replace(group(), rollouts=[short, long])])
    assert collate(batch.rows, CPU).target_N.tolist() == [33, EOS, 33, EOS, EOS, EOS]
    receipt = Trainer(model_dir, CONFIG).step(batch.rows)
    assert (receipt.trained_tokens, receipt.num_row_tokens) == (6, 5 + 7)


def test_p38_a_cut_completion_counts_alike_in_numerator_and_denominator(model_dir: Path) -> None:
    """The rule: it was sampled and graded, so it is trained like any other, and counted."""
    cut = [rollout(1.0), rollout(0.0, finish_reason="length")]
    whole = [rollout(1.0), rollout(0.0)]
    batches = [rows_of([dataclasses.replace(group(), rollouts=r)]) for r in (cut, whole)]
    assert [batch.num_truncated for batch in batches] == [1, 0]
    receipts = [Trainer(model_dir, CONFIG).step(batch.rows) for batch in batches]
    assert receipts[0].trained_tokens == receipts[1].trained_tokens == 4
    assert receipts[0].loss == receipts[1].loss
    assert receipts[0].grad_norm == receipts[1].grad_norm


def test_p39_a_sampler_that_reports_other_logprobs_shows_and_is_refused(model_dir: Path) -> None:
    own = Trainer(model_dir, CONFIG).trainer_logprobs(collate(make_rows(), CPU)).tolist()

    def shifted(by: float) -> list[TrainingRow]:
        values = iter(own)
        return [
            dataclasses.replace(
                row,
                sampler_logprobs=tuple(
                    next(values) + by if trained else None for trained in row.loss_mask
                ),
            )
            for row in make_rows()
        ]

    receipt = Trainer(model_dir, CONFIG).step(shifted(-0.1))
    # ratio exp(0.1) for every token; k3 = exp(0.1) - 1 - 0.1
    assert receipt.is_weight_mean == pytest.approx(math.exp(0.1), rel=1e-3)
    assert receipt.kl_sampler_trainer == pytest.approx(math.exp(0.1) - 1.1, rel=1e-2)
    assert receipt.logprob_gap == pytest.approx(0.1, rel=1e-3)
    capped = CONFIG.model_copy(update={"is_cap": 1.05})
    assert Trainer(model_dir, capped).step(shifted(-0.1)).is_weight_mean == pytest.approx(1.05)
    with pytest.raises(TrainingError, match="outside the trust region"):
        Trainer(model_dir, CONFIG).step(shifted(-0.6))


async def test_p39_practice_draws_from_the_whole_distribution(store: Store) -> None:
    """As the trainer computes it, whatever the task's own request says."""
    asked: list[Mapping[str, Any]] = []

    async def sample(*, sampling: Mapping[str, Any], **_: Any) -> list[Call]:
        asked.append(sampling)
        return []

    task = records.task(sampling={"top_p": 0.8, "top_k": 5, "min_p": 0.1, "max_tokens": 9})
    practice = Practice(sample=sample, grader_of=lambda task: find_grader(task.grader), store=store)
    store.cycles.start(records.cycle())
    plan = StepPlan(cycle_id="cycle_1", index=1, adapter="base", tasks=[task])
    await PracticeRows(practice, LearnerConfig()).gather(plan)
    [sampling] = asked
    drawn = {name: sampling[name] for name in ("top_p", "top_k", "min_p", "temperature")}
    assert drawn == {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "temperature": 1.0}
    assert sampling["max_tokens"] == 9


def test_p40_the_reference_of_a_version_is_the_version_it_continues(
    model_dir: Path, tmp_path: Path
) -> None:
    first = Trainer(model_dir, CONFIG.model_copy(update={"learning_rate": 3e-2}))
    first.step(make_rows())
    first.save(tmp_path)
    kls = {}
    for reference in ("parent", "base"):
        config = CONFIG.model_copy(update={"kl_coefficient": 0.1, "kl_reference": reference})
        trainer = Trainer(model_dir, config, parent_adapter=tmp_path)
        kls[reference] = [trainer.step(make_rows()).kl_reference or 0.0 for _ in range(2)]
    assert kls["parent"][0] == pytest.approx(0.0, abs=1e-6)
    assert kls["parent"][1] > 1e-6, "after a step it is no longer where it began"
    assert kls["base"][0] > 1e-4
    assert Trainer(model_dir, CONFIG).step(make_rows()).kl_reference is None


def test_p41_an_episode_is_as_old_as_its_oldest_token() -> None:
    live = "denizen-000009"
    assert staleness(["denizen-000009"], live) == 0
    assert staleness(["denizen-000009", "denizen-000006"], live) == 3, "as old as its oldest token"
    assert staleness(["base"], live) == 9
    assert staleness(["elsewhere"], live) is None


async def test_p41_what_old_weights_sampled_is_bounded_and_counted(store: Store) -> None:
    first, second, trained = "base", *(f"denizen-000001-step-0{n}-0ff0ff0f" for n in (1, 2))
    # two slow tasks of eight are by the weights of the step before: within the limit none is lost
    whose = [first, "elsewhere", second, second, *[trained] * 4]

    async def sample(*, messages: Sequence[Message], num_samples: int, **_: Any) -> list[Call]:
        number = int(str(messages[0]["content"]).split()[0])
        return [
            records.call(
                id=f"c{number}-{n}",
                episode_id=f"ep{number}-{n}",
                adapter=whose[number],
                message={"role": "assistant", "content": str(number) if n else "no"},
            )
            for n in range(num_samples)
        ]

    tasks = [records.task(number) for number in range(len(whose))]
    store.database.write(lambda db: [add_task(db, task) for task in tasks])
    store.cycles.start(records.cycle())
    practice = Practice(sample=sample, grader_of=lambda task: find_grader(task.grader), store=store)
    plan = StepPlan(
        cycle_id="cycle_1", index=3, adapter=trained, earlier=(first, second), tasks=tasks
    )
    gathered = await PracticeRows(practice, LearnerConfig(group_size=2)).gather(plan)
    assert gathered.batch.skipped_rollouts == {SkipReason.STALE: 2 * 2}
    assert [row.group_id for row in gathered.batch.rows] == [
        plan.group_id(number) for number in range(2, 8) for _ in range(2)
    ]
    receipt = gathered.to_json()
    assert (receipt["staleness_mean"], receipt["staleness_max"]) == (pytest.approx(1 / 3), 1)


def test_p42_a_step_proves_that_it_changed_something(model_dir: Path) -> None:
    trainer, rows = Trainer(model_dir, CONFIG), make_rows()
    batch = microbatches.collate(rows, CPU)
    before = trainer.trainer_logprobs(batch).detach()
    assert trainer.effect() is None
    receipts = [trainer.step(rows) for _ in range(3)]
    assert all(receipt.parameter_change > 0 for receipt in receipts)
    after = trainer.trainer_logprobs(batch).detach()
    rewarded = batch.advantages_N > 0
    assert after[rewarded].mean() > before[rewarded].mean()
    effect = trainer.effect()
    assert effect is not None
    assert effect.num_rewarded_tokens == rewarded.sum()
    assert effect.rewarded_logprob_before == pytest.approx(float(before[rewarded].mean()))
    assert effect.rewarded_logprob_after == pytest.approx(float(after[rewarded].mean()))
    advantages = batch.advantages_N
    gain = (advantages * (after - before)).sum() / advantages.abs().sum()
    assert effect.objective_gain == pytest.approx(float(gain))
    assert gain > 0
    with pytest.raises(TrainingError, match="did not move"):
        Trainer(model_dir, CONFIG.model_copy(update={"learning_rate": 0.0})).step(rows)


def test_p43_a_run_killed_anywhere_ends_with_the_same_bytes() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench.training_kills", "--kills", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert found["num_kills"] == 5
    assert found["num_resumed"] >= 3, "steps 1, 3 and 4 were made before three of the five kills"
    assert found["num_same_bytes"] == 5, ended.stderr
    assert found["num_half_written"] == 0
    assert found["num_adapters"] == 3, "one of the four steps has no signal"


def test_p44_a_candidate_that_wins_the_new_task_and_loses_the_old_one_stays_out() -> None:
    names = [f"task_{i}" for i in range(30)]
    before = dict(zip(names, [0.0] * 20 + [1.0] * 10, strict=True))
    after = dict(zip(names, [1.0] * 20 + [0.5] * 10, strict=True))
    skills: dict[str, int | None] = dict(zip(names, [1] * 20 + [2] * 10, strict=True))
    report = compare(before, after, skills, config=GateConfig())
    assert report.overall.mean_gain > 0
    assert report.verdict is Verdict.REJECT
    assert report.reasons[0].startswith("skill 2: lost 1.000 -> 0.500 (-0.500")
