import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from agent.grouped_lora import add_lora, expand, group_rows, shrink  # noqa: E402
from tests.agent.lora_layers import (  # noqa: E402
    NUM_SLOTS,
    RANK,
    WIDTH_IN,
    WIDTH_OUT,
    layer,
    packed,
    random,
    reference,
)


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


def test_one_adapter_for_every_row_needs_no_row_numbers():
    (group,) = group_rows(torch.tensor([1, 1]))
    assert (group.slot, group.rows) == (1, None)


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
    torch.testing.assert_close(apply(y, x, a, b, slots, scale, add_inputs), expected)


def test_what_vllm_writes_through_the_views_is_what_it_reads_there():
    a, b = layer((5, 2, 3))
    for views, parts in zip(packed(a, b), (a, b), strict=True):
        assert [view.shape for view in views] == [part.shape for part in parts]
        assert all(torch.equal(*pair) for pair in zip(views, parts, strict=True))


def test_a_slot_that_is_reset_is_zero_in_the_matrices_too():
    packed_a, packed_b = packed(*layer((5, 2)))
    for views in (packed_a, packed_b):
        for view in views:
            view[1] = 0
        assert not views.matrices[1].any()
        assert views.matrices[0].any()


def test_a_slice_reads_no_other_slices_product():
    _, packed_b = packed(*layer((5, 2)))
    assert not packed_b.matrices[0][:RANK, 5:].any()
    assert not packed_b.matrices[0][RANK:, :5].any()


@settings(deadline=None, max_examples=60)
@given(
    slots=st.lists(st.integers(-1, NUM_SLOTS - 1), min_size=1, max_size=12),
    scale=st.sampled_from([1.0, 0.5]),
    sizes=st.sampled_from([(5,), (5, 2), (4, 3, 1)]),
)
def test_a_fused_layer_equals_its_slices_one_by_one(slots, scale, sizes):
    a, b = layer(sizes)
    x, y = random(len(slots), WIDTH_IN, seed=1), random(len(slots), sum(sizes), seed=2)
    parts = zip(y.split(sizes, dim=1), a, b, strict=True)
    expected = torch.cat([reference(part, x, *w, slots, scale) for part, *w in parts], dim=1)
    add_linear(y, x, *packed(a, b), slots, scale)
    torch.testing.assert_close(y, expected)


def add_linear(y, x, a, b, slots, scale=1.0):
    for group in group_rows(torch.tensor(slots)):
        add_lora(y, x, a.matrices[group.slot] * scale, b.matrices[group.slot], group)


def test_base_rows_keep_every_bit_when_all_slots_are_in_use():
    a, b = packed(*layer((WIDTH_OUT,), dtype=torch.bfloat16))
    x = random(5, WIDTH_IN, seed=1, dtype=torch.bfloat16)
    y = random(5, WIDTH_OUT, seed=2, dtype=torch.bfloat16)
    before = y.clone()
    add_linear(y, x, a, b, [0, -1, 2, 1, -1])
    assert torch.equal(y[[1, 4]], before[[1, 4]])
    assert not torch.equal(y[[0, 2, 3]], before[[0, 2, 3]])


@pytest.mark.parametrize("slots", [[0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1], [0, -1, 0, 2, 0, -1]])
def test_all_consecutive_and_scattered_rows_get_the_same_bits(slots):
    a, b = packed(*layer((WIDTH_OUT,), dtype=torch.bfloat16))
    x = random(6, WIDTH_IN, seed=1, dtype=torch.bfloat16)
    y = random(6, WIDTH_OUT, seed=2, dtype=torch.bfloat16)
    mixed = y.clone()
    add_linear(y, x, a, b, [0] * 6)
    add_linear(mixed, x, a, b, slots)
    rows = [row for row, slot in enumerate(slots) if slot == 0]
    assert torch.equal(mixed[rows], y[rows])


@pytest.mark.parametrize("slots", [[0] * 4, [0, -1, 0, 0]])
def test_an_adapter_of_zeros_changes_no_bit(slots):
    a, b = layer((WIDTH_OUT,), num_slots=1, dtype=torch.bfloat16)
    x = random(4, WIDTH_IN, dtype=torch.bfloat16)
    y = random(4, WIDTH_OUT, seed=2, dtype=torch.bfloat16)
    before = y.clone()
    add_linear(y, x, *packed(a, [torch.zeros_like(b[0])]), slots)
    assert torch.equal(y, before)


def test_only_the_columns_that_both_have_are_computed():
    hidden, groups = random(2, RANK), group_rows(torch.tensor([0, 0]))
    narrow, wide = random(1, 1, 3, RANK, seed=1), torch.zeros(2, 5)
    expand(wide, hidden, narrow, groups, add_inputs=True)
    torch.testing.assert_close(wide[:, :3], hidden @ narrow[0, 0].T)
    assert torch.equal(wide[:, 3:], torch.zeros(2, 2))
