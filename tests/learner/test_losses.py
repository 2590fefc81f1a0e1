import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.losses import LossStats, k3, policy_loss, sequence_means
from learner.trainer_config import TrainerConfig

NAN = math.nan


def run(
    trainer: Sequence[float] | Tensor,
    sampler: Sequence[float],
    advantages: Sequence[float],
    sequence: Sequence[int] | None = None,
    *,
    ref: Sequence[float] | None = None,
    **settings: Any,
) -> tuple[Tensor, LossStats, Tensor]:
    """Return loss, statistics and the leaf whose gradient was computed, in float64."""
    leaf = torch.as_tensor(trainer, dtype=torch.float64).clone().requires_grad_()
    ids = sequence if sequence is not None else [0] * len(leaf)
    loss, stats = policy_loss(
        leaf,
        torch.tensor(sampler, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(ids),
        num_sequences=max(ids) + 1,
        config=TrainerConfig(**settings),
        ref_logprobs_N=None if ref is None else torch.tensor(ref, dtype=torch.float64),
    )
    loss.backward()
    return loss.detach(), stats, leaf


def test_equal_policies_give_the_plain_policy_gradient() -> None:
    # weights are exp(0) = 1: loss = -(0.5 * -1.0 + -0.5 * -2.0) = -0.5
    loss, stats, leaf = run([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5])
    assert float(loss) == pytest.approx(-0.5)
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [-0.5, 0.5]
    assert (stats.k3_sum, stats.gap_sum, stats.num_clipped_tokens) == (0.0, 0.0, 0)


def test_importance_weight_is_capped_and_carries_no_gradient() -> None:
    # ratios exp(-1.0 + 1.2) = 1.2214 and exp(-0.5 + 1.4) = 2.4596, the latter capped at 2:
    # loss = -(1.2214 * 1 * -1.0 + 2 * 1 * -0.5) = 2.2214; d loss / d trainer = -(1.2214, 2)
    loss, stats, leaf = run(
        [-1.0, -0.5], [-1.2, -1.4], [1.0, 1.0], max_sequence_gap=10.0, is_cap=2.0
    )
    assert float(loss) == pytest.approx(math.exp(0.2) + 1.0)
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx([-math.exp(0.2), -2.0])
    assert stats.num_clipped_tokens == 1
    assert stats.weight_sum == pytest.approx(math.exp(0.2) + 2.0)
    assert stats.weight_max == pytest.approx(math.exp(0.9))


@given(
    st.lists(
        st.tuples(st.floats(-5, -0.01), st.floats(-5, -0.01), st.floats(-2, 2)),
        min_size=1,
        max_size=8,
    )
)
def test_below_the_cap_the_gradient_is_that_of_the_importance_weighted_return(
    tokens: list[tuple[float, float, float]],
) -> None:
    """d/dx [w A x] with w held fixed equals d/dx [exp(x - s) A]: REINFORCE under the sampler."""
    trainer, sampler, advantages = zip(*tokens, strict=True)
    _, _, leaf = run(trainer, sampler, advantages, is_cap=1e9, max_sequence_gap=1e9)
    reference = torch.tensor(trainer, dtype=torch.float64, requires_grad=True)
    ratio = (reference - torch.tensor(sampler, dtype=torch.float64)).exp()
    (-ratio * torch.tensor(advantages, dtype=torch.float64)).sum().backward()
    assert leaf.grad is not None
    assert reference.grad is not None
    assert torch.allclose(leaf.grad, reference.grad)


def test_unknown_logprob_leaves_numerator_and_denominator() -> None:
    with_unknown = run([-1.0, -3.0, -2.0], [-1.1, NAN, -2.1], [1.0, 1.0, 1.0])
    without = run([-1.0, -2.0], [-1.1, -2.1], [1.0, 1.0])
    assert with_unknown[0] == without[0]
    assert with_unknown[1].num_tokens == without[1].num_tokens == 2
    assert with_unknown[1].num_unknown_tokens == 1
    assert with_unknown[2].grad is not None
    assert with_unknown[2].grad[1] == 0.0
    assert with_unknown[1].k3_sum == without[1].k3_sum


def test_sequence_outside_the_trust_region_leaves_numerator_and_denominator() -> None:
    # sequence 0: gaps 0.1, 0.1; sequence 1: gaps 0.9, 0.3, mean 0.6 > 0.5 although one is below
    trainer, sampler = [-1.0, -1.0, -1.0, -1.0], [-1.1, -0.9, -1.9, -1.3]
    loss, stats, leaf = run(trainer, sampler, [1.0] * 4, [0, 0, 1, 1])
    alone, alone_stats, _ = run(trainer[:2], sampler[:2], [1.0] * 2)
    assert loss == alone
    assert leaf.grad is not None
    assert leaf.grad[2:].tolist() == [0.0, 0.0]
    assert (stats.num_tokens, stats.num_dropped_tokens) == (2, 2)
    assert (stats.num_sequences, stats.num_dropped_sequences) == (2, 1)
    # What is reported of the gap includes the dropped: that is where a drift shows.
    assert stats.gap_sum == pytest.approx(0.1 + 0.1 + 0.9 + 0.3)
    assert stats.k3_sum > alone_stats.k3_sum
    assert stats.weight_sum == alone_stats.weight_sum


def test_gap_in_either_direction_drops_a_sequence() -> None:
    for shift in (0.6, -0.6):
        _, stats, _ = run([-2.0, -2.0], [-2.0 + shift] * 2, [1.0, 1.0])
        assert stats.num_dropped_sequences == 1


def test_shifted_sampler_logprobs_show_in_the_statistics() -> None:
    _, stats, _ = run([-1.0] * 10, [-1.1] * 10, [1.0] * 10)
    assert stats.gap_sum / stats.num_known_tokens == pytest.approx(0.1)
    # k3 with log ratio 0.1: exp(0.1) - 1 - 0.1
    assert stats.k3_sum / stats.num_known_tokens == pytest.approx(math.exp(0.1) - 1.1)
    assert stats.weight_sum / stats.num_tokens == pytest.approx(math.exp(0.1))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.data())
