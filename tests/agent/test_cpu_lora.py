import importlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from agent import cpu_lora  # noqa: E402
from agent.cpu_lora import add_lora, check_signatures, expand, group_rows, shrink  # noqa: E402

NUM_SLOTS, RANK, WIDTH_IN, WIDTH_OUT = 3, 4, 6, 5


def random(*shape: int, seed: int = 0, dtype: "torch.dtype" = torch.float32) -> "torch.Tensor":
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def reference(y, x, a, b, slots, scale, add_inputs=True):
    """One row at a time, as the formula says: y[n] += scale * (B[slot] @ (A[slot] @ x[n]))."""
    result = y.clone()
    for row, slot in enumerate(slots):
        delta = torch.zeros_like(y[row])
        if slot >= 0:
            delta = scale * (b[slot, 0] @ (a[slot, 0] @ x[row]))
        result[row] = result[row] + delta if add_inputs else delta
    return result


def apply(y, x, a, b, slots, scale, add_inputs=True):
    groups = group_rows(torch.tensor(slots))
    hidden = torch.full((len(slots), RANK), 7.0)  # what was there before must not matter
    shrink(hidden, x, a, scale, groups)
    expand(y, hidden, b, groups, add_inputs=add_inputs)
    return y


def test_consecutive_rows_are_a_slice_and_scattered_ones_an_index():
    groups = group_rows(torch.tensor([1, 1, -1, 0, 2, 0]))
    assert [group.slot for group in groups] == [0, 1, 2]
    assert groups[0].rows.tolist() == [3, 5]
    assert groups[1].rows == slice(0, 2)
    assert groups[2].rows == slice(4, 5)


def test_no_adapter_no_groups():
    assert group_rows(torch.tensor([-1, -1])) == ()
    assert group_rows(torch.tensor([], dtype=torch.int64)) == ()


def test_a_hand_worked_row():
    # x = (1, 2), A = ((1, 1),), so hidden = 3; scale 2 makes 6; B = ((1,), (-1,)) makes (6, -6).
    x, a = torch.tensor([[1.0, 2.0]]), torch.tensor([[[[1.0, 1.0]]]])
    b, y = torch.tensor([[[[1.0], [-1.0]]]]), torch.tensor([[10.0, 20.0]])
    groups = group_rows(torch.tensor([0]))
    hidden = torch.empty(1, 1)
    shrink(hidden, x, a, 2.0, groups)
    expand(y, hidden, b, groups, add_inputs=True)
    assert y.tolist() == [[16.0, 14.0]]


@settings(deadline=None, max_examples=60)
@given(
    slots=st.lists(st.integers(-1, NUM_SLOTS - 1), min_size=1, max_size=12),
    scale=st.sampled_from([1.0, 0.5, 2.0]),
    add_inputs=st.booleans(),
)
def test_any_mixture_equals_the_row_by_row_reference(slots, scale, add_inputs):
    x, y = random(len(slots), WIDTH_IN, seed=1), random(len(slots), WIDTH_OUT, seed=2)
    a = random(NUM_SLOTS, 1, RANK, WIDTH_IN, seed=3)
    b = random(NUM_SLOTS, 1, WIDTH_OUT, RANK, seed=4)
    expected = reference(y, x, a, b, slots, scale, add_inputs)
    fused = y.clone()
    torch.testing.assert_close(apply(y, x, a, b, slots, scale, add_inputs), expected)
    if add_inputs:
        add_lora(fused, x, a, b, scale, group_rows(torch.tensor(slots)))
        torch.testing.assert_close(fused, expected)


@pytest.mark.parametrize("is_fused", [False, True])
def test_base_rows_keep_every_bit_when_all_slots_are_in_use(is_fused):
    slots = [0, -1, 2, 1, -1]
    x = random(5, WIDTH_IN, seed=1, dtype=torch.bfloat16)
    y = random(5, WIDTH_OUT, seed=2, dtype=torch.bfloat16)
    a = random(NUM_SLOTS, 1, RANK, WIDTH_IN, seed=3, dtype=torch.bfloat16)
    b = random(NUM_SLOTS, 1, WIDTH_OUT, RANK, seed=4, dtype=torch.bfloat16)
    before = y.clone()
    if is_fused:
        add_lora(y, x, a, b, 1.0, group_rows(torch.tensor(slots)))
    else:
        apply(y, x, a, b, slots, 1.0)
    assert torch.equal(y[[1, 4]], before[[1, 4]])
    assert not torch.equal(y[[0, 2, 3]], before[[0, 2, 3]])


