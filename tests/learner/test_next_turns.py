"""Recorded turns are taken again: chosen, sampled, ranked together, trained, and erased."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graders.chat_model import Failure, TeacherError
from graders.ranking import RankingJudge
from learner.live_record import is_heldout
from learner.next_turns import NextTurns
from learner.receipts import cycle_receipt
from learner.sources import JoinedRows, StepPlan
from memory.eraser import Eraser
from memory.erasure_scope import Scope
from memory.errors import InvalidRequestError
from memory.store import Store
from memory.task_store import add_task
from memory.types import Call, CycleState, EpisodeSource, Split, new_id
from tests import records
from tests.graders.judged import found_skill
from tests.graders.judges import FakeTeacher, always_first, ranking, shown
from tests.learner.test_cycle_trust import FakeTraining
from tests.learner.test_live_cycle import CONFIG, LIVE_ONLY, cycle_of, put_live

NUM_EPISODES = 16
GROUP = 4
SETTINGS = CONFIG.model_copy(update={"next_turns_per_step": 3, "next_turn_group_size": GROUP})
PLAN = StepPlan(cycle_id="cycle_1", index=1, adapter="base", tasks=())


class Turns:
    """Samples alternatives of other lengths: the n-th says n + 1 words."""

    def __init__(self, *, refuses: int | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._refuses = refuses  # the request of this number

    async def __call__(
        self,
        *,
        adapter: str,
        prompt_token_ids: Sequence[int],
        request: Mapping[str, Any],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        self.asked.append({"adapter": adapter, "prompt": tuple(prompt_token_ids), **sampling})
        if self._refuses == len(self.asked):
            raise InvalidRequestError("too long")
        named = new_id("turn")
        return [
            records.call(
                id=f"alt-{named}-{n}",
                episode_id=f"ep_alt-{named}-{n}",
                adapter=adapter,
                request={**request, **sampling},
                message={"role": "assistant", "content": "word " * n + "word"},
                prompt_token_ids=tuple(prompt_token_ids),
                completion_token_ids=(*(50,) * (n + 1), 2),
                sampler_logprobs=(-0.5,) * (n + 2),
            )
            for n in range(num_samples)
        ]


class Trusting:
    """Trusts the ranking judge of the skills that it is told."""

    def __init__(self, *skills: int) -> None:
        self._skills = skills

    def doubt(self, grader: str, version: str, skill_id: int | None) -> str | None:
        """Answer as trust does."""
        return None if skill_id in self._skills else "judge not trusted yet: 0 of 30 pairs"


SHORTEST_FIRST = ranking(lambda text: -len(text))


def source(
    store: Store,
    answer: Callable[..., Any] = SHORTEST_FIRST,
    *,
    turns: Turns | None = None,
    trusts: Sequence[int] = (LIVE_ONLY,),
    why_not: str | None = None,
    **settings: Any,
) -> tuple[NextTurns, Turns, FakeTeacher]:
    turns, teacher = turns or Turns(), FakeTeacher(answer)
    return (
        NextTurns(
            store,
            sample=turns,
            ranker_of=lambda _skill_id: RankingJudge(teacher),
            why_not_now=lambda: why_not,
            trust=Trusting(*trusts),
            config=SETTINGS.model_copy(update=settings),
        ),
        turns,
        teacher,
    )


@pytest.fixture
async def recorded(store: Store) -> Store:
    """A harness's sessions of two turns, and a cycle of their skill that runs."""
    found_skill(store, LIVE_ONLY)
    for number in range(NUM_EPISODES):
        await put_live(store, number, float(number % 2))
    store.cycles.start(records.cycle(skill_ids=(LIVE_ONLY,), created_at=records.later(60)))
    return store


def teachable(store: Store) -> set[str]:
    found = store.prefixes.newest([LIVE_ONLY], until=records.later(60), limit=99)
    share = SETTINGS.live_heldout_share
    return {one.id for one in found if not is_heldout(one, share=share)}


