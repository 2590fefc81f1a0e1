import pytest

from learner.fit import SLACK_BYTES, Fit, linear_shapes, names_of
from memory.errors import AdapterError
from tests.learner.adapters import FIT
from tests.tiny_model import save_tiny_model


def test_linear_shapes_of_a_real_model_are_those_torch_sees(tmp_path):
    shapes = linear_shapes(save_tiny_model(tmp_path))
    assert shapes["model.layers.1.mlp.down_proj"] == (32, 64)
    assert shapes["model.layers.0.self_attn.k_proj"] == (16, 32)
    assert "model.norm" not in shapes


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", {"smollm2-135m-instruct"}),
        ("/models/Tiny/", {"tiny"}),
        ("C:\\models\\Tiny", {"tiny"}),
        ("base", {"base"}),
        (
            "/c/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/93efa2f0",
            {"93efa2f0", "smollm2-135m"},
        ),
        ("/", {""}),
        ("snapshots/x", {"x", ""}),
    ],
)
def test_a_model_is_known_by_the_last_part_of_its_path_and_by_its_name_on_the_hub(model, names):
    assert names_of(model) == names


def test_a_linked_model_folder_is_known_by_both_names(tmp_path):
    save_tiny_model(tmp_path / "Real-Name")
    (tmp_path / "alias").symlink_to(tmp_path / "Real-Name")
    fit = Fit.of(tmp_path / "alias", base_digest="b", max_rank=16)
    assert fit.base_names == {"alias", "real-name"}
    assert fit.base_shapes["model.layers.0.mlp.up_proj"] == (64, 32)


def test_the_upload_limit_is_four_times_the_largest_adapter_in_float32():
    # two layers of q_proj (6, 4) and down_proj (4, 8): 2 * (10 + 12) = 44 numbers a rank
    assert FIT.max_upload_bytes - SLACK_BYTES == 4 * FIT.max_rank * 44 * 4


def test_a_rank_above_the_engines_is_refused_naming_both():
    FIT.check_rank(4)
    with pytest.raises(AdapterError, match=r"has rank 5, .* at most 4 \(engine\.max_lora_rank\)"):
        FIT.check_rank(5)
