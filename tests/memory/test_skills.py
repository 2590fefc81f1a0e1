import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from memory.embed import Embedding
from memory.index import VectorIndexError
from memory.skills import SkillAssigner, SkillLoadError, SkillsConfig, SkillState

DIMENSION = 3


def embedding(*values: float) -> Embedding:
    vector_D = np.array(values, dtype=np.float32)
    return Embedding(vector_D=vector_D / np.linalg.norm(vector_D))


def row(skill: SkillState) -> dict[str, object]:
    centroid_D = skill.centroid_D
    return {
        "id": skill.id,
        "title": skill.title,
        "tenant": skill.tenant,
        "task_key": skill.task_key,
        "merged_into": None,
        "centroid": None if centroid_D is None else centroid_D.astype("<f4").tobytes(),
        "centroid_count": skill.count,
    }


def config(threshold: float) -> SkillsConfig:
    return SkillsConfig(threshold=threshold, task_threshold=threshold, min_founders=4)


def assigner(threshold: float = 0.5) -> SkillAssigner:
    return SkillAssigner(dimension=DIMENSION, config=config(threshold))


def join(
    skills: SkillAssigner, at: Embedding, text: str = "text", key: str | None = None
) -> SkillState:
    skill = skills.assign(text, at, task_key=key).skill
    assert skill is not None
    return skill


X, Y = embedding(1, 0, 0), embedding(0, 1, 0)
NOTHING = Embedding(vector_D=None, reason="empty text")


def centroid(skill: SkillState) -> NDArray[np.float32]:
    assert skill.centroid_D is not None
    return skill.centroid_D


def test_first_text_founds_a_skill_named_after_it() -> None:
    found = assigner().assign("Solve the following multiplication: 3 * 4.", X)
    assert found.is_new
    assert found.skill is not None
    assert (found.skill.id, found.skill.title, found.skill.count) == (1, "multiplication", 1)


def test_near_text_joins_and_a_far_one_founds_another() -> None:
    skills = assigner()
    join(skills, X)
    near = skills.assign("text", embedding(3, 4, 0))  # cosine to X: 3 / 5
    far = skills.assign("text", embedding(0, 0, 1))
    assert near.skill is not None
    assert far.skill is not None
    assert (near.skill.id, near.is_new) == (1, False)
    assert near.similarity == pytest.approx(0.6)
    assert (far.skill.id, far.is_new, far.similarity) == (2, True, None)


def test_threshold_itself_is_near_enough() -> None:
    skills = assigner(threshold=0.59)
    join(skills, X)
    assert join(skills, embedding(3, 4, 0)).id == 1
    stricter = assigner(threshold=0.61)
    join(stricter, X)
    assert join(stricter, embedding(3, 4, 0)).id == 2


def test_centroid_is_the_running_mean() -> None:
    skills = assigner(threshold=0.0)
    join(skills, X)
    join(skills, Y)
    third = join(skills, X)
    # (X + Y + X) / 3
    assert centroid(third) == pytest.approx([2 / 3, 1 / 3, 0])
    assert third.count == 3


def test_nearest_skill_wins_over_an_earlier_one() -> None:
    skills = assigner(threshold=0.8)
    join(skills, X)
    join(skills, Y)
    skills_found = join(skills, embedding(0.3, 1, 0))  # cosine to Y: 1 / sqrt(1.09) = 0.958
    assert skills_found.id == 2


def test_same_key_is_the_same_skill_however_far_apart() -> None:
    skills = assigner()
    first = join(skills, X, key="billing")
    second = join(skills, Y, key="billing")
    assert first.id == second.id
    assert (second.title, second.task_key, second.count) == ("billing", "billing", 2)


def test_new_key_founds_a_skill_however_near_another_is() -> None:
    skills = assigner()
    assert join(skills, X).id == 1
    assert join(skills, X, key="billing").id == 2
    assert join(skills, X, key="shipping").id == 3


def test_text_without_a_key_can_join_a_keyed_skill() -> None:
    skills = assigner()
    join(skills, X, key="billing")
    assert join(skills, X).task_key == "billing"


def test_text_without_a_vector_has_no_skill_and_says_why() -> None:
    skills = assigner()
    join(skills, X)
    found = skills.assign("", NOTHING)
    assert found.skill is None
    assert found.reason == "empty text"
    assert not found.is_new