def test_microbatches_add_up(sequence: list[int], data: st.DataObject) -> None:
    sequence = sorted(sequence)
    numbers = st.lists(st.floats(-3, 0), min_size=len(sequence), max_size=len(sequence))
    trainer, sampler, advantages = (data.draw(numbers) for _ in range(3))
    sampler = [NAN if s == 0.0 else s for s in sampler]
    whole_loss, whole, _ = run(trainer, sampler, advantages, sequence)
    total, parts = 0.0, LossStats()
    for number in range(max(sequence) + 1):
        index = [i for i, s in enumerate(sequence) if s == number]
        if index:
            loss, stats, _ = run(
                [trainer[i] for i in index],
                [sampler[i] for i in index],
                [advantages[i] for i in index],
            )
            total, parts = total + float(loss), parts + stats
        else:
            parts += LossStats(num_sequences=1)
    assert total == pytest.approx(float(whole_loss), abs=1e-9)
    for name in LossStats.__slots__:
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), abs=1e-9)


def test_extreme_ratios_stay_finite() -> None:
    loss, stats, leaf = run([-0.1, -900.0], [-900.0, -0.1], [1.0, -1.0], max_sequence_gap=1e9)
    assert leaf.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(leaf.grad).all()
    assert math.isfinite(stats.k3_sum)
    assert math.isfinite(stats.weight_max)


def test_k3_is_the_kl_in_expectation() -> None:
    """Sum q(x) k3(x) over a whole distribution equals KL(q || p), worked out directly."""
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expected = 0.5 * math.log(0.5 / 0.2) + 0.3 * math.log(0.3 / 0.5) + 0.2 * math.log(0.2 / 0.3)
    assert float((q * k3(p.log() - q.log())).sum()) == pytest.approx(expected)


@given(st.floats(-20, 20))
def test_k3_is_never_negative(log_ratio: float) -> None:
    assert float(k3(torch.tensor(log_ratio, dtype=torch.float64))) >= 0.0


