"""What is computed once for several rows gives each row's own loss and gradient."""

import math
from collections.abc import Sequence
from pathlib import Path

import peft
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM

from learner import forests
from learner.rows import TrainingRow
from learner.step_receipt import StepReceipt
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from tests.learner.training_rows import UNIFORM, make_rows
from tests.tiny_model import save_tiny_model

CONFIG = TrainerConfig(rank=4, alpha=8, dtype="float32", max_grad_norm=1e9, learning_rate=1e-9)
Named = dict[str, Tensor]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def parent(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that does something: a step from nothing."""
    trainer = Trainer(model_dir, CONFIG.model_copy(update={"learning_rate": 1e-2}))
    trainer.step(make_rows())
    folder = tmp_path_factory.mktemp("parent")
    trainer.save(folder)
    return folder


@pytest.fixture(scope="module")
def trainer(model_dir: Path, parent: Path) -> Trainer:
    """Steps of it move the weights by less than float32 can tell."""
    return Trainer(model_dir, CONFIG, parent_adapter=parent)


@pytest.fixture(scope="module")
def plain(model_dir: Path, parent: Path) -> peft.PeftModel:
    """The same weights as peft and transformers compute them."""
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(base, parent, is_trainable=True)


def textbook(model: peft.PeftModel, rows: Sequence[TrainingRow]) -> tuple[float, Named]:
    """Loss and gradients one row at a time, with all logits and no padding."""
    model.zero_grad()
    total, num_tokens = torch.zeros(()), 0
    for row in rows:
        logprobs = model(input_ids=torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
        for t, sampler in enumerate(row.sampler_logprobs):
            if sampler is not None:
                logprob = logprobs[t - 1, row.token_ids[t]]
                weight = min(math.exp(logprob.item() - sampler), CONFIG.is_cap)
                total = total - weight * row.advantages[t] * logprob
                num_tokens += 1
    (total / num_tokens).backward()
    return total.item() / num_tokens, {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def step(trainer: Trainer, rows: Sequence[TrainingRow]) -> tuple[StepReceipt, Named]:
    receipt = trainer.step(rows)
    grads = {
        n: p.grad.clone() for n, p in trainer._named_parameters().items() if p.grad is not None
    }
    return receipt, grads


def flat(gradients: Named) -> Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)]).double()


tokens = st.lists(st.integers(3, 511), min_size=1, max_size=6)


@st.composite
def episodes(draw: st.DrawFn) -> list[TrainingRow]:
    """Groups of rows over prompts, turns and forks; some trained tokens are of unknown logprob."""
    rows: list[TrainingRow] = []
    for group in range(draw(st.integers(1, 3))):
        stems: list[list[tuple[int, bool]]] = [[(t, False) for t in draw(tokens)]]
        for _ in range(draw(st.integers(2, 4))):
            turns = list(draw(st.sampled_from(stems)))
            for _ in range(draw(st.integers(1, 3))):
                turns += [(t, True) for t in draw(tokens)]
                stems.append(list(turns))
                turns += [(t, False) for t in draw(tokens)]
            rows.append(_row(str(group), turns, draw(st.sampled_from([-1.0, -0.25, 0.5, 2.0]))))
    return rows


def _row(group: str, turns: list[tuple[int, bool]], advantage: float) -> TrainingRow:
    return TrainingRow(
        group_id=group,
        token_ids=tuple(t for t, _ in turns),
        loss_mask=tuple(trained for _, trained in turns),
        sampler_logprobs=tuple(
            UNIFORM + 0.01 * (t % 7) if trained and t % 11 else None for t, trained in turns
        ),
        advantages=tuple(advantage * trained for _, trained in turns),
    )


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=episodes(), budget=st.sampled_from([1, 40, 1000]), min_shared=st.sampled_from([1, 3]))
def test_loss_and_gradient_are_those_of_the_plain_computation(
    trainer: Trainer,
    plain: peft.PeftModel,
    rows: list[TrainingRow],
    budget: int,
    min_shared: int,
) -> None:
    if not any(row.has_signal for row in rows):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "MIN_SHARED", min_shared)
        patch.setattr(forests, "MAX_SEGMENT", 5)
        patch.setattr(
            trainer, "config", CONFIG.model_copy(update={"tokens_per_microbatch": budget})
        )
        receipt, found = step(trainer, rows)
    loss, expected = textbook(plain, rows)
    assert receipt.loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert found.keys() == expected.keys()
    mine, theirs = flat(found), flat(expected)
    assert float((mine - theirs).norm() / theirs.norm()) <= 1e-4
    assert float(torch.cosine_similarity(mine, theirs, dim=0)) >= 0.99999


def group_rows() -> list[TrainingRow]:
    """Eight rollouts of one prompt, of different lengths."""
    prompt = [(t, False) for t in range(100, 130)]
    return [
        _row(
            "g", [*prompt, *((200 + 7 * i + t, True) for t in range(3 + i % 4))], (0.5, -0.5)[i % 2]
        )
        for i in range(8)
    ]


def test_loss_does_not_depend_on_packing_or_accumulation(model_dir: Path, parent: Path) -> None:
    rows = group_rows()
    found = []
    # 1 × 8, 2 × 4 and 8 × 1 rows; then everything at once without sharing
    for budget, min_shared, num_forests in ((1, 16, 8), (48, 16, 2), (66, 16, 1), (400, 99, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forests, "MIN_SHARED", min_shared)
            parts = forests.pack([row.read_ids for row in rows], max_tokens=budget)
            config = CONFIG.model_copy(update={"tokens_per_microbatch": budget})
            assert len(parts) == num_forests, parts
            found.append(step(Trainer(model_dir, config, parent_adapter=parent), rows))
    (whole, gradients), *others = found
    for receipt, parts in others:
        assert receipt.loss == pytest.approx(whole.loss, abs=1e-6)
        assert receipt.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
        assert float((flat(parts) - flat(gradients)).norm() / flat(gradients).norm()) < 1e-6


def test_a_prompt_is_computed_once(model_dir: Path) -> None:
    rows = group_rows()
    receipt = Trainer(model_dir, CONFIG).step(rows)
    num_completion = sum(len(row.token_ids) - 30 for row in rows)
    assert receipt.num_tokens == 30 + num_completion - len(rows)
    assert receipt.num_row_tokens == 8 * 30 + num_completion


def test_gradient_checkpointing_changes_no_gradient(model_dir: Path, parent: Path) -> None:
    found = [
        step(
            Trainer(
                model_dir,
                CONFIG.model_copy(update={"gradient_checkpointing": switch}),
                parent_adapter=parent,
            ),
            group_rows(),
        )[1]
        for switch in (False, True)
    ]
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name])