def test_key_finds_its_skill_without_a_vector_and_leaves_the_centroid() -> None:
    skills = assigner()
    empty = join(skills, NOTHING, key="billing")
    assert (empty.centroid_D, empty.count) == (None, 0)
    filled = join(skills, X, key="billing")
    assert filled.id == empty.id
    again = join(skills, NOTHING, key="billing")
    assert again == filled


def test_opposite_vectors_under_one_key_cancel_out_without_harm() -> None:
    skills = assigner()
    join(skills, X, key="odd")
    gone = join(skills, embedding(-1, 0, 0), key="odd")
    assert centroid(gone) == pytest.approx([0, 0, 0])
    assert join(skills, X).id == 2  # nothing is near a mean that points nowhere
    back = join(skills, Y, key="odd")
    assert centroid(back) == pytest.approx([0, 1 / 3, 0])


@pytest.mark.parametrize("key", [None, "billing"])
@pytest.mark.parametrize("values", [(1.0, 0.0), (np.nan, 0.0, 0.0)])
def test_bad_vector_is_refused_and_changes_nothing(
    key: str | None, values: tuple[float, ...]
) -> None:
    skills = assigner()
    join(skills, X)
    bad = Embedding(vector_D=np.array(values, dtype=np.float32))
    with pytest.raises(VectorIndexError):
        skills.assign("text", bad, task_key=key)
    joined = join(skills, X)
    assert (joined.id, joined.count) == (1, 2)
    assert join(skills, Y).id == 2


UNIT = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3).filter(
    lambda values: float(np.linalg.norm(values)) > 1e-2
)
KEY = st.sampled_from([None, None, "a", "b"])
ARRIVALS = st.lists(st.tuples(UNIT, KEY), max_size=12)


@given(ARRIVALS, ARRIVALS)
def test_loading_the_stored_skills_goes_on_as_if_never_stopped(
    before: list[tuple[list[float], str | None]], after: list[tuple[list[float], str | None]]
) -> None:
    lasting = assigner()
    stored: dict[int, dict[str, object]] = {}
    for values, key in before:
        skill = join(lasting, embedding(*values), key=key)
        stored[skill.id] = row(skill)
    loaded = SkillAssigner.load(stored.values(), dimension=DIMENSION, config=config(0.5))
    for values, key in after:
        expected = join(lasting, embedding(*values), key=key)
        found = join(loaded, embedding(*values), key=key)
        assert row(found) == row(expected)


@given(ARRIVALS)
def test_counts_add_up_and_ids_are_dense(
    arrivals: list[tuple[list[float], str | None]],
) -> None:
    skills = assigner()
    newest = {}
    for values, key in arrivals:
        skill = join(skills, embedding(*values), key=key)
        newest[skill.id] = skill
    assert sum(skill.count for skill in newest.values()) == len(arrivals)
    assert sorted(newest) == list(range(1, len(newest) + 1))


@pytest.mark.parametrize(
    "blob",
    [
        pytest.param(np.ones(2, "<f4").tobytes(), id="short"),
        pytest.param(np.zeros(4, "<f4").tobytes(), id="long and zero"),
        pytest.param(b"\0" * 13, id="no multiple of four bytes"),
        pytest.param(np.full(3, np.nan, "<f4").tobytes(), id="nan"),
    ],
)
def test_centroid_of_another_embedder_is_refused_with_a_hint(blob: bytes) -> None:
    stored = {"id": 4, "title": "sums", "tenant": None, "task_key": None, "merged_into": None}
    stored |= {"centroid": blob, "centroid_count": 2}
    with pytest.raises(SkillLoadError, match=r"skill 4 \('sums'\).*another embedding model"):
        SkillAssigner.load([stored], dimension=DIMENSION)


@pytest.mark.parametrize("threshold", [1.0, -1.0, 2.0, float("nan")])
def test_threshold_that_joins_all_or_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(ValidationError):
        SkillsConfig(threshold=threshold)


def wait(
    skills: SkillAssigner, at: Embedding, id: str, tenant: str | None = None
) -> tuple[int | None, tuple[str, ...]]:
    found = skills.assign(f"text {id}", at, id=id, tenant=tenant)
    return found.skill and found.skill.id, tuple(found.founders)


