import random
from collections import Counter

from learner.curriculum import LearnerConfig, choose, missing, missing_work
from memory.types import Skill, SkillPolicy
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
