import dataclasses
import math
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

from learner import microbatches
from learner.errors import NoSignalError, RowError, TrainingError
from learner.forests import pack
from learner.rows import TrainingRow
from learner.step_receipt import StepReceipt
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from memory.errors import AdapterError
from tests.learner.training_rows import UNIFORM, make_row, make_rows
from tests.tiny_model import save_tiny_model

CONFIG = TrainerConfig(rank=4, alpha=8, dtype="float32", learning_rate=1e-3)
TIMES = ("forward_s", "backward_s", "optimizer_s", "peak_memory_mib")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def saved(trainer: Trainer, folder: Path) -> Path:
    folder.mkdir()
    trainer.save(folder)
    return folder


def gradients(trainer: Trainer) -> list[torch.Tensor]:
    return [p.grad.clone() for p in trainer._parameters if p.grad is not None]


def reference_gradient(
    model_dir: Path, parent: Path, rows: list[TrainingRow]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and adapter gradients by the textbook: one row at a time, all logits, no padding."""
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, parent, is_trainable=True)
    total = torch.zeros(())
    num_tokens = 0
    for row in rows:
        ids = torch.tensor([row.token_ids])
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        for t, is_trained in enumerate(row.loss_mask):
            sampler = row.sampler_logprobs[t]
            if is_trained and sampler is not None:
                trainer = logprobs[t - 1, row.token_ids[t]]
                weight = min(math.exp(trainer.item() - sampler), 2.0)
                total = total - weight * row.advantages[t] * trainer
                num_tokens += 1
    (total / num_tokens).backward()
    return total.item() / num_tokens, {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.fixture
def parent(model_dir: Path, tmp_path: Path) -> Path:
    """An adapter that does something: one step from nothing."""
    trainer = Trainer(model_dir, CONFIG)
    trainer.step(make_rows())
    return saved(trainer, tmp_path / "parent")


def test_step_has_the_gradient_of_the_plain_computation(model_dir: Path, parent: Path) -> None:
    rows = make_rows()
    unknown = list(rows[3].sampler_logprobs)
    unknown[-1] = None
    rows[3] = dataclasses.replace(rows[3], sampler_logprobs=tuple(unknown))
    loss, expected = reference_gradient(model_dir, parent, rows)
    config = CONFIG.model_copy(update={"max_grad_norm": 1e9, "tokens_per_microbatch": 30})
    trainer = Trainer(model_dir, config, parent_adapter=parent)
    receipt = trainer.step(rows)
    assert receipt.loss == pytest.approx(loss, rel=1e-5)
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    assert receipt.grad_norm == pytest.approx(norm, rel=1e-4)
    found = {n: p.grad for n, p in trainer._model.named_parameters() if p.requires_grad}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6 * norm)


def test_update_does_not_depend_on_microbatching(model_dir: Path, parent: Path) -> None:
    rows = [
        make_row(seed=i, advantage=(0.5, -0.5)[i % 2], num_completion=4 - i % 3) for i in range(8)
    ]
    found: list[tuple[StepReceipt, list[torch.Tensor]]] = []
    for num_rows, num_batches in ((8, 1), (4, 2), (1, 8)):
        config = CONFIG.model_copy(update={"tokens_per_microbatch": 9 * num_rows})
        ids = [row.read_ids for row in rows]
        assert len(pack(ids, max_tokens=9 * num_rows)) == num_batches
        trainer = Trainer(model_dir, config, parent_adapter=parent)
        found.append((trainer.step(rows), gradients(trainer)))
    whole, whole_gradients = found[0]
    for receipt, parts in found[1:]:
        assert receipt.trained_tokens == whole.trained_tokens
        assert receipt.loss == pytest.approx(whole.loss, rel=1e-5)
        assert receipt.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
        for part, reference in zip(parts, whole_gradients, strict=True):
            torch.testing.assert_close(part, reference, rtol=1e-4, atol=1e-7)


def test_rows_do_not_see_the_rows_beside_them(model_dir: Path, parent: Path) -> None:
    trainer = Trainer(model_dir, CONFIG, parent_adapter=parent)
    short = make_row(seed=1, advantage=1.0, num_prompt=2, num_completion=3)
    long = make_row(seed=2, advantage=1.0, num_prompt=30, num_completion=20)
    device = torch.device("cpu")
    alone = trainer.trainer_logprobs(microbatches.collate([short], device))
    beside = trainer.trainer_logprobs(microbatches.collate([long, short], device))
    torch.testing.assert_close(beside[-3:], alone, rtol=1e-5, atol=1e-5)


def test_two_runs_are_equal_bit_for_bit(model_dir: Path, tmp_path: Path) -> None:
    config = TrainerConfig(rank=4, alpha=8, tokens_per_microbatch=40)
    folders = []
    for run in "ab":
        trainer = Trainer(model_dir, config)
        receipts = [trainer.step(make_rows()).to_json() for _ in range(3)]
        folder = saved(trainer, tmp_path / run)
        folders.append(
            (
                [{k: v for k, v in r.items() if k not in TIMES} for r in receipts],
                {path.name: path.read_bytes() for path in folder.iterdir()},
            )
        )
    assert folders[0] == folders[1]


def test_another_seed_gives_another_start(model_dir: Path, tmp_path: Path) -> None:
    weights = [
        load_file(
            saved(Trainer(model_dir, TrainerConfig(seed=seed)), tmp_path / f"{seed}")
            / "adapter_model.safetensors"
        )
        for seed in (0, 1)
    ]
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert not torch.equal(weights[0][name], weights[1][name])


def test_only_the_adapters_weights_change(model_dir: Path) -> None:
    trainer = Trainer(model_dir, CONFIG)
    before = {n: p.detach().clone() for n, p in trainer._model.named_parameters()}
    receipt = trainer.step(make_rows())
    changed = {n for n, p in trainer._model.named_parameters() if not torch.equal(p, before[n])}
    # B starts at zero, so A has no gradient in the first step; 7 layers in 2 blocks
    assert {name.split(".")[-3] for name in changed} == {"lora_B"}
    assert len(changed) == 14
    trainer.step(make_rows())
    changed = {n for n, p in trainer._model.named_parameters() if not torch.equal(p, before[n])}
    assert {name.split(".")[-3] for name in changed} == {"lora_A", "lora_B"}
    assert receipt.parameter_change > 0


def test_rewarded_answers_become_likelier_and_punished_ones_less(model_dir: Path) -> None:
    rows = make_rows()
    trainer = Trainer(model_dir, CONFIG)
    batch = microbatches.collate(rows, torch.device("cpu"))
    before = trainer.trainer_logprobs(batch).detach()
    for _ in range(3):
        trainer.step(rows)
    gain = trainer.trainer_logprobs(batch).detach() - before
    assert gain[batch.advantages_N > 0].mean() > 0.01
    assert gain[batch.advantages_N < 0].mean() < -0.01


def test_receipt_counts_tokens_by_hand(model_dir: Path) -> None:
    known = make_row(seed=0, advantage=0.5, num_prompt=3, num_completion=2)
    unknown = dataclasses.replace(known, sampler_logprobs=(None,) * 5)
    even = make_row(seed=1, advantage=0.0, num_prompt=2, num_completion=6)
    foreign = dataclasses.replace(known, sampler_logprobs=(None, None, None, -1.0, -1.0))
    receipt = Trainer(model_dir, CONFIG).step([known, unknown, even, foreign])
    assert (receipt.num_rows, receipt.num_tokens) == (4, 4 + 4 + 7 + 4)
    assert receipt.trained_tokens == 2 + 6
    assert receipt.num_unknown_tokens == 2
    assert (receipt.num_dropped_sequences, receipt.num_dropped_tokens) == (1, 2)
    assert receipt.nonzero_advantage_share == 2 / 8
    assert receipt.peak_memory_mib > 10


def test_recorded_own_logprobs_show_no_gap(model_dir: Path) -> None:
    trainer = Trainer(model_dir, CONFIG)
    row = make_row(seed=0, advantage=0.5)
    own = trainer.trainer_logprobs(microbatches.collate([row], torch.device("cpu"))).tolist()
    receipt = trainer.step([dataclasses.replace(row, sampler_logprobs=(*(None,) * 5, *own))])
    assert receipt.kl_sampler_trainer == pytest.approx(0.0, abs=1e-4)
    assert receipt.logprob_gap == pytest.approx(0.0, abs=1e-4)
    assert receipt.is_weight_mean == pytest.approx(1.0, abs=1e-4)
    assert receipt.loss == pytest.approx(-0.5 * sum(own) / 4, rel=1e-4)


@pytest.mark.parametrize("advantage", [None, 0.0])
def test_nothing_to_learn_from_touches_nothing(
    model_dir: Path, tmp_path: Path, advantage: float | None
) -> None:
    trainer = Trainer(model_dir, CONFIG)
    trainer.step(make_rows())
    before = saved(trainer, tmp_path / "before")
    rows = [] if advantage is None else [make_row(seed=i, advantage=0.0) for i in range(4)]
    with pytest.raises(NoSignalError):
        trainer.step(rows)
    after = saved(trainer, tmp_path / "after")
    name = "adapter_model.safetensors"
    assert (after / name).read_bytes() == (before / name).read_bytes()


def test_rows_of_other_weights_are_refused(model_dir: Path) -> None:
    rows = [
        dataclasses.replace(
            row,
            sampler_logprobs=tuple(p and p + 3.0 for p in row.sampler_logprobs),
        )
        for row in make_rows()
    ]
    with pytest.raises(TrainingError, match=r"outside the trust region .mean gap 2\.9"):
        Trainer(model_dir, CONFIG).step(rows)


def test_weights_that_do_not_move_are_an_error(model_dir: Path) -> None:
    frozen = CONFIG.model_copy(update={"learning_rate": 0.0})
    with pytest.raises(TrainingError, match="did not move"):
        Trainer(model_dir, frozen).step(make_rows())


def test_zero_gradient_is_an_error(model_dir: Path) -> None:
    # the same sequence with opposite advantages: the two gradients cancel exactly
    row = make_row(seed=0, advantage=0.5)
    opposite = dataclasses.replace(row, advantages=tuple(-a for a in row.advantages))
    one_by_one = CONFIG.model_copy(update={"tokens_per_microbatch": 1})
    with pytest.raises(TrainingError, match="gradient is zero"):
        Trainer(model_dir, one_by_one).step([row, opposite])


def test_non_finite_weights_are_an_error_and_stay_out_of_the_update(model_dir: Path) -> None:
    trainer = Trainer(model_dir, CONFIG)
    with torch.no_grad():
        trainer._parameters[0].fill_(math.nan)
    before = [p.detach().clone() for p in trainer._parameters[1:]]
    with pytest.raises(TrainingError):
        trainer.step(make_rows())
    for old, new in zip(before, trainer._parameters[1:], strict=True):
        assert torch.equal(old, new)


def test_foreign_token_id_is_named(model_dir: Path) -> None:
    row = dataclasses.replace(make_row(seed=0, advantage=1.0), token_ids=(1,) * 8 + (512,))
    with pytest.raises(RowError, match="token id 512"):
        Trainer(model_dir, CONFIG).step([row])


def test_saved_adapter_is_read_by_peft_with_the_same_logprobs(
    model_dir: Path, tmp_path: Path
) -> None:
    trainer = Trainer(model_dir, CONFIG)
    trainer.step(make_rows())
    row = make_rows()[5]
    own = trainer.trainer_logprobs(microbatches.collate([row], torch.device("cpu"))).detach()
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, saved(trainer, tmp_path / "adapter"))
    logprobs = model(input_ids=torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
    read = [logprobs[t - 1, row.token_ids[t]] for t, m in enumerate(row.loss_mask) if m]
    torch.testing.assert_close(torch.stack(read), own, rtol=1e-5, atol=1e-5)


def test_training_continues_from_a_parent(model_dir: Path, tmp_path: Path) -> None:
    first = Trainer(model_dir, CONFIG)
    first.step(make_rows())
    folder = saved(first, tmp_path / "first")
    child = Trainer(model_dir, CONFIG, parent_adapter=folder)
    again = saved(child, tmp_path / "again")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    batch = microbatches.collate(make_rows(), torch.device("cpu"))
    assert torch.equal(child.trainer_logprobs(batch), first.trainer_logprobs(batch))


@pytest.mark.parametrize(
    "changes", [{"rank": 8}, {"alpha": 16}, {"target_modules": ("q_proj",)}], ids=str
)
def test_training_keeps_its_parents_shape(
    model_dir: Path, parent: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    child = Trainer(model_dir, CONFIG.model_copy(update=changes), parent_adapter=parent)
    child.step(make_rows())
    folder = saved(child, tmp_path / "child")
    config = "adapter_config.json"
    assert (folder / config).read_bytes() == (parent / config).read_bytes()


def test_a_parent_without_its_configuration_is_refused(model_dir: Path, parent: Path) -> None:
    (parent / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(AdapterError, match="cannot read the parent"):
        Trainer(model_dir, CONFIG, parent_adapter=parent)


def test_parent_cut_off_is_refused(model_dir: Path, parent: Path) -> None:
    weights = parent / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(AdapterError, match="cannot read the parent"):
        Trainer(model_dir, CONFIG, parent_adapter=parent)


def test_unknown_layer_name_is_an_adapter_error(model_dir: Path) -> None:
    with pytest.raises(AdapterError, match="adapter"):
        Trainer(model_dir, CONFIG.model_copy(update={"target_modules": ("no_proj",)}))


def test_missing_model_is_a_training_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot load the base model"):
        Trainer(tmp_path / "nothing", CONFIG)


def test_config_refuses_unknown_keys() -> None:
    with pytest.raises(ValueError, match="rnak"):
        TrainerConfig.model_validate({"rnak": 4})


def test_uniform_is_near_a_random_models_logprobs(model_dir: Path) -> None:
    batch = microbatches.collate(make_rows(), torch.device("cpu"))
    logprobs = Trainer(model_dir, CONFIG).trainer_logprobs(batch)
    assert (logprobs - UNIFORM).abs().mean() < 0.2


def test_a_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    config = GraniteConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=0.01,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TrainingError, match="not supported"):
        Trainer(tmp_path, CONFIG)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_an_adapter_on_the_vocabulary_projection_is_refused(model_dir: Path) -> None:
    config = CONFIG.model_copy(update={"target_modules": ("q_proj", "lm_head")})
    with pytest.raises(AdapterError, match="vocabulary projection"):
        Trainer(model_dir, config)
