import pytest

from graders.calibration import TrustConfig
from graders.canaries import Canary
from graders.judge import JUDGE, Judge
from graders.outcome import merge as merged
from graders.ranking import RANKING, RankingJudge
from graders.trust import JudgeTrust
from memory.grade_rows import set_grades
from memory.judge_evidence import Probe
from memory.retention import delete_episodes
from memory.skill_writes import merge
from memory.types import EpisodeSource, Grade, GradeKind
from tests.graders.judged import SKILL, checked, found_skill, judged, record
from tests.graders.judges import FakeTeacher, always_first
from tests.records import NOON, call, episode, version

PERSON = GradeKind.PERSON
CONFIG = TrustConfig(min_canaries=0)


@pytest.fixture
def trust(store) -> JudgeTrust:
    found_skill(store)
    return JudgeTrust(store.judge_evidence, CONFIG)


async def agree(store, num: int, *, start: int = 0, wrong: int = 0, **fields) -> None:
    for n in range(start, start + num):
        truth = float(n % 2)
        said = 1 - truth if n < start + wrong else truth
        await record(store, n, [checked(truth), judged(said)], **fields)


async def test_thirty_pairs_that_agree_admit_a_judge_in_its_skill_only(store, trust):
    await agree(store, 30)
    assert trust.doubt("judge", "1", SKILL) == "judge not trusted yet: 0 of 30 pairs"
    trust.refresh()
    assert trust.doubt("judge", "1", SKILL) is None
    assert trust.doubt("judge", "2", SKILL) is not None
    assert trust.doubt("judge", "1", SKILL + 1) is not None
    assert trust.doubt("judge", "1", None) == "judge not trusted yet: the answer has no skill yet"


SCORES = Judge(FakeTeacher(always_first)).version
RANKS = RankingJudge(FakeTeacher(always_first)).version


def ranked(value: float) -> Grade:
    return judged(value, grader=RANKING, version=RANKS)


async def test_a_ranking_is_trusted_where_the_same_judges_scores_are(store, trust):
    for n in range(30):
        grade = judged(float(n % 2), version=SCORES)
        await record(store, n, [checked(float(n % 2)), grade])
    assert trust.doubt(RANKING, RANKS, SKILL) == "judge not trusted yet: 0 of 30 pairs"
    trust.refresh()
    assert trust.doubt(RANKING, RANKS, SKILL) is None
    assert trust.doubt(RANKING, RANKS, SKILL + 1) is not None
    assert trust.doubt(RANKING, RANKS.replace("fake", "other"), SKILL) is not None
    assert trust.doubt(RANKING, "ranking.0.1" + RANKS[11:], SKILL) is not None


async def test_planted_answers_bar_a_ranking_whose_scores_are_trusted(store, trust):
    for n in range(30):
        grade = judged(float(n % 2), version=SCORES)
        await record(store, n, [checked(float(n % 2)), grade])
    its = {"grader": RANKING, "version": RANKS, "skill_id": SKILL, "created_at": NOON}
    its |= {"episode_id": None, "kind": "swap"}
    for n in range(20):
        swap = Probe(task_id=f"t{n}", swap="first", **its)
        await store.judge_evidence.add_probes([swap])
    trust.refresh()
    assert "the first seat won" in (trust.doubt(RANKING, RANKS, SKILL) or "")
    assert trust.doubt(JUDGE, SCORES, SKILL) is None
    [_, own] = trust.report([SKILL])
    assert own["grader"] == RANKING and not own["is_trusted"]
    assert not any("pairs" in one for one in own["missing"]), "it has none of its own"


