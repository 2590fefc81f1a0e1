"""``bench/learning.py``'s parts, on a fake engine and without an optimizer."""

import numpy as np
import pytest

from bench import learning_run, live_run, sequence_run, workbench
from bench.learning_curves import Checkpoint, Curve, Point, race
from bench.learning_mix import MIX, STREAM_MIX, Kind, Scores, kind_of, mix_of
from bench.live_run import SingleEpisodes, _Task
from bench.trl_learning import _score
from graders.number_check import NUMERIC
from graders.types import Answer
from learner.curriculum import LearnerConfig
from learner.rows import Rollout, RolloutGroup
from tests.fake_engine import FakeEngine
from tests.service.quick_training import QuickTraining
from tests.tiny_model import VOCAB_SIZE, save_tiny_model

RIGHT = {
    task.text: task.reference for task in mix_of(MIX, num_train=48, num_heldout=12, seed=0).train
}


def right_answer(model: str, messages: list) -> str:
    """An adapter is always right, the base model every other time."""
    reference = RIGHT.get(messages[-1]["content"], "0")
    if model != "base":
        return reference
    right_answer.num_asked += 1
    return reference if right_answer.num_asked % 2 else "Let me think ."


right_answer.num_asked = 0


@pytest.fixture
async def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(workbench, "TrainingProcess", QuickTraining)
    model = save_tiny_model(tmp_path / "model")
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(model), answer=right_answer) as engine:
        async with workbench.attached(engine.url, None, model=model, folder=tmp_path) as bench:
            yield bench


def curve_of(*points: tuple[int, float, float]) -> Curve:
    weights = workbench.BASE_WEIGHTS
    return Curve(
        [
            Point(
                checkpoint=Checkpoint(
                    step=step, num_rollouts=step * 64, seconds=seconds, weights=weights
                ),
                scores=Scores(mean=mean, by_kind={"letters": mean}),
            )
            for step, seconds, mean in points
        ]
    )


def test_no_held_out_task_is_learned_and_the_kinds_take_turns() -> None:
    mix = mix_of(MIX, num_train=30, num_heldout=30, seed=0)
    assert not {task.id for task in mix.train} & {task.id for task in mix.heldout}
    assert [kind_of(task) for task in mix.train[:4]] == ["letters", "products", "sums", "letters"]
    assert {task.grader for task in (*mix.train, *mix.heldout)} == {"numeric"}


def test_seeds_change_the_order_and_nothing_that_is_scored() -> None:
    one, other = (mix_of(MIX, num_train=30, num_heldout=30, seed=seed) for seed in (0, 1))
    assert [task.id for task in one.heldout] == [task.id for task in other.heldout]
    assert [task.id for task in one.train] != [task.id for task in other.train]


def test_no_task_of_the_stream_comes_twice() -> None:
    stream = mix_of(STREAM_MIX, num_train=768, num_heldout=120, seed=4).train
    assert len({task.id for task in stream}) == 768


def test_a_score_is_reached_where_the_curve_stays_above_it() -> None:
    own = curve_of(
        (0, 0.0, 0.1), (5, 30.0, 0.5), (10, 60.0, 0.2), (15, 90.0, 0.45), (20, 120.0, 0.4)
    )
    peer = curve_of((0, 0.0, 0.1), (30, 300.0, 0.41))
    # From step 5 on the mean is (0.5 + 0.2 + 0.45 + 0.4) / 4 = 0.3875, too low; from 15 on 0.425.
    found = race(own, peer)
    assert found["reached"]["step"] == 15
    assert found["time_share"] == 0.3
    assert found["at_half_the_time"] == 0.4
    assert found["peer_seconds_a_step"] == 10.0


def test_a_score_that_is_never_reached_has_no_share_of_time() -> None:
    found = race(curve_of((0, 0.0, 0.1), (5, 30.0, 0.2)), curve_of((0, 0.0, 0.1), (30, 300.0, 0.4)))
    assert found["time_share"] is None
    assert found["reason"]


def test_the_rewards_of_the_peer_are_those_of_the_service() -> None:
    message = {"role": "assistant", "content": "3 * 4 = 12."}
    answer = Answer(messages=(), message=message, reference="12")
    assert _score((), message, "12") == NUMERIC.score(answer).value == 1.0
    assert _score((), message, "3") == 0.0


async def test_a_run_learns_in_steps_and_is_scored_without_its_clock(bench) -> None:
    mix = mix_of(MIX, num_train=48, num_heldout=12, seed=0)
    config = LearnerConfig(tasks_per_step=4, group_size=4)
    before = await bench.score(mix.train, workbench.BASE_WEIGHTS)
    async with learning_run.LearningRun(bench, mix.train, config) as run:
        reached = await run.advance(2)
        after = await bench.score(mix.train, run.weights)
        assert run.checkpoint == reached
    assert before.mean == 0.5
    assert after.mean == 1.0
    assert reached.num_rollouts == 32
    assert reached.seconds == pytest.approx(sum(one["seconds"] for one in run.receipts))
    assert reached.weights.name.endswith("-step-02")