async def test_alternatives_at_recorded_prefixes_are_ranked_together_and_become_rows(recorded):
    its, turns, teacher = source(recorded)
    found = await its.gather(PLAN)
    prompts = {call.prompt_token_ids for n in range(NUM_EPISODES) for call in calls(recorded, n)}
    assert len(turns.asked) == 3
    assert {one["prompt"] for one in turns.asked} <= prompts, "token for token as recorded"
    assert len({one["prompt"][1] for one in turns.asked}) == 3, "one of each episode"
    assert {one["top_k"] for one in turns.asked} == {-1}
    assert len(teacher.requests) == 3 * 3, "votes"
    rows = found.batch.rows
    assert len(rows) == 3 * GROUP == found.receipt["next_turn_rows"]
    for row in rows:
        num_words = sum(row.loss_mask) - 2
        # values 1, 2/3, 1/3, 0 less their mean
        assert row.advantages[-1] == pytest.approx(0.5 - num_words / 3)
        assert row.token_ids[: -num_words - 2] in prompts
        assert not any(row.loss_mask[: -num_words - 2]), "the prefix is not trained"
    assert found.receipt["next_turns"]["num_tried"] == 3
    assert not found.is_over
    assert recorded.judge_evidence.unlabelled(99) == [], "people are not asked about alternatives"


def calls(store: Store, number: int) -> list[Call]:
    return store.episodes.calls(f"ep_{number:03d}")


async def test_the_judge_sees_what_happened_next_fenced_and_without_control_tokens(store):
    found_skill(store, LIVE_ONLY)
    for number in range(NUM_EPISODES):
        await put_live(store, number, None)
    said = {"role": "assistant", "content": "TAKEN-TURN <|im_end|>"}
    sql = "UPDATE calls SET message = ? WHERE parent_id IS NULL"
    store.database.write(lambda db: db.execute(sql, (json.dumps(said),)))
    more = [{"role": "user", "content": "3 * 4?"}, said, {"role": "tool", "content": "FAILED"}]
    sql = "UPDATE calls SET request = ? WHERE parent_id IS NOT NULL"
    asked = json.dumps({"messages": more, "tools": [{"name": "A-TOOL"}]})
    store.database.write(lambda db: db.execute(sql, (asked,)))
    store.cycles.start(records.cycle(skill_ids=(LIVE_ONLY,), created_at=records.later(60)))
    its, _, teacher = source(store)
    found = await its.gather(PLAN)
    assert found.batch.num_trained_groups == 3
    for request in teacher.requests:
        data = request.messages[1]["content"]
        told = data.split("What happened next, when this turn was taken then:\n<<<")[1]
        told = told.split(">>>")[0]
        assert "TAKEN-TURN" in told and "FAILED" in told
        assert "<|im_end|>" not in data
        assert "What happened next" not in "".join(text for _, text in shown(request))


async def test_p45_a_judge_that_goes_by_the_seat_gives_no_signal_and_no_zero(recorded):
    its, _, _ = source(recorded, always_first)
    found = await its.gather(PLAN)
    assert found.batch.rows == ()
    assert found.batch.to_json()["skipped_rollouts"] == {"unscored": 3 * GROUP}
    assert found.batch.to_json()["skipped_groups"] == {"too_few": 3}
    assert found.receipt["next_turns"]["unscored"] == {"tie": 3 * GROUP}
    assert found.episode_ids == frozenset(), "nothing taught"
    practised = recorded.episodes.page(limit=99, source="practice")
    assert len(practised) == 3 * GROUP
    assert {row["outcome"].value for row in practised} == {None}


async def test_a_judge_that_cannot_be_reached_costs_the_groups_and_says_so(recorded):
    its, _, _ = source(recorded, lambda _: TeacherError(Failure.TIMEOUT))
    found = await its.gather(PLAN)
    assert found.batch.rows == ()
    assert found.receipt["next_turns"]["unscored"] == {"judge_timeout": 3 * GROUP}


async def test_nothing_is_sampled_while_the_judge_may_not_be_asked(recorded):
    its, turns, teacher = source(recorded, why_not="judge_budget_spent")
    found = await its.gather(PLAN)
    assert (turns.asked, teacher.requests, found.batch.rows) == ([], [], ())
    assert found.receipt["next_turns"]["why_not"] == "judge_budget_spent"
    assert not found.is_over, "the allowance comes back"


async def test_a_judge_that_is_not_trusted_in_the_skill_is_not_asked(recorded):
    its, turns, teacher = source(recorded, trusts=())
    found = await its.gather(PLAN)
    assert (turns.asked, teacher.requests, found.batch.rows) == ([], [], ())
    assert found.receipt["next_turns"]["left_out"]["advisory"] == len(teachable(recorded))
    assert found.is_over


async def test_a_prompt_that_the_engine_refuses_takes_no_other_with_it(recorded):
    its, _, _ = source(recorded, turns=Turns(refuses=2))
    found = await its.gather(PLAN)
    assert found.batch.num_trained_groups == 2
    account = found.receipt["next_turns"]
    assert (account["num_prefixes"], account["num_tried"]) == (3, 2)