def test_k3_gradient() -> None:
    point = torch.tensor([-0.7, 0.0, 0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(k3, (point,))


def test_sequence_without_known_tokens_has_no_gap() -> None:
    gaps = sequence_means(
        torch.tensor([0.4, 0.2, 9.0]),
        torch.tensor([True, True, False]),
        torch.tensor([0, 0, 1]),
        2,
    )
    assert gaps.tolist() == pytest.approx([0.3, 0.0])


def test_clipping_by_hand() -> None:
    # ratios exp(0.4) = 1.4918 and exp(-0.4) = 0.6703, limits 0.8 and 1.28
    # A = 1:  min(1.4918, 1.28) = 1.28, clipped;  min(0.6703, 0.8) = 0.6703
    # A = -1: min(-1.4918, -1.28) = -1.4918;  min(-0.6703, -0.8) = -0.8, clipped
    loss, stats, leaf = run(
        [-1.0] * 4, [-1.4, -0.6, -1.4, -0.6], [1.0, 1.0, -1.0, -1.0], objective="clip"
    )
    up, down = math.exp(0.4), math.exp(-0.4)
    assert float(loss) == pytest.approx(-(1.28 + down - up - 0.8))
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx([0.0, -down, up, 0.0])
    assert stats.num_clipped_tokens == 2
    assert stats.weight_sum == pytest.approx(1.28 + down + up + 0.8)


def test_one_ratio_a_sequence_by_hand() -> None:
    # sequence 0: mean log ratio (0.3 - 0.1) / 2 = 0.1, ratio 1.1052, not clipped at 1.28
    # sequence 1: 0.4, ratio 1.4918, clipped at 1.28; its loss has no gradient
    # loss = -(2 * 1.1052 * 1 + 1 * 1.28 * 0.5); d loss / d trainer = -1.1052 for both of sequence 0
    loss, stats, leaf = run(
        [-1.0, -1.0, -1.0], [-1.3, -0.9, -1.4], [1.0, 1.0, 0.5], [0, 0, 1], objective="gspo"
    )
    assert float(loss) == pytest.approx(-(2 * math.exp(0.1) + 0.64))
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx([-math.exp(0.1), -math.exp(0.1), 0.0])
    assert stats.num_clipped_tokens == 1


def test_one_ratio_a_sequence_leaves_unknown_tokens_out() -> None:
    with_unknown = run([-1.0, -9.0], [-1.3, NAN], [1.0, 1.0], objective="gspo")
    without = run([-1.0], [-1.3], [1.0], objective="gspo")
    assert with_unknown[0] == without[0]


def test_kl_to_a_reference_by_hand() -> None:
    # ref - trainer = -0.5 - -1.0 = 0.5: k3 = exp(0.5) - 1 - 0.5 = 0.1487, times 0.1
    # gradient: ratio * (trainer - ref) = -0.5, times 0.1; the policy's part has advantage 0
    loss, stats, leaf = run([-1.0], [-1.0], [0.0], ref=[-0.5], kl_coefficient=0.1)
    assert float(loss) == pytest.approx(0.1 * (math.exp(0.5) - 1.5))
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx([-0.05])
    assert stats.reference_k3_sum == pytest.approx(math.exp(0.5) - 1.5)


@pytest.mark.parametrize("objective", ["cispo", "clip", "gspo"])
def test_gradient_is_that_of_finite_differences(objective: str) -> None:
    """CISPO's weight is held fixed by design, so its surrogate is checked at the point itself."""
    sampler, advantages = [-1.2, NAN, -0.7, -0.4], [1.0, 1.0, -0.5, -0.5]
    point = torch.tensor([-1.1, -2.0, -0.65, -0.5], dtype=torch.float64)

    def loss(trainer: Tensor) -> Tensor:
        # With the sampler at the point itself CISPO's weight is 1 and its surrogate linear.
        same = point.tolist() if objective == "cispo" else sampler
        at = [math.nan if math.isnan(s) else p for s, p in zip(sampler, same, strict=True)]
        return policy_loss(
            trainer,
            torch.tensor(at, dtype=torch.float64),
            torch.tensor(advantages, dtype=torch.float64),
            torch.tensor([0, 0, 1, 1]),
            num_sequences=2,
            config=TrainerConfig.model_validate({"objective": objective, "kl_coefficient": 0.3}),
            ref_logprobs_N=point - 0.2,
        )[0]

    if objective == "cispo":
        leaf = point.clone().requires_grad_()
        (found,) = torch.autograd.grad(loss(leaf), leaf)
        # -A at weight 1, plus 0.3 * (trainer - ref) = 0.3 * 0.2; the unknown token has neither
        kl = 0.06
        assert found.tolist() == pytest.approx([-1.0 + kl, 0.0, 0.5 + kl, 0.5 + kl])
    else:
        assert torch.autograd.gradcheck(loss, (point.requires_grad_(),))


TRL: dict[str, Any] = json.loads(
    Path(__file__).with_name("trl_losses.json").read_text(encoding="utf-8")
)
"""Written by ``python -m bench.trl_losses``."""


@pytest.mark.parametrize("name", TRL["losses"])
def test_loss_and_gradient_are_trls(name: str) -> None:
    inputs, expected = TRL["inputs"], TRL["losses"][name]
    places = [(b, t) for b, row in enumerate(inputs["mask"]) for t, used in enumerate(row) if used]

    def picked(what: str) -> list[float]:
        return [inputs[what][b][t] for b, t in places]

    loss, stats, leaf = run(
        picked("trainer_logprobs"),
        picked("sampler_logprobs"),
        [inputs["advantages"][b] for b, _ in places],
        [b for b, _ in places],
        max_sequence_gap=1e9,
        objective=name.partition(" ")[0],
        ref=picked("ref_logprobs") if "kl" in name else None,
        kl_coefficient=0.1,
    )
    assert float(loss) / stats.num_tokens == pytest.approx(expected["loss"], rel=1e-9)
    assert leaf.grad is not None
    theirs = [expected["gradient"][b][t] for b, t in places]
    assert (leaf.grad / stats.num_tokens).tolist() == pytest.approx(theirs, rel=1e-9)
    assert any(theirs)
