import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learner.errors import RowError
from learner.rows import (
    Rollout,
    RolloutGroup,
    SkipReason,
    TrainingRow,
    read_rows,
    rows_of,
    write_rows,
)


def rollout(reward: float | None, **changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "prompt_token_ids": (1, 9, 8),
        "completion_token_ids": (33, 2),
        "sampler_logprobs": (-0.5, -0.25),
        "finish_reason": "stop",
    }
    return Rollout(reward=reward, **fields | changes)


def group(*rollouts: Rollout, name: str = "g") -> RolloutGroup:
    return RolloutGroup(id=name, task_id="task_1", skill_id=3, rollouts=rollouts)


def row(**changes: Any) -> TrainingRow:
    fields: dict[str, Any] = {
        "group_id": "g",
        "token_ids": (1, 9, 33, 2),
        "loss_mask": (False, False, True, True),
        "sampler_logprobs": (None, None, -0.5, None),
        "advantages": (0.0, 0.0, 0.5, 0.5),
    }
    return TrainingRow(**fields | changes)


def test_a_rollout_becomes_prompt_and_trained_completion() -> None:
    batch = rows_of([group(rollout(1.0), rollout(0.0))])
    assert batch.rows[0] == TrainingRow(
        group_id="g",
        token_ids=(1, 9, 8, 33, 2),
        loss_mask=(False, False, False, True, True),
        sampler_logprobs=(None, None, None, -0.5, -0.25),
        advantages=(0.0, 0.0, 0.0, 0.5, 0.5),
    )
    assert batch.rows[1].advantages == (0.0, 0.0, 0.0, -0.5, -0.5)
    assert (batch.num_groups, batch.num_trained_groups, batch.num_rollouts) == (1, 1, 2)
    assert batch.skipped_groups == batch.skipped_rollouts == {}


def test_final_end_of_sequence_token_is_trained() -> None:
    (first, _) = rows_of([group(rollout(1.0), rollout(0.0))]).rows
    assert first.token_ids[-1] == 2
    assert first.loss_mask[-1]


@pytest.mark.parametrize("rewards", [[1.0] * 4, [0.0] * 4, [0.3] * 3, [0.1 + 0.2, 0.3]])
def test_group_of_equal_rewards_is_skipped_and_counted(rewards: list[float]) -> None:
    batch = rows_of([group(*map(rollout, rewards))])
    assert batch.rows == ()
    assert batch.skipped_groups == {SkipReason.ZERO_SIGNAL: 1}
    assert batch.skipped_rollouts == {SkipReason.ZERO_SIGNAL: len(rewards)}


def test_group_of_one_is_skipped_and_counted() -> None:
    batch = rows_of([group(rollout(0.3))])
    assert (batch.rows, batch.skipped_groups) == ((), {SkipReason.TOO_FEW: 1})


@pytest.mark.parametrize(
    ("unusable", "reason"),
    [
        (rollout(None), SkipReason.UNSCORED),
        (rollout(0.9, completion_token_ids=(), sampler_logprobs=()), SkipReason.EMPTY_COMPLETION),
        (rollout(0.9, sampler_logprobs=None), SkipReason.NO_LOGPROBS),
        (rollout(0.9, sampler_logprobs=(-0.5,)), SkipReason.NO_LOGPROBS),
        (rollout(0.9, sampler_logprobs=(None, None)), SkipReason.NO_LOGPROBS),
        (rollout(0.9, sampler_logprobs=(math.nan, -math.inf)), SkipReason.NO_LOGPROBS),
    ],
)
def test_group_with_an_unusable_rollout_equals_the_group_without_it(
    unusable: Rollout, reason: SkipReason
) -> None:
    scored = [rollout(1.0), rollout(0.0), rollout(0.25)]
    batch = rows_of([group(scored[0], unusable, *scored[1:])])
    assert batch.rows == rows_of([group(*scored)]).rows
    assert batch.skipped_rollouts == {reason: 1}


def test_group_left_with_one_usable_rollout_is_too_few() -> None:
    batch = rows_of([group(rollout(1.0), rollout(None), rollout(None))])
    assert batch.skipped_groups == {SkipReason.TOO_FEW: 1}
    assert batch.skipped_rollouts == {SkipReason.UNSCORED: 2, SkipReason.TOO_FEW: 1}


def test_truncated_completion_is_trained_with_its_grade() -> None:
    cut_off = rollout(0.0, finish_reason="length")
    batch = rows_of([group(rollout(1.0), cut_off)])
    assert batch.rows == rows_of([group(rollout(1.0), rollout(0.0))]).rows
    assert batch.num_truncated == 1