async def test_weights_can_be_learned_on_from(bench) -> None:
    mix = mix_of(MIX, num_train=48, num_heldout=12, seed=0)
    config = LearnerConfig(tasks_per_step=4, group_size=4)
    async with learning_run.LearningRun(bench, mix.train, config) as run:
        first = await run.advance(1)
    async with learning_run.LearningRun(bench, mix.train, config, start=first.weights) as run:
        await run.advance(1)
        again = await bench.score(mix.train, first.weights)
    assert run.weights.name != first.weights.name
    assert again.mean == 1.0


def groups_of(rewards: list[float]) -> list[RolloutGroup]:
    return [
        RolloutGroup(
            id=str(number),
            task_id=str(number),
            skill_id=None,
            rollouts=[
                Rollout(
                    prompt_token_ids=(1, 2),
                    completion_token_ids=(3,),
                    sampler_logprobs=(-0.5,),
                    reward=reward,
                    finish_reason="stop",
                )
            ],
        )
        for number, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        # Each kind's others: 1 and 0.8, 0 and 0.2 … the two kinds are told apart by their level.
        ("neighbours", lambda found: abs(found).max() < 0.25),
        # Of all others: every answer to an easy task is good news, every other bad.
        ("overall", lambda found: (found[:4] > 0.3).all() and (found[4:] < -0.3).all()),
    ],
)
def test_single_episodes_are_compared_with_their_neighbours_or_with_all(baseline, expected) -> None:
    rewards = [1.0, 0.8, 0.9, 1.0, 0.0, 0.2, 0.1, 0.0]
    units = np.eye(2, dtype=np.float32)
    kinds = [Kind(name=name) for name in ("easy", "hard")]
    tasks = {
        str(number): _Task(kind=kinds[number // 4], vector_D=units[number // 4])
        for number in range(8)
    }
    rows = SingleEpisodes(tasks=tasks, baseline=baseline)
    batch = rows(groups_of(rewards))
    found = np.array([row.advantages[-1] for row in batch.rows])
    assert len(found) == 8
    assert expected(found)
    assert rows.shares[0] < 0.2


def test_a_grade_is_what_the_kinds_own_grader_gives() -> None:
    kinds = [
        Kind(name="lenient", grades=(0.7, 1.0)),
        Kind(name="strict", grades=(0.0, 0.3)),
    ]
    vector_D = np.ones(1, dtype=np.float32)
    tasks = {str(number): _Task(kind=kinds[number // 4], vector_D=vector_D) for number in range(8)}
    rows = SingleEpisodes(tasks=tasks, baseline="overall")
    found = np.array([row.advantages[-1] for row in rows(groups_of([1.0, 0, 0, 0] * 2)).rows])
    # All grades sum to 3.4; what is left without the own one is the seven others'.
    right, wrong = 1.0 - 2.4 / 7, 0.7 - 2.7 / 7
    assert found[:4] == pytest.approx([right, wrong, wrong, wrong])
    right, wrong = 0.3 - 3.1 / 7, 0.0 - 3.4 / 7
    assert found[4:] == pytest.approx([right, wrong, wrong, wrong])


async def test_both_baselines_and_practice_learn_the_stream(bench, monkeypatch) -> None:
    monkeypatch.setattr(live_run, "EPISODES_A_STEP", 8)
    monkeypatch.setattr(live_run, "GROUP_SIZE", 4)
    kept: list = []
    found = await live_run.measure(
        bench, seeds=range(1), num_steps=2, config=LearnerConfig(), keep=kept.append
    )
    assert [run["name"] for run in found["runs"]] == ["neighbours", "overall", "practice"]
    assert len(kept) == 3
    assert found["num_seeds"] == 1


async def test_a_second_skill_is_learned_with_rehearsal_and_without(bench) -> None:
    found = await sequence_run.measure(
        bench, seed=0, num_steps=1, config=LearnerConfig(group_size=2), keep=lambda _: None
    )
    assert found["settings"]["rehearsed_tasks_a_step"] == 2
    assert found["without_rehearsal"]["curve"][-1]["rollouts"] == 16
    assert found["with_rehearsal"]["curve"][-1]["rollouts"] == 20
    assert found["with_rehearsal"]["loss_on_letters"] == 0.0


def test_rehearsed_tasks_stand_behind_each_steps_own() -> None:
    new, known = (mix_of([kind], num_train=4, num_heldout=0, seed=0) for kind in MIX[:2])
    tasks = sequence_run._mixed(new, known, own=2, rehearsed=1)
    kinds = ["letters", "letters", "products"]
    assert [kind_of(task) for task in tasks] == [*kinds, *kinds]
