from collections.abc import Sequence
from typing import Any

import pytest

from learner.curriculum import LearnerConfig
from learner.live_groups import turns_of
from learner.live_record import is_heldout, weigh
from learner.rows import SkipReason
from learner.sources import StepPlan
from memory.graded_episodes import GradedEpisode
from memory.neighbours import GradedNeighbour

CONFIG = LearnerConfig(min_live_episodes=4, live_heldout_share=0.25, max_staleness=2)
LIVE = "denizen-000004"


def episode(number: int, outcome: float, **fields: Any) -> GradedEpisode:
    given: dict[str, Any] = {
        "id": f"ep_{number}",
        "skill_id": 1,
        "session": None,
        "text": f"task {number}",
        "samplers": (LIVE,),
    }
    return GradedEpisode(outcome=outcome, **given | fields)


def learning(number: int, outcome: float, **fields: Any) -> GradedEpisode:
    """Return an episode that is not held out, whose number ends in the one given."""
    return next(
        found
        for high in range(1_000)
        if not is_heldout(found := episode(high * 100 + number, outcome, **fields), share=0.25)
    )


def weighed(episodes: Sequence[GradedEpisode], **changes: Any) -> Any:
    given: dict[str, Any] = {"trained": LIVE, "taught": (), "heldout_questions": ()}
    return weigh(episodes, changes.pop("near", {}), config=CONFIG, **given | changes)


FOUR = [learning(n, float(n % 2)) for n in range(4)]


def test_without_neighbours_each_is_compared_with_the_mean_of_the_others() -> None:
    record = weighed(FOUR)
    # outcomes 0 1 0 1: the others' means are 2/3 and 1/3
    assert [one.advantage for one in record.train] == pytest.approx([-2 / 3, 2 / 3, -2 / 3, 2 / 3])
    assert record.unexplained_share == pytest.approx(1.0)
    assert record.skipped == {}


def test_neighbours_that_tell_lower_what_is_left_to_learn() -> None:
    # two kinds of task, of which one succeeds; an episode of each kind went against its kind
    many = [learning(n, float(n % 2)) for n in range(14)]
    many += [learning(14, 1.0), learning(15, 0.0)]
    near = {
        one.id: [
            GradedNeighbour(episode_id=other.id, distance=0.1, outcome=other.outcome)
            for place, other in enumerate(many)
            if (place - own) % 2 == 0 and place != own
        ]
        for own, one in enumerate(many)
    }
    record = weighed(many, near=near)
    # R^2 of the kinds: each kind has one in eight that differs, 7/64 of 1/4 remains: 0.44
    assert record.unexplained_share == pytest.approx(0.5, abs=0.1)
    assert record.to_json()["unexplained_share_by_skill"]["1"] == record.unexplained_share
    advantages = {one.episode.id: abs(one.advantage) for one in record.train}
    assert min(advantages[one.id] for one in many[14:]) > 0.7 > 0.4 > advantages[many[0].id]


@pytest.mark.parametrize(
    ("fields", "changes", "reason"),
    [
        ({"is_replayable": True}, {}, SkipReason.REPLAYABLE),
        ({"samplers": ("denizen-000001", LIVE)}, {}, SkipReason.STALE),
        ({"samplers": ("somebody's",)}, {}, SkipReason.STALE),
        ({"text": "asked  there"}, {"heldout_questions": {"asked there"}}, SkipReason.HELDOUT),
        ({}, {"taught": {learning(9, 1.0).id}}, SkipReason.TAUGHT),
    ],
)
def test_what_may_not_teach_is_counted_and_still_informs_the_others(
    fields: dict[str, Any], changes: dict[str, Any], reason: SkipReason
) -> None:
    record = weighed([*FOUR, learning(9, 1.0, **fields)], **changes)
    assert record.skipped == {reason: 1}
    assert [one.episode.id for one in record.train] == [one.id for one in FOUR]
    assert record.train[0].advantage == pytest.approx(-3 / 4)


def test_an_episode_that_is_just_fresh_enough_teaches() -> None:
    record = weighed([*FOUR, learning(9, 1.0, samplers=("denizen-000002",))])
    assert len(record.train) == 5


def test_held_out_episodes_are_weighed_and_never_trained() -> None:
    kept = next(
        one
        for n in range(99)
        if is_heldout(one := episode(n, 1.0), share=CONFIG.live_heldout_share)
    )
    record = weighed([*FOUR, kept])
    assert [one.episode for one in record.heldout] == [kept]
    assert kept.id not in {one.episode.id for one in record.train}


def test_a_skill_without_contrast_or_with_too_few_episodes_teaches_nothing() -> None:
    alike = [learning(n, 1.0, skill_id=2) for n in range(10, 14)]
    few = [learning(n, float(n % 2), skill_id=3) for n in range(20, 22)]
    record = weighed([*FOUR, *alike, *few])
    assert record.skipped == {SkipReason.ZERO_SIGNAL: 4, SkipReason.TOO_FEW: 2}
    assert record.skill_ids == {1}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_single_session_has_nothing_to_be_compared_with(count: int) -> None:
    record = weighed([episode(n, float(n % 2), session="one") for n in range(count)])
    assert record.train == ()
    assert record.skipped == {SkipReason.TOO_FEW: count}
    assert "0 recorded episodes" in record.why_nothing or "too_few" in record.why_nothing


def test_episodes_of_a_session_stand_on_one_side() -> None:
    sides = {is_heldout(episode(n, 1.0, session="s"), share=0.5) for n in range(30)}
    assert len(sides) == 1
    shares = [is_heldout(episode(n, 1.0), share=0.25) for n in range(2_000)]
    assert 0.22 < sum(shares) / len(shares) < 0.28


def test_each_episode_has_its_turns_and_none_twice_in_a_step() -> None:
    config = LearnerConfig(live_episodes_per_step=3, live_epochs=2)
    train = weighed(FOUR).train

    def turns(index: int, cycle: str = "cycle_1") -> list[str]:
        plan = StepPlan(cycle_id=cycle, index=index, adapter="base", tasks=())
        return [one.episode.id for one in turns_of(train, plan, config)]

    steps = [turns(index) for index in range(1, 5)]
    assert [len(step) for step in steps] == [3, 3, 2, 0]
    assert all(len(set(step)) == len(step) for step in steps)
    assert sorted(id for step in steps for id in step) == sorted(
        [one.episode.id for one in train] * 2
    )
    assert turns(1) == steps[0]
    assert len({tuple(turns(1, f"cycle_{n}")) for n in range(20)}) > 1


def test_a_step_that_could_hold_all_takes_each_once_and_so_do_the_next() -> None:
    train, config = weighed(FOUR).train, LearnerConfig(live_epochs=3)
    plans = [StepPlan(cycle_id="cycle_1", index=n, adapter="base", tasks=()) for n in (1, 2, 3, 4)]
    assert [len(turns_of(train, plan, config)) for plan in plans] == [4, 4, 4, 0]