async def test_rankings_keep_their_outcome_as_long_as_the_scores_are_trusted(store, trust):
    for n in range(30):
        grade = judged(float(n % 2), version=SCORES)
        await record(store, n, [checked(float(n % 2)), grade])
    trust.refresh()
    its = episode(id="ep_turn", skill_id=SKILL, source=EpisodeSource.PRACTICE, digested_revision=1)
    tried = (its, call(id="turn", episode_id=its.id), ranked(1.0))
    outcome = merged([ranked(1.0)], trust=trust, skill_id=SKILL)
    assert (outcome.value, outcome.provenance) == (1.0, GradeKind.JUDGE)
    await store.practice.record([[(*tried, outcome)]])
    await trust.run(lambda: pytest.fail("nothing changed"))
    assert [one.grader for one in trust.standings()] == [JUDGE], "a group is no evidence"
    for n in range(30, 90):
        grade = judged(1 - float(n % 2), version=SCORES)
        await record(store, n, [checked(float(n % 2)), grade])
    changed = []
    await trust.run(lambda: changed.append(True))
    assert changed
    assert store.episodes.get("ep_turn").revision == 2, "its outcome is merged again"


async def test_twelve_pairs_do_not(store, trust):
    await agree(store, 12)
    trust.refresh()
    assert trust.doubt("judge", "1", SKILL) == "judge not trusted yet: 12 of 30 pairs"


async def test_a_check_outranks_people_and_people_are_averaged(store, trust):
    people = [checked(0.0, PERSON), checked(0.25, PERSON), checked(1.0, PERSON)]
    await record(store, 1, [judged(1.0), *people])
    await record(store, 2, [judged(1.0), checked(1.0), *people])
    trust.refresh()
    standing = trust.standing("judge", "1", SKILL)
    assert standing is not None
    assert (standing.num_pairs, standing.agreement.agreement) == (2, 0.5)


async def test_a_judge_without_a_value_makes_no_pair_and_is_counted(store, trust):
    await record(store, 1, [judged(None), checked(1.0)])
    trust.refresh()
    [standing] = trust.standings()
    assert (standing.num_pairs, standing.num_abstained) == (0, 1)


async def test_an_answer_that_only_the_judge_graded_makes_no_pair_but_a_standing(store, trust):
    await record(store, 1, [judged(1.0)])
    trust.refresh()
    [standing] = trust.standings()
    assert standing.num_pairs == 0


async def test_a_judge_lacks_pairs_until_its_third_look(store, trust):
    assert trust.num_pairs_lacking("judge", "1", SKILL) == 120
    await agree(store, 30)
    trust.refresh()
    assert trust.num_pairs_lacking("judge", "1", SKILL) == 90
    assert trust.num_pairs_lacking("judge", "2", SKILL) == 120  # another version begins anew
    await agree(store, 95, start=30)
    trust.refresh()
    assert trust.num_pairs_lacking("judge", "1", SKILL) == 0


async def test_a_judge_that_never_decides_is_not_asked_for_ever(store, trust):
    for number, value in enumerate([None, 0.5] * 100):
        await record(store, number, [checked(1.0), judged(value)])
    trust.refresh()
    assert trust.standings()[0].num_undecided == 100
    assert trust.num_pairs_lacking("judge", "1", SKILL) == 40
    for number in range(200, 240):
        await record(store, number, [checked(1.0), judged(None)])
    trust.refresh()
    assert trust.num_pairs_lacking("judge", "1", SKILL) == 0


async def test_that_a_judge_could_not_be_reached_says_nothing_of_it(store, trust):
    await record(store, 1, [checked(1.0), judged(None, evidence={"may_pass": True})])
    trust.refresh()
    assert trust.standings() == []


async def test_erased_answers_take_their_pairs_along(store, trust):
    await agree(store, 30)
    await store.database.write_async(lambda db: delete_episodes(db, ["ep_0003"]))
    trust.refresh()
    assert trust.doubt("judge", "1", SKILL) == "judge not trusted yet: 29 of 30 pairs"


async def test_skills_that_became_one_are_judged_as_one(store, trust):
    found_skill(store, 8)
    await agree(store, 15)
    await agree(store, 15, start=15, skill_id=8)
    probe = Probe(
        grader="judge",
        version="1",
        skill_id=8,
        task_id="task_1",
        episode_id=None,
        kind=Canary.KNOWN_BAD,
        created_at=NOON,
        value=0.0,
    )
    await store.judge_evidence.add_probes([probe])
    await store.database.write_async(lambda db: merge(db, 8, SKILL, actor="person"))
    trust.refresh()
    assert trust.doubt("judge", "1", SKILL) is None
    assert trust.doubt("judge", "1", 8) is None  # a cycle goes on under the id it began with
    [standing] = trust.standings()
    assert standing.canaries.num_judged == 1


