import pytest

from console.demo_traffic import FAMILIES, mixed_tasks

pytest.importorskip("reasoning_gym")


def test_tasks_take_turns_between_the_families_and_never_repeat():
    tasks = mixed_tasks(30, seed=1)
    assert len(tasks) == 30 * len(FAMILIES)
    assert len(set(tasks)) == len(tasks)
    first_words = [question.split()[0] for question, _ in tasks]
    assert first_words[0::3] == first_words[0:1] * 30
    assert len(set(first_words[:3])) == 3


def test_each_task_has_an_answer_and_another_seed_gives_other_tasks():
    assert all(answer for _, answer in mixed_tasks(10, seed=1))
    assert mixed_tasks(10, seed=1) == mixed_tasks(10, seed=1)
    assert mixed_tasks(10, seed=1) != mixed_tasks(10, seed=2)