def test_consecutive_and_scattered_rows_get_the_same_bits():
    x = random(3, WIDTH_IN, seed=1, dtype=torch.bfloat16).repeat(2, 1)
    y = random(3, WIDTH_OUT, seed=2, dtype=torch.bfloat16).repeat(2, 1)
    a = random(2, 1, RANK, WIDTH_IN, seed=3, dtype=torch.bfloat16)
    b = random(2, 1, WIDTH_OUT, RANK, seed=4, dtype=torch.bfloat16)
    mixed = y.clone()
    add_lora(y, x, a, b, 1.0, group_rows(torch.tensor([0, 0, 0, 0, 0, 0])))
    add_lora(mixed, x, a, b, 1.0, group_rows(torch.tensor([0, 1, 0, 1, 0, 1])))
    assert torch.equal(mixed[[0, 2, 4]], y[[0, 2, 4]])


@pytest.mark.parametrize("slots", [[0] * 4, [0, -1, 0, 0]])
def test_an_adapter_of_zeros_changes_no_bit(slots):
    x = random(4, WIDTH_IN, dtype=torch.bfloat16)
    y = random(4, WIDTH_OUT, seed=2, dtype=torch.bfloat16)
    a = random(1, 1, RANK, WIDTH_IN, dtype=torch.bfloat16)
    before = y.clone()
    b = torch.zeros(1, 1, WIDTH_OUT, RANK, dtype=torch.bfloat16)
    add_lora(y, x, a, b, 1.0, group_rows(torch.tensor(slots)))
    assert torch.equal(y, before)


def test_only_the_columns_that_both_have_are_computed():
    hidden, groups = random(2, RANK), group_rows(torch.tensor([0, 0]))
    narrow, wide = random(1, 1, 3, RANK, seed=1), torch.zeros(2, 5)
    expand(wide, hidden, narrow, groups, add_inputs=True)
    torch.testing.assert_close(wide[:, :3], hidden @ narrow[0, 0].T)
    assert torch.equal(wide[:, 3:], torch.zeros(2, 2))


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


def test_slices_of_a_fused_layer_go_to_their_own_columns(wrapper):
    sizes, slots = (5, 2), [0, -1, 1, 0]
    x, y = random(4, WIDTH_IN, seed=1), random(4, 8, seed=2)
    a = [random(2, 1, RANK, WIDTH_IN, seed=3 + part) for part in range(2)]
    b = [random(2, 1, size, RANK, seed=6 + part) for part, size in enumerate(sizes)]
    expected = y.clone()
    expected[:, :5] = reference(y[:, :5], x, a[0], b[0], slots, 1.0)
    expected[:, 5:7] = reference(y[:, 5:7], x, a[1], b[1], slots, 1.0)
    wrapper.add_lora_linear(y, x, a, b, 1.0, sizes)
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


def test_the_installed_vllm_has_the_known_operators():
    module = importlib.import_module("vllm.lora.punica_wrapper.punica_cpu")
    check_signatures(module.PunicaWrapperCPU)


def test_an_unknown_operator_is_refused_by_name():
    module = importlib.import_module("vllm.lora.punica_wrapper.punica_cpu")

    class Changed(module.PunicaWrapperCPU):
        def add_expand(self, y, x, something_new):
            raise NotImplementedError

    with pytest.raises(RuntimeError, match="add_expand"):
        check_signatures(Changed)


@pytest.fixture
def fake_vllm(monkeypatch):
    """Stand in for vLLM's modules, so that this process's real ones stay as they are."""

    class PunicaWrapperCPU(
        importlib.import_module("vllm.lora.punica_wrapper.punica_cpu").PunicaWrapperCPU
    ):
        pass

    platform = SimpleNamespace(is_cpu=lambda: True)
    modules = {
        "vllm.platforms": SimpleNamespace(current_platform=platform),
        "vllm.lora.punica_wrapper.punica_cpu": SimpleNamespace(PunicaWrapperCPU=PunicaWrapperCPU),
    }
    monkeypatch.setattr(cpu_lora, "importlib", SimpleNamespace(import_module=modules.__getitem__))
    return SimpleNamespace(
        platform=platform,
        target=modules["vllm.lora.punica_wrapper.punica_cpu"],
        original=PunicaWrapperCPU,
    )


def test_registering_twice_replaces_once(fake_vllm):
    cpu_lora.register()
    first = fake_vllm.target.PunicaWrapperCPU
    cpu_lora.register()
    assert first is not fake_vllm.original
    assert fake_vllm.target.PunicaWrapperCPU is first


def test_the_switch_leaves_vllm_as_it_is(fake_vllm, monkeypatch):
    monkeypatch.setenv("DENIZEN_CPU_LORA", "0")
    cpu_lora.register()
    assert fake_vllm.target.PunicaWrapperCPU is fake_vllm.original


def test_other_platforms_are_left_as_they_are(fake_vllm):
    fake_vllm.platform.is_cpu = lambda: False
    cpu_lora.register()
    assert fake_vllm.target.PunicaWrapperCPU is fake_vllm.original
