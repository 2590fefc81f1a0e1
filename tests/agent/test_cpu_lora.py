import importlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from agent import cpu_lora  # noqa: E402
from agent.cpu_lora import check_signatures  # noqa: E402
from tests.agent.lora_layers import (  # noqa: E402
    RANK,
    WIDTH_IN,
    WIDTH_OUT,
    layer,
    packed,
    random,
    reference,
)


class Recorder:
    """Stands in for vLLM's wrapper: keeps the row indices of one step."""

    def update_metadata(self, token_slots, sampler_slots):
        self.token_lora_indices = torch.tensor(token_slots)
        self.sampler_indices = torch.tensor(sampler_slots)


@pytest.fixture
def wrapper():
    grouped = cpu_lora._grouped_wrapper(Recorder)()
    grouped.update_metadata([0, -1, 1, 0], [1, -1])
    return grouped


def test_a_fused_layer_gets_each_adapters_product_once(wrapper):
    slots = [0, -1, 1, 0]
    a, b = layer((5, 2), num_slots=2)
    x, y = random(4, WIDTH_IN, seed=1), random(4, 7, seed=2)
    parts = zip(y.split((5, 2), dim=1), a, b, strict=True)
    expected = torch.cat([reference(part, x, *w, slots, 0.5) for part, *w in parts], dim=1)
    wrapper.add_lora_linear(y, x, *packed(a, b), 0.5, (5, 2))
    torch.testing.assert_close(y, expected)


def test_logits_use_the_sampler_rows(wrapper):
    x, y = random(2, WIDTH_IN, seed=1), random(2, WIDTH_OUT, seed=2)
    a, b = random(2, 1, RANK, WIDTH_IN, seed=3), random(2, 1, WIDTH_OUT, RANK, seed=4)
    expected = reference(y, x, a, b, [1, -1], 0.5)
    wrapper.add_lora_logits(y, x, a, b, 0.5)
    torch.testing.assert_close(y, expected)


def test_shrink_then_expand_with_a_three_dimensional_buffer(wrapper):
    x, y = random(4, WIDTH_IN, seed=1), random(4, WIDTH_OUT, seed=2)
    a, b = [random(2, 1, RANK, WIDTH_IN, seed=3)], [random(2, 1, WIDTH_OUT, RANK, seed=4)]
    expected = reference(y, x, a[0], b[0], [0, -1, 1, 0], 1.0)
    buffers = torch.empty(1, 4, RANK)
    wrapper.add_shrink(buffers, x, a, 1.0)
    wrapper.add_expand(y, buffers, b, (WIDTH_OUT,))
    torch.testing.assert_close(y, expected)


def test_embeddings_get_their_expand(wrapper):
    hidden, y = random(4, RANK, seed=1), random(4, WIDTH_OUT, seed=2)
    b = random(2, 1, WIDTH_OUT, RANK, seed=4)
    before = y.clone()
    wrapper.add_lora_embedding(y, hidden, b)
    torch.testing.assert_close(y[0], before[0] + b[0, 0] @ hidden[0])
    assert torch.equal(y[1], before[1])


def test_an_unknown_operator_is_refused_by_name():
    module = importlib.import_module("vllm.lora.punica_wrapper.punica_cpu")
    check_signatures(module.PunicaWrapperCPU, cpu_lora._OPERATORS)  # as installed

    class Changed(module.PunicaWrapperCPU):
        def add_expand(self, y, x, something_new):
            raise NotImplementedError

    with pytest.raises(RuntimeError, match="add_expand"):
        check_signatures(Changed, cpu_lora._OPERATORS)


@pytest.fixture
def fake_vllm(monkeypatch):
    """Stand in for vLLM's modules, so that this process's real ones stay as they are."""

    class PunicaWrapperCPU(
        importlib.import_module("vllm.lora.punica_wrapper.punica_cpu").PunicaWrapperCPU
    ):
        pass

    class Layer:
        def create_lora_weights(self, max_loras, lora_config, model_config=None):
            self.lora_a_stacked, self.lora_b_stacked = layer((5, 2), num_slots=max_loras)

    class Merged(Layer):
        def create_lora_weights(self, max_loras, lora_config, model_config=None):
            self.lora_a_stacked, self.lora_b_stacked = layer((4, 3, 1), num_slots=max_loras)

    platform = SimpleNamespace(is_cpu=lambda: True)
    modules = {
        "vllm.lora.layers.base_linear": SimpleNamespace(BaseLinearLayerWithLoRA=Layer),
        "vllm.lora.layers.column_parallel_linear": SimpleNamespace(
            MergedColumnParallelLinearWithLoRA=Merged
        ),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
        "vllm.lora.punica_wrapper.punica_cpu": SimpleNamespace(PunicaWrapperCPU=PunicaWrapperCPU),
    }
    monkeypatch.setattr(cpu_lora, "importlib", SimpleNamespace(import_module=modules.__getitem__))
    return SimpleNamespace(
        platform=platform,
        target=modules["vllm.lora.punica_wrapper.punica_cpu"],
        original=PunicaWrapperCPU,
        layers=(Layer, Merged),
    )


def test_registering_twice_replaces_once(fake_vllm):
    cpu_lora.register()
    first = fake_vllm.target.PunicaWrapperCPU
    cpu_lora.register()
    assert first is not fake_vllm.original
    assert fake_vllm.target.PunicaWrapperCPU is first


def test_registering_has_the_layers_pack_their_weights_once(fake_vllm):
    cpu_lora.register()
    cpu_lora.register()
    for kind, num_slices in zip(fake_vllm.layers, (2, 3), strict=True):
        made = kind()
        made.create_lora_weights(2, None)
        assert len(made.lora_a_stacked) == len(made.lora_b_stacked) == num_slices
        assert made.lora_a_stacked.matrices[0].shape == (WIDTH_IN, num_slices * RANK)
        assert made.lora_b_stacked.matrices[1].shape[0] == num_slices * RANK


def test_a_layer_that_is_not_known_is_refused_by_name(fake_vllm):
    del fake_vllm.layers[0].create_lora_weights
    with pytest.raises(RuntimeError, match="create_lora_weights"):
        cpu_lora.register()
    assert fake_vllm.target.PunicaWrapperCPU is fake_vllm.original


def test_the_switch_leaves_vllm_as_it_is(fake_vllm, monkeypatch):
    monkeypatch.setenv("DENIZEN_CPU_LORA", "0")
    cpu_lora.register()
    assert fake_vllm.target.PunicaWrapperCPU is fake_vllm.original


def test_other_platforms_are_left_as_they_are(fake_vllm):
    fake_vllm.platform.is_cpu = lambda: False
    cpu_lora.register()
    assert fake_vllm.target.PunicaWrapperCPU is fake_vllm.original
