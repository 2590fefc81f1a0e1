from collections.abc import Sequence

import pytest

from memory.embed import Embedding
from memory.skills import SkillLoadError
from memory.sorter import SkillsMovedError
from memory.store import Store
from memory.task_texts import SHARED_BY_AT_LEAST
from memory.types import SkillPolicy
from tests import records
from tests.memory.sorting import CONFIG, Desk, WordEmbedder


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


SUMS = [f"sum {n}" for n in range(9)]
PREAMBLE = "\n".join(f"Rule {n}: the harbour master keeps a list of ships {n}." for n in range(60))


def test_episodes_wait_and_are_put_under_the_skill_that_they_found(desk: Desk) -> None:
    first, second, third = desk.record(*SUMS[:3])
    assert desk.skills() == {first: 1, second: 1, third: 1}
    [skill] = desk.store.skills.all()
    assert (skill.title, skill.num_episodes) == ("sum", 3)


def test_a_waiting_episode_has_no_skill_and_a_vector(desk: Desk) -> None:
    [one] = desk.record("lone question")
    assert desk.skills() == {one: None}
    [row] = desk.store.database.read("SELECT * FROM vectors")
    assert (row["embedder"], row["missing_reason"]) == ("words", None)
    assert [row["id"] for row in desk.store.skills.pen("words", 9)] == [one]


@pytest.mark.parametrize("text", ["", "  \n", "nan", "🎉🎉", "\x00"])
def test_odd_texts_disturb_nobody(desk: Desk, text: str) -> None:
    desk.record(*SUMS[:3])
    [odd] = desk.record(text)
    desk.regrouping.look()
    assert desk.skills()[odd] is None
    [joins] = desk.record("sum again")
    assert desk.skills()[joins] == 1
    reasons = desk.store.database.read("SELECT missing_reason FROM vectors WHERE vector IS NULL")
    assert len(reasons) == (text.strip() in {"", "nan"})


def test_a_restart_goes_on_with_skills_and_with_what_waits(desk: Desk) -> None:
    desk.record("sum 1", "sum 2")
    again = Desk(desk.store)
    again.record("sum 3")
    assert set(again.skills().values()) == {1}


def test_assignment_made_before_a_person_moved_skills_is_not_written(desk: Desk) -> None:
    desk.record(*SUMS[:3], "word 1", "word 2", "word 3")
    episode = records.episode(id="ep_9", task_text="sum 9")
    found = desk.sorter.sort_episodes([episode], [["sum 9"]])
    desk.store.skills.merge(1, into=2)
    with pytest.raises(SkillsMovedError):
        desk.store.database.write(desk.sorter.check)
    assert found[0].skill_id == 1
    [again] = desk.sorter.sort_episodes([episode], [["sum 9"]])
    assert again.skill_id == 2


def test_what_was_not_stored_is_forgotten(desk: Desk) -> None:
    for n in range(3):  # founds a skill in memory, which no row knows
        episode = records.episode(id=f"ep_{n}", task_text=f"sum {n}")
        desk.sorter.sort_episodes([episode], [[f"sum {n}"]])
    desk.sorter.distrust()
    [one] = desk.record("sum 5")
    assert desk.skills() == {one: None}


def test_a_preamble_is_left_out_once_it_is_known_and_earlier_texts_are_embedded_again(
    desk: Desk,
) -> None:
    texts = [f"{PREAMBLE}\n\n{word} {n}" for n in range(5) for word in ("sum", "word")]
    desk.record(*texts[:SHARED_BY_AT_LEAST])
    desk.record(*texts[SHARED_BY_AT_LEAST:])
    assert desk.embedder.asked[-1] == "word 4"
    desk.regrouping.look()
    groups = list(desk.skills().values())
    assert len({*groups[::2]}) == len({*groups[1::2]}) == 1
    assert {*groups[::2]} != {*groups[1::2]}
    assert None not in groups


def test_skills_of_another_embedder_are_found_again_and_never_compared(desk: Desk) -> None:
    desk.record(*SUMS[:3], "word 1", "word 2", "word 3", "lone")
    other = Desk(desk.store, WordEmbedder("other"))
    other.sorter.warm_up()
    [joins] = other.record("sum 7")
    assert other.skills()[joins] == 1
    assert other.regrouping.look() == {}
    embedders = other.store.database.read("SELECT DISTINCT embedder FROM vectors")
    assert [row["embedder"] for row in embedders] == ["other"]
    assert len(other.store.skills.all()) == 2


class Counting(WordEmbedder):
    """Remembers how many texts it was given at once."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.sizes: list[int] = []

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        self.sizes.append(len(texts))
        return super().embed(texts)


def test_vectors_of_another_embedder_are_renewed_a_few_at_a_time(desk: Desk) -> None:
    desk.record(*(f"sum {n}" for n in range(40)))
    other = Desk(desk.store, embedder := Counting("other"))
    assert other.sorter.renew() == 40
    assert embedder.sizes == [16, 16, 8]
    assert other.sorter.renew() == 0


def test_skills_are_found_again_by_their_own_tenant_s_texts(desk: Desk) -> None:
    texts = [f"{PREAMBLE}\n\nsum {n}" for n in range(SHARED_BY_AT_LEAST + 3)]
    desk.record(*texts, tenant="ours")
    desk.regrouping.look()
    other = Desk(desk.store, WordEmbedder("other"))
    other.sorter.warm_up()
    assert {text.split()[0] for text in other.embedder.asked[1:]} == {"sum"}


def test_before_they_are_found_again_skills_of_another_embedder_are_set_aside(desk: Desk) -> None:
    desk.record(*SUMS[:3])
    other = Desk(desk.store, WordEmbedder("other"))
    [waits] = other.record("sum 7")
    assert other.skills()[waits] is None
    wide = WordEmbedder("words of another width")
    wide.dimension = 8
    Desk(desk.store, wide).record("sum 8")


def test_vector_of_another_width_under_the_same_name_is_refused(desk: Desk) -> None:
    desk.record(*SUMS[:3])
    wide = WordEmbedder()
    wide.dimension = 8
    with pytest.raises(SkillLoadError, match="another embedding model"):
        Desk(desk.store, wide)


def test_an_imported_task_founds_a_skill_alone_and_a_derived_one_goes_with_its_episode(
    desk: Desk,
) -> None:
    [waiting] = desk.record("sum 1")
    derived = records.task(1, origin=f"episode:{waiting}")
    given = records.task(2, messages=({"role": "user", "content": "word 1"},))
    desk.store.tasks.add([derived, given])
    assert desk.store.tasks.without_skill(9) == [given]
    [found] = desk.sorter.sort_tasks([given])
    desk.store.database.write(lambda db: desk.sorter.save_task(db, found))
    assert desk.store.tasks.get(given.id).skill_id == 1
    assert desk.store.tasks.without_skill(9) == []
    desk.sorter.distrust()
    desk.record("sum 2", "sum 3")
    assert desk.store.tasks.get(derived.id).skill_id == 2


def test_a_locked_skill_still_takes_what_belongs_to_it(desk: Desk) -> None:
    desk.record(*SUMS[:3])
    desk.store.skills.update(1, title=None, policy=SkillPolicy.LOCKED)
    [joins] = desk.record("sum 8")
    assert desk.skills()[joins] == 1
    assert CONFIG.min_founders == 3
