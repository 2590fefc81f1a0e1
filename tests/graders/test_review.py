import pytest

from graders.calibration import TrustConfig
from graders.review import rank_for_review
from graders.trust import JudgeTrust
from memory.tenants import Sight
from memory.types import GradeKind
from tests.graders.judged import checked, found_skill, judged, record
from tests.records import NOON

CONFIG = TrustConfig(min_canaries=0)


@pytest.fixture(autouse=True)
def _skill(store):
    found_skill(store)


def queue(store, sight: Sight | None = None):
    trust = JudgeTrust(store.judge_evidence, CONFIG)
    trust.refresh()
    args = (500,) if sight is None else (500, sight)
    return rank_for_review(store.judge_evidence.unlabelled(*args), trust, CONFIG)


async def test_what_a_label_would_tell_most_comes_first(store):
    agrees = await record(store, 1, [judged(1.0), checked(1.0)])
    disagrees = await record(store, 2, [judged(0.9), checked(0.0)])
    unsure = await record(store, 3, [judged(0.55)])
    sure = await record(store, 4, [judged(1.0)])
    silent = await record(store, 5, [judged(None)])
    items = queue(store)
    assert [item.episode_id for item in items] == [disagrees, unsure, silent, sure]
    assert agrees not in {item.episode_id for item in items}
    reasons = {item.episode_id: item.reasons for item in items}
    assert reasons[disagrees] == ("judge says 0.9, check 0",)
    assert reasons[unsure] == ("the judge is unsure: 0.55", "the skill has 2 of 30 pairs")
    assert reasons[silent] == ("the judge gave no value: judge_timeout",)
    assert reasons[sure] == ("the skill has 2 of 30 pairs",)


async def test_what_a_person_has_graded_is_not_asked_again(store):
    await record(store, 1, [judged(0.5), checked(1.0, GradeKind.PERSON)])
    assert queue(store) == []


async def test_a_skill_with_pairs_enough_asks_about_doubtful_answers_only(store):
    for n in range(30):
        await record(store, n, [judged(float(n % 2)), checked(float(n % 2))])
    await record(store, 98, [judged(1.0)])
    doubtful = await record(store, 99, [judged(0.45)])
    assert [item.episode_id for item in queue(store)] == [doubtful]


async def test_a_tenant_is_asked_about_its_own_answers(store):
    await record(store, 1, [judged(0.5)], tenant="acme")
    await record(store, 2, [judged(0.5)], tenant="bolt")
    assert [item.episode_id for item in queue(store, Sight("acme"))] == ["ep_0001"]
    assert len(queue(store)) == 2


async def test_an_item_is_told_in_plain_values(store):
    await record(store, 1, [judged(0.5)])
    [item] = queue(store)
    told = item.to_json()
    assert told["id"] == "ep_0001"
    assert told["created_at"].startswith(NOON.isoformat()[:10])
    assert told["task_text"] == "3 * 4?"