def test_an_episode_waits_until_enough_like_it_have_come() -> None:
    skills = assigner()
    assert wait(skills, X, "a") == (None, ())
    assert wait(skills, Y, "far") == (None, ())
    assert wait(skills, X, "b") == (None, ())
    assert wait(skills, X, "c") == (None, ())
    skill, founders = wait(skills, X, "d")
    assert (skill, sorted(founders)) == (1, ["a", "b", "c"])
    assert wait(skills, X, "e") == (1, ())
    assert wait(skills, Y, "g") == (None, ())  # "far" still waits alone


def test_waiting_text_says_why_it_has_no_skill() -> None:
    found = assigner().assign("text", X, id="a")
    assert found.skill is None
    assert found.reason == "no skill is near enough yet"


def test_one_episode_that_is_looked_at_again_and_again_founds_nothing() -> None:
    skills = assigner()
    assert [wait(skills, X, "a") for _ in range(9)] == [(None, ())] * 9


def test_two_texts_of_one_kind_are_enough_by_default() -> None:
    skills = SkillAssigner(dimension=DIMENSION)
    assert wait(skills, X, "a") == (None, ())
    assert wait(skills, Y, "b") == (None, ())
    assert wait(skills, embedding(3, 4, 0), "c") == (1, ("b",))  # cosine to Y: 4 / 5


def test_skill_of_many_texts_that_agree_is_harder_to_join_than_one_text() -> None:
    aside = embedding(1, 1.6, 0)  # cosine to X: 0.53
    young, old = assigner(), assigner()
    join(young, X)
    for _ in range(50):
        join(old, X)
    assert join(young, aside).id == 1
    assert join(old, aside).id == 2


def test_founders_give_the_skill_its_centroid() -> None:
    skills = assigner(threshold=0.1)
    for number, at in enumerate([X, embedding(1, 1, 0), embedding(1, 0, 1)]):
        wait(skills, at, str(number))
    found = skills.assign("text", X, id="last").skill
    assert found is not None
    half = 1 / np.sqrt(2)
    expected = [(2 + 2 * half) / 4, half / 4, half / 4]
    assert centroid(found) == pytest.approx(expected)
    assert found.count == 4


def test_a_caller_s_key_needs_no_company() -> None:
    found = assigner().assign("text", X, id="a", task_key="billing")
    assert found.skill is not None


def test_tenants_share_neither_skills_nor_keys_nor_the_pen() -> None:
    skills = assigner()
    for number in range(3):
        assert wait(skills, X, f"ours {number}", "ours") == (None, ())
        assert wait(skills, X, f"theirs {number}", "theirs") == (None, ())
    skill, founders = wait(skills, X, "ours 3", "ours")
    assert (skill, {id.split()[0] for id in founders}) == (1, {"ours"})
    assert wait(skills, X, "theirs 3", "theirs")[0] == 2
    assert wait(skills, X, "nobody's") == (None, ())
    keyed = [skills.assign("t", X, task_key="k", tenant=t).skill for t in ("ours", "theirs", None)]
    assert len({skill.id for skill in keyed if skill}) == 3
    assert [skill.tenant for skill in keyed if skill] == ["ours", "theirs", None]


def test_what_waits_is_loaded_again() -> None:
    pen = [
        {"id": id, "tenant": None, "task_text": "t", "vector": X.vector_D.astype("<f4").tobytes()}
        for id in "abc"
        if X.vector_D is not None
    ]
    skills = SkillAssigner.load([], pen, dimension=DIMENSION, config=config(0.5))
    skill, founders = wait(skills, X, "d")
    assert (skill, sorted(founders)) == (1, ["a", "b", "c"])


def test_key_of_a_skill_that_became_part_of_another_finds_the_other() -> None:
    skills = assigner()
    part, whole = join(skills, X, key="billing"), join(skills, Y, key="invoices")
    rows = [row(part) | {"merged_into": whole.id}, row(whole)]
    loaded = SkillAssigner.load(rows, dimension=DIMENSION)
    assert join(loaded, X, key="billing").id == whole.id
    assert join(loaded, embedding(0, 0, 1)).id == 3  # ids are not used twice
    assert join(SkillAssigner.load(rows[::-1], dimension=DIMENSION), X, key="new").id == 3


def test_skill_of_another_embedder_is_found_by_its_key_only() -> None:
    stored = row(join(assigner(), X, key="billing")) | {"centroid": None, "centroid_count": 7}
    skills = SkillAssigner.load([stored], dimension=DIMENSION)
    assert join(skills, X).id == 2
    again = join(skills, Y, key="billing")
    assert (again.id, again.count) == (1, 1)
    assert centroid(again) == pytest.approx([0, 1, 0])
