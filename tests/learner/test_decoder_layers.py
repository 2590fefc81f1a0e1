from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from learner import decoder_layers
from learner.forest_layout import layout
from learner.forests import plant
from learner.lora_model import load_model
from learner.trainer_config import TrainerConfig

CONFIG = TrainerConfig(rank=4, alpha=8, dtype="float32", gradient_checkpointing=False)
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, Any] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "Mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "Qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
ROWS = [[*range(1, 21), 30, 31, 32], [*range(1, 21), 40, 41], [50, 51, 52]]


def saved(folder: Path, family: str) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = FAMILIES[family]()
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
        model.save_pretrained(folder)
    return folder


def adapted(folder: Path, config: TrainerConfig = CONFIG) -> Any:
    """Return the model with an adapter that changes much."""
    model = load_model(folder, config)
    generator = torch.Generator().manual_seed(2)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data = torch.randn(parameter.shape, generator=generator) / 4
    return model


def hidden(model: Any) -> Tensor:
    forest = plant(ROWS)
    out: Tensor = (
        model.get_base_model()
        .model(
            input_ids=torch.tensor([forest.token_ids]),
            position_ids=torch.tensor([forest.positions]),
            use_cache=False,
            forest=layout(forest.segments, torch.device("cpu")),
        )
        .last_hidden_state
    )
    return out


def gradients(model: Any, out: Tensor) -> dict[str, Tensor]:
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad((out * weights).sum(), list(trained.values()))
    return dict(zip(trained, grads, strict=True))


def kinds(model: Any) -> set[str]:
    return {type(m).__name__ for m in model.modules() if "forward" in vars(m)}


@pytest.mark.parametrize("family", FAMILIES)
def test_block_computes_what_transformers_does(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path, family)
    mine = adapted(folder)
    assert f"{family}DecoderLayer" in kinds(mine)
    monkeypatch.setattr(decoder_layers, "_BLOCKS", set())
    theirs = adapted(folder)
    assert f"{family}DecoderLayer" not in kinds(theirs)
    found, expected = hidden(mine), hidden(theirs)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    others = gradients(theirs, expected)
    for name, grad in gradients(mine, found).items():
        assert (grad - others[name]).norm() < 1e-5 * others[name].norm(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_block_without_its_adapter_is_the_bases(family: str, tmp_path: Path) -> None:
    model = adapted(saved(tmp_path, family))
    forest = plant([ROWS[0]])
    with torch.no_grad(), model.disable_adapter():
        found = (
            model.get_base_model()
            .model(
                input_ids=torch.tensor([ROWS[0]]),
                position_ids=torch.tensor([forest.positions]),
                use_cache=False,
                forest=layout(forest.segments, torch.device("cpu")),
            )
            .last_hidden_state
        )
    base = type(FAMILIES[family]()).from_pretrained(tmp_path)
    with torch.no_grad():
        expected = base.model(input_ids=torch.tensor([ROWS[0]])).last_hidden_state
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_block_with_few_layers_adapted_is_left_to_transformers(tmp_path: Path) -> None:
    few = CONFIG.model_copy(update={"target_modules": ("q_proj", "v_proj")})
    model = adapted(saved(tmp_path, "Llama"), few)
    assert kinds(model) == {"Linear", "LlamaRMSNorm"}
    assert all(grad.any() for grad in gradients(model, hidden(model)).values())


def kept_floats(model: Any) -> int:
    """Count what waits for the backward pass, whatever it is seen through, once."""
    of_model = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in of_model:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden(model)
    return sum(kept.values())


def test_block_keeps_what_it_reads_and_what_its_products_gave(tmp_path: Path) -> None:
    folder = saved(tmp_path, "Llama")
    tokens = len(plant(ROWS).token_ids)
    # Hidden states read twice; queries, keys, values, what was attended; gate and up; ranks.
    a_token = 2 * 32 + (32 + 16 + 16 + 32) + 2 * 48 + 7 * 4
    a_token += 2 + 4  # of norms and heads: one number each
    # Beside both blocks, the last norm, and cos and sin as they are and scaled for queries.
    assert kept_floats(adapted(folder)) <= tokens * (2 * a_token + 33 + 2 * 2 * 2 * 8)