def test_non_finite_logprob_becomes_unknown() -> None:
    batch = rows_of([group(rollout(1.0, sampler_logprobs=(math.nan, -0.25)), rollout(0.0))])
    assert batch.rows[0].sampler_logprobs[3:] == (None, -0.25)
    assert batch.rows[0].loss_mask[3:] == (True, True)


def test_groups_far_apart_do_not_see_each_other() -> None:
    low, high = (group(rollout(r), rollout(r + 0.2)) for r in (0.0, 0.8))
    advantages = [row.advantages[-1] for row in rows_of([low, high]).rows]
    assert advantages == pytest.approx([-0.1, 0.1, -0.1, 0.1])


rollouts = st.builds(
    rollout,
    st.none() | st.sampled_from([0.0, 0.5, 1.0]),
    completion_token_ids=st.sampled_from([(33, 2), ()]),
    sampler_logprobs=st.sampled_from([(-0.5, -0.25), None]),
)


@given(st.lists(st.lists(rollouts, max_size=5), max_size=5))
def test_every_rollout_and_group_is_accounted_for(groups: list[list[Rollout]]) -> None:
    batch = rows_of([group(*members) for members in groups])
    assert len(batch.rows) + sum(batch.skipped_rollouts.values()) == batch.num_rollouts
    assert batch.num_trained_groups + sum(batch.skipped_groups.values()) == batch.num_groups
    assert batch.num_rollouts == sum(map(len, groups))
    assert sum(r.advantages[-1] for r in batch.rows) == pytest.approx(0.0, abs=1e-9)
    json.dumps(batch.to_json())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": (1, 9, 33)}, "lengths differ"),
        ({"advantages": (0.0, 0.0, 0.5)}, "lengths differ"),
        ({"loss_mask": (False,) * 4}, "no token is trained"),
        ({"loss_mask": (True, False, True, True)}, "precedes"),
        ({"token_ids": (1, -9, 33, 2)}, "negative"),
        ({"sampler_logprobs": (None, None, math.nan, None)}, "finite"),
        ({"sampler_logprobs": (None, None, -math.inf, None)}, "finite"),
        ({"advantages": (0.0, 0.0, math.nan, 0.5)}, "finite"),
        ({"sampler_logprobs": (None, 0.0, -0.5, None)}, "not trained"),
        ({"advantages": (0.0, 0.1, 0.5, 0.5)}, "not trained"),
        (
            {"token_ids": (), "loss_mask": (), "sampler_logprobs": (), "advantages": ()},
            "no token is trained",
        ),
    ],
)
def test_row_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError, match=message):
        row(**changes)


def test_signal_needs_a_known_logprob_under_an_advantage() -> None:
    assert row().has_signal
    assert not row(advantages=(0.0,) * 4).has_signal
    assert not row(advantages=(0.0, 0.0, 0.0, 0.5)).has_signal


finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def training_rows(draw: st.DrawFn) -> TrainingRow:
    mask = [False, *draw(st.lists(st.booleans(), max_size=8)), True]
    return TrainingRow(
        group_id=draw(st.text()),
        token_ids=tuple(draw(st.integers(0, 2**40)) for _ in mask),
        loss_mask=tuple(mask),
        sampler_logprobs=tuple(draw(st.none() | finite) if m else None for m in mask),
        advantages=tuple(draw(finite) if m else 0.0 for m in mask),
    )


@given(rows=st.lists(training_rows(), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_row_file_round_trips_exactly(tmp_path: Path, rows: list[TrainingRow]) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    back = read_rows(path)
    assert back == tuple(rows)
    # == does not tell 0.0 from -0.0 nor 1 from True
    assert repr(back) == repr(tuple(rows))


LINE = (
    '{"group_id": "g", "token_ids": [1, 2], "loss_mask": [0, 1], '
    '"sampler_logprobs": [null, -1], "advantages": [0, 0.5]}'
)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        LINE.replace("-1", "NaN"),
        LINE.replace("[0, 1]", "[0]"),
        LINE.replace("[1, 2]", '["a", 2]'),
    ],
)
def test_broken_line_is_refused_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row()])
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(RowError, match="line 2"):
        read_rows(path)


def test_line_that_the_broken_ones_come_from_is_good(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(LINE + "\n", encoding="utf-8")
    assert read_rows(path)[0].sampler_logprobs == (None, -1)


def test_missing_row_file_is_a_row_error(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"nowhere\.jsonl"):
        read_rows(tmp_path / "nowhere.jsonl")