async def test_outcomes_follow_when_a_judge_is_admitted_and_when_it_is_barred(store, trust):
    """Opened episodes are merged again by the intake."""
    alone = await record(store, 999, [judged(0.75)])
    woken = []
    await trust.run(lambda: woken.append(1))
    assert woken == []
    assert store.episodes.undigested(9) == []
    await agree(store, 30)
    await trust.run(lambda: woken.append(1))
    assert woken == [1]
    assert [one.id for one in store.episodes.undigested(9)] == [alone]

    def digest(db) -> None:
        its, grades = store.episodes.get(alone), store.episodes.grades(alone)
        set_grades(db, its, [], merged(grades, trust=trust, skill_id=SKILL))

    await store.database.write_async(digest)
    assert store.episodes.outcome(alone).value == 0.75
    await trust.run(lambda: woken.append(1))
    assert woken == [1]  # nothing to do
    for n in range(100, 130):
        await record(store, n, [checked(float(n % 2)), judged(float((n + 1) % 2))])
    await trust.run(lambda: woken.append(1))
    assert woken == [1, 1]
    await store.database.write_async(digest)
    outcome = store.episodes.outcome(alone)
    assert outcome.value is None
    assert outcome.unscored_reason.startswith("judge not trusted yet: kappa")


async def test_probes_of_erased_episodes_are_not_kept(store, trust):
    await store.episodes.record(episode(id="ep_gone"), [call(episode_id="ep_gone")], [None])
    fields = {"grader": "judge", "version": "1", "skill_id": SKILL, "kind": Canary.KNOWN_BAD}
    fields |= {"task_id": "task_1", "created_at": NOON, "value": 0.0}
    await store.judge_evidence.add_probes([Probe(episode_id="ep_gone", **fields)])
    assert len(store.judge_evidence.probes()) == 1
    await store.database.write_async(lambda db: delete_episodes(db, ["ep_gone"]))
    assert store.judge_evidence.probes() == []
    await store.judge_evidence.add_probes([Probe(episode_id="ep_gone", **fields)])
    assert store.judge_evidence.probes() == []


async def test_an_unchanged_grade_stays_and_a_changed_one_leaves_its_history(store, trust):
    id = await record(store, 1, [checked(1.0), checked(0.0, PERSON)])
    before = store.database.read("SELECT id FROM grades ORDER BY id")

    def again(grades):
        its = store.episodes.get(id)
        store.database.write(lambda db: set_grades(db, its, grades, merged(grades)))

    again([checked(1.0), checked(0.0, PERSON)])
    assert store.database.read("SELECT id FROM grades ORDER BY id") == before
    again([checked(0.5), checked(0.0, PERSON)])
    assert [grade.value for grade in store.episodes.grades(id)] == [0.0, 0.5]
    [past] = store.episodes.past_grades(id)
    assert past["grade"].value == 1.0
    assert past["superseded_at"] >= past["created_at"]


async def test_an_outcome_that_changed_after_training_is_seen_on_episode_and_version(store, trust):
    id = await record(store, 1, [checked(1.0)])
    other = await record(store, 2, [checked(0.0)])
    store.versions.add(version(1), [id, other])
    assert store.episodes.trained_on(id) == [
        {
            "version": "denizen-000001",
            "outcome_value": 1.0,
            "outcome_provenance": "check",
            "outcome_changed": False,
        }
    ]
    assert store.versions.changed_outcomes("denizen-000001") == []
    its, late = store.episodes.get(id), [checked(0.25)]
    store.database.write(lambda db: set_grades(db, its, late, merged(late)))
    assert store.episodes.trained_on(id)[0]["outcome_changed"] is True
    assert store.versions.changed_outcomes("denizen-000001") == [id]
