import random
from collections import Counter

import pytest

from learner.curriculum import (
    LearnerConfig,
    choose,
    choose_for_step,
    missing,
    missing_work,
    taking_part,
    value_of,
)
from memory.task_store import Tries, add_task
from memory.types import EpisodeSource, Skill, SkillPolicy, Split
from tests import records

CONFIG = LearnerConfig(min_new_signal=16, min_train_tasks=8, min_heldout_tasks=4)


def skill(**fields) -> Skill:
    full = {"num_new_signal": 16, "num_train_tasks": 8, "num_heldout_tasks": 4}
    return Skill(**{"id": 1, "title": "sums", "created_at": records.NOON} | full | fields)


def test_enough_of_everything_is_ready():
    assert missing(skill(), CONFIG) == []


def test_each_lack_is_said_with_its_numbers():
    assert missing(skill(num_new_signal=12, num_heldout_tasks=0), CONFIG) == [
        "12 of 16 newly graded episodes or tasks",
        "0 of 4 held-out tasks",
    ]


def test_a_skill_without_news_may_take_part_when_another_starts():
    assert missing_work(skill(num_new_signal=0), CONFIG) == []


def test_a_paused_or_locked_skill_never_takes_part():
    for policy in (SkillPolicy.PAUSED, SkillPolicy.LOCKED):
        assert missing_work(skill(policy=policy), CONFIG) == [f"the skill is {policy}"]


def test_skills_take_turns_and_within_a_skill_the_first_come_first():
    tasks = [records.task(n, skill_id=n % 3) for n in range(30)]
    chosen = choose(tasks, 9, random.Random(0))
    assert Counter(task.skill_id for task in chosen) == {0: 3, 1: 3, 2: 3}
    assert {task.id for task in chosen} == {f"task_{n:04d}" for n in range(9)}


def test_a_small_skill_leaves_its_turns_to_the_others():
    tasks = [records.task(n, skill_id=1) for n in range(2)]
    tasks += [records.task(n, skill_id=2) for n in range(10, 20)]
    assert Counter(t.skill_id for t in choose(tasks, 8, random.Random(0))) == {1: 2, 2: 6}


def test_fewer_tasks_than_asked_for_are_all_chosen_once():
    tasks = [records.task(n, skill_id=1) for n in range(3)]
    assert len(choose(tasks, 8, random.Random(0))) == 3
    assert choose([], 8, random.Random(0)) == []


def live_only(**fields) -> Skill:
    given = {"num_train_tasks": 0, "num_heldout_tasks": 0, "num_live_graded": 16}
    return skill(**given | {"has_live_contrast": True} | fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"num_live_graded": 9}, ["9 of 16 graded episodes with different outcomes"]),
        (
            {"has_live_contrast": False},
            ["graded episodes with different outcomes: all 16 have the same"],
        ),
        (
            {"num_live_graded": 9, "num_train_tasks": 3},
            [
                "3 of 8 training tasks, 0 of 4 held-out tasks; or 9 of 16 graded episodes with "
                "different outcomes"
            ],
        ),
        ({"num_live_graded": 0}, ["0 of 8 training tasks", "0 of 4 held-out tasks"]),
    ],
)
def test_a_skill_whose_work_cannot_be_replayed_needs_graded_episodes(fields, expected):
    assert missing(live_only(**fields), CONFIG) == expected


def test_skills_that_can_be_practised_come_first_and_together():
    tasks, more = skill(id=1), skill(id=2, num_new_signal=0)
    live, paused = live_only(id=3), skill(id=4, policy=SkillPolicy.PAUSED)
    every = [tasks, more, live, paused]
    assert taking_part(every, [tasks, live], CONFIG) == [1, 2]
    assert taking_part(every, [live], CONFIG) == [3]


def test_a_task_is_worth_most_when_it_succeeds_half_the_time():
    # Beta(5, 5): 25 / (10 * 11); Beta(1, 1): 1 / (2 * 3); Beta(1.8, 8.2): 14.76 / 110
    half, rare = Tries(num=8, mean=0.5, spread=1.0), Tries(num=8, mean=0.1, spread=0.8)
    assert value_of(half) == pytest.approx(25 / 110)
    assert value_of(None) == pytest.approx(1 / 6)
    assert value_of(rare) == pytest.approx(14.76 / 110)
    assert value_of(Tries(num=8, mean=0.5, spread=0.0)) == 0.0
    assert value_of(Tries(num=1, mean=1.0, spread=0.0)) > 0, "one try tells of no contrast"


def steps(values: dict[str, float], num_steps: int, num: int, share: float) -> list[set[str]]:
    tasks = [records.task(n, skill_id=1) for n in range(len(values))]
    num_tried: Counter[str] = Counter()
    found = []
    for index in range(num_steps):
        chosen = choose_for_step(
            tasks,
            num,
            random.Random(index),
            values=values,
            num_tried=num_tried,
            revisit_share=share,
        )
        found.append({task.id for task in chosen})
        num_tried.update(found[-1])
    return found


def test_tasks_near_one_half_come_first_then_unknown_ones_and_all_equal_ones_last():
    names = [f"task_{n:04d}" for n in range(12)]
    values = dict(zip(names, [0.0] * 4 + [1 / 6] * 4 + [0.25] * 4, strict=True))
    chosen = steps(values, 4, 4, share=0.0)
    assert chosen[0] == set(names[8:])
    assert chosen[1] == set(names[4:8])
    assert chosen[2] == set(names[8:]), "0.25 / 2 is above 1/6 / 2"
    assert not set(names[:4]) & set().union(*chosen)


def test_the_rest_is_visited_now_and_then():
    names = [f"task_{n:04d}" for n in range(40)]
    values = dict(zip(names, [0.0] * 30 + [0.25] * 10, strict=True))
    chosen = steps(values, 50, 8, share=0.1)
    num_revisits = sum(len(step & set(names[:30])) for step in chosen)
    assert 20 <= num_revisits <= 65  # 50 * 8 / 10 = 40 places, a few of them for the others
    assert all(len(step) == 8 for step in chosen)


async def test_what_is_known_of_a_task_is_how_it_went_in_the_newest_earlier_cycle(store):
    store.database.write(lambda db: add_task(db, records.task(1, skill_id=None)))
    sql = """INSERT INTO skills (id, title, created_at, policy, centroid_count)
        VALUES (1, 'one', '', 'learn', 0)"""
    store.database.write(lambda db: db.execute(sql))
    store.database.write(lambda db: db.execute("UPDATE tasks SET skill_id = 1"))
    told = [("cycle_1", 0.0), ("cycle_1", 1.0), ("cycle_2", 0.5), ("cycle_2", 0.0), ("cycle_3", 1)]
    for number, (cycle, outcome) in enumerate([*told, ("cycle_2", None)]):
        episode = records.episode(
            id=f"ep_{number}", source=EpisodeSource.PRACTICE, task_id="task_0001", cycle_id=cycle
        )
        call = records.call(id=f"c{number}", episode_id=episode.id)
        await store.episodes.record(episode, [call], [None])
        sql = "UPDATE episodes SET outcome_value = ? WHERE id = ?"
        values = (outcome, episode.id)
        store.database.write(lambda db, sql=sql, values=values: db.execute(sql, values))
    found = store.tasks.tries([1], before_cycle="cycle_3")
    assert found == {"task_0001": Tries(num=2, mean=0.25, spread=0.5)}
    assert store.tasks.tries([1], before_cycle="cycle_1") == {}
    assert store.tasks.of_skills([1], Split.TRAIN)[0].id in found