async def test_asked_again_for_a_step_it_answers_what_was_recorded(recorded):
    """After a SIGKILL engine and judge might answer differently, and trust be another."""
    first = await source(recorded)[0].gather(PLAN)
    its, turns, teacher = source(recorded, ranking(len), trusts=())
    again = await its.gather(PLAN)
    assert (again.batch.rows, again.episode_ids) == (first.batch.rows, first.episode_ids)
    assert (turns.asked, teacher.requests, again.is_over) == ([], [], False)


async def test_a_step_that_was_not_recorded_is_sampled_with_the_same_seeds(recorded):
    its, turns, _ = source(recorded)
    chosen = [await its.gather(replace(PLAN, index=n)) for n in (1, 2)]
    recorded.database.write(lambda db: db.execute("DELETE FROM cycle_episodes"))
    for number in range(500, 503):
        await put_live(recorded, number, 1.0, created_at=records.later(90))  # for the next cycle
    other, again, _ = source(recorded)
    await other.gather(PLAN)
    assert again.asked == turns.asked[:3]
    assert turns.asked[:3] != turns.asked[3:]
    assert chosen[0].episode_ids.isdisjoint(chosen[1].episode_ids)


async def test_each_episode_has_one_turn_in_a_cycle_and_then_it_is_over(recorded):
    its, turns, _ = source(recorded)
    for index in range(1, 40):
        found = await its.gather(replace(PLAN, index=index))
        if found.is_over:
            break
    prompts = [one["prompt"][1] for one in turns.asked]
    assert sorted(f"ep_{token - 100:03d}" for token in prompts) == sorted(teachable(recorded))
    assert index == math.ceil(len(prompts) / SETTINGS.next_turns_per_step) + 1


async def test_steps_pass_over_episodes_without_a_turn_and_take_all_others(recorded):
    """Each is passed over once, by the step that comes to it."""
    dumb = sorted(teachable(recorded))[::2]
    sql = "UPDATE calls SET learn = 0 WHERE episode_id = ?"
    recorded.database.write(lambda db: [db.execute(sql, (one,)) for one in dumb])
    its, turns, _ = source(recorded)
    num_skipped = 0
    for index in range(1, 40):
        found = await its.gather(replace(PLAN, index=index))
        num_skipped += found.receipt["next_turns"]["skipped"].get("no_sequel", 0)
        if found.is_over:
            break
    taken = sorted(f"ep_{one['prompt'][1] - 100:03d}" for one in turns.asked)
    assert taken == sorted(teachable(recorded) - set(dumb))
    assert num_skipped == len(dumb)


@pytest.mark.parametrize(
    "fields",
    [
        {"learn": False},
        {"withheld": "control_tokens"},
        {"tenant": "acme"},
        {"source": EpisodeSource.PRACTICE},
        {"created_at": records.later(90)},
    ],
)
async def test_prefixes_are_of_work_that_may_teach(store, fields):
    found_skill(store, LIVE_ONLY)
    await put_live(store, 1, None)
    await put_live(store, 2, 1.0, **fields)
    found = store.prefixes.newest([LIVE_ONLY], until=records.later(60), limit=9)
    assert [one.id for one in found] == ["ep_001"], "graded or not"


async def test_an_episode_that_made_a_task_is_practised_whole_instead(store):
    found_skill(store, LIVE_ONLY)
    await put_live(store, 1, 1.0)
    task = records.task(7, origin="episode:ep_001", skill_id=LIVE_ONLY)
    store.database.write(lambda db: add_task(db, task))
    assert store.prefixes.newest([LIVE_ONLY], until=records.later(60), limit=9) == []


@pytest.mark.parametrize(
    ("settings", "sql", "reason"),
    [
        ({"max_row_tokens": 3}, None, "too_long"),
        ({}, """UPDATE calls SET usage = '{"prompt_tokens": 5000}'""", "too_long"),
        ({}, "UPDATE calls SET prompt_token_ids = NULL, shared = '{}'", "no_prompt"),
        ({}, "UPDATE calls SET learn = 0", "no_sequel"),
    ],
)
async def test_what_cannot_be_taken_again_is_counted(recorded, settings, sql, reason):
    if sql is not None:
        recorded.database.write(lambda db: db.execute(sql))
    its, turns, _ = source(recorded, **settings)
    found = await its.gather(PLAN)
    assert turns.asked == []
    assert found.receipt["next_turns"]["skipped"] == {reason: len(teachable(recorded))}
    assert found.is_over
    assert found.receipt["next_turns"]["left_out"] == {
        "heldout": NUM_EPISODES - len(teachable(recorded))
    }


async def test_alternatives_end_where_the_recorded_turn_had_to(recorded):
    sql = """UPDATE calls SET request = json_set(request, '$.max_tokens', 7, '$.stop', 'END')
        WHERE base_id IS NULL"""
    recorded.database.write(lambda db: db.execute(sql))
    its, turns, _ = source(recorded, next_turns_per_step=9)
    await its.gather(PLAN)
    assert {(one["max_tokens"], one.get("stop")) for one in turns.asked} >= {(7, "END")}


async def test_words_of_held_out_tasks_are_kept_out(recorded):
    for number in range(NUM_EPISODES):
        asked = ({"role": "user", "content": f"mend  {number}"},)
        task = records.task(
            number, messages=asked, split=Split.HELDOUT, skill_id=LIVE_ONLY, origin="api"
        )
        recorded.database.write(lambda db, task=task: add_task(db, task))
    found = await source(recorded)[0].gather(PLAN)
    assert found.is_over
    assert found.receipt["next_turns"]["left_out"] == {"heldout": NUM_EPISODES}


def learning(store: Store, training: FakeTraining, folder: Path, its: NextTurns) -> Any:
    cycle = cycle_of(store, training, folder, [LIVE_ONLY])
    cycle.workshop = replace(cycle.workshop, rows=JoinedRows(cycle.workshop.rows, its))
    return cycle


async def test_a_cycle_trains_on_ranked_turns_and_an_erasure_taints_what_it_made(store, tmp_path):
    found_skill(store, LIVE_ONLY)
    for number in range(NUM_EPISODES):
        await put_live(store, number, float(number % 2))
    its, turns, _ = source(store)
    training = FakeTraining()
    cycle = await learning(store, training, tmp_path, its).run()
    assert cycle.state is CycleState.PROPOSED, cycle.end_reason
    ranked = [row for row in training.rows if "next-turns" in row["group_id"]]
    assert len(ranked) == cycle.receipt["next_turn_rows"] == len(turns.asked) * GROUP
    assert cycle.receipt["live_rows"] > 0, "beside the record itself"
    assert cycle.receipt["next_turns"]["num_tried"] == len(turns.asked)
    adapters = [one["adapter"] for one in turns.asked]
    assert adapters[0] == "base" and "step-01" in adapters[-1], "the weights that are trained"
    taught = set(store.versions.episodes_of(cycle.candidate))
    own = {f"ep_{one['prompt'][1] - 100:03d}" for one in turns.asked}
    assert own <= taught
    practised = {row["id"] for row in store.episodes.page(limit=500, source="practice")}
    assert practised == {id for id in taught if id.startswith("ep_alt")}
    [erased, *_] = sorted(own)
    eraser = Eraser(store, tmp_path, running=lambda scope: set(), forget=[])
    told = await eraser.erase(Scope(episode=erased), actor="test")
    assert [one.version for one in told["tainted"]] == [cycle.candidate]
    left = {row["id"] for row in store.episodes.page(limit=500, source="practice")}
    assert len(practised - left) == GROUP, "what was sampled after its words goes with them"
    assert {store.episodes.get(id).task_id for id in practised & left} == own - {erased}


async def test_a_cycle_that_was_killed_at_a_step_goes_on_with_the_same_rows(store, tmp_path):
    found_skill(store, LIVE_ONLY)
    for number in range(NUM_EPISODES):
        await put_live(store, number, float(number % 2))

    class Killed(FakeTraining):
        async def step(self, rows_path: Path, out_dir: Path, **_: Any) -> dict[str, Any]:
            self.rows += [json.loads(line) for line in rows_path.read_text("utf-8").splitlines()]
            raise KeyboardInterrupt

    killed = Killed()
    first = learning(store, killed, tmp_path, source(store)[0])
    with pytest.raises(KeyboardInterrupt):
        await first.run()
    its, turns, _ = source(store, ranking(len))  # a judge that says the opposite by now
    training = FakeTraining()
    second = replace(first, workshop=replace(first.workshop, rows=JoinedRows(its)))
    second.workshop = replace(
        second.workshop,
        rows=JoinedRows(first.workshop.rows._sources[0], its),
        open_training=lambda _parent, _step: training,
    )
    await second.run()
    assert training.rows[: len(killed.rows)] == killed.rows
    assert all(one["adapter"] != "base" for one in turns.asked), "the first step's are there"


def test_a_cycle_without_next_turns_says_nothing_of_them() -> None:
    assert cycle_receipt([])["next_turns"] is None
    assert cycle_receipt([])["next_turn_rows"] == 0
