import hashlib
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.adapter_format import inspect
from memory.errors import AdapterError
from tests.learner.adapters import (
    BASE_SHAPES,
    adapter_config,
    adapter_tensors,
    write_adapter,
)

WEIGHTS = "adapter_model.safetensors"
FIRST_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
FIRST_B = FIRST_A.replace("lora_A", "lora_B")


def test_facts_are_read_from_the_files(tmp_path: Path) -> None:
    facts = inspect(write_adapter(tmp_path), base_shapes=BASE_SHAPES)
    content = (tmp_path / WEIGHTS).read_bytes()
    assert (facts.rank, facts.alpha) == (2, 4)
    assert facts.target_modules == ("down_proj", "q_proj")
    assert facts.sha256 == hashlib.sha256(content).hexdigest()
    assert facts.size_bytes == len(content)


def test_error_is_a_bad_request_naming_expected_and_found(tmp_path: Path) -> None:
    write_adapter(tmp_path, config=adapter_config(r=3))
    with pytest.raises(AdapterError, match=r"expected \[3, inputs\]") as caught:
        inspect(tmp_path)
    assert caught.value.status == 400
    assert "A (2, 8) and B (4, 2)" in caught.value.message


@pytest.mark.parametrize("name", ["adapter_model.bin", "x.pt", "readme.md", ".hidden", "sub"])
def test_any_other_file_is_refused_even_beside_a_good_adapter(tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path)
    (tmp_path / name).mkdir() if name == "sub" else (tmp_path / name).touch()
    with pytest.raises(AdapterError, match="expected the files"):
        inspect(tmp_path)


class Canary:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_pickle_is_never_loaded(tmp_path: Path) -> None:
    folder, canary = tmp_path / "adapter", tmp_path / "canary"
    folder.mkdir()
    write_adapter(folder)
    (folder / WEIGHTS).write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(AdapterError, match="broken or cut off"):
        inspect(folder)
    assert not canary.exists()


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json"])
def test_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(AdapterError, match="expected the files"):
        inspect(tmp_path)


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json"])
def test_symlink_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_adapter(folder)
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(AdapterError, match="expected plain files"):
        inspect(folder)


def test_symlinked_folder_and_missing_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_adapter(folder)
    (tmp_path / "link").symlink_to(folder)
    for name in ("link", "nowhere"):
        with pytest.raises(AdapterError, match="expected a folder"):
            inspect(tmp_path / name)


@pytest.mark.parametrize("num_bytes", [0, 4, 100, -1])
def test_truncated_weights_are_refused(tmp_path: Path, num_bytes: int) -> None:
    weights = write_adapter(tmp_path) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    with pytest.raises(AdapterError, match="broken or cut off"):
        inspect(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_non_finite_weights_are_refused(tmp_path: Path, value: float, dtype: type) -> None:
    tensors = adapter_tensors()
    tensors[FIRST_A] = tensors[FIRST_A].astype(dtype)
    tensors[FIRST_A][1, 1] = value
    write_adapter(tmp_path, tensors)
    with pytest.raises(AdapterError, match="not finite"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    ("number", "is_finite"), [(0x3F80, True), (0x7F7F, True), (0x7F80, False), (0xFFC0, False)]
)
def test_bfloat16_weights_are_checked_without_torch(
    tmp_path: Path, number: int, is_finite: bool
) -> None:
    """0x3F80 is 1, 0x7F7F the largest number, 0x7F80 infinity, 0xFFC0 a NaN."""
    weights = write_adapter(tmp_path) / WEIGHTS
    header, data, offset = {}, b"", 0
    for name, tensor in adapter_tensors().items():
        chunk = struct.pack("<H", number) * tensor.size
        header[name] = {
            "dtype": "BF16",
            "shape": tensor.shape,
            "data_offsets": [offset, offset + len(chunk)],
        }
        data, offset = data + chunk, offset + len(chunk)
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + data)
    if is_finite:
        assert inspect(tmp_path, base_shapes=BASE_SHAPES).rank == 2
    else:
        with pytest.raises(AdapterError, match="not finite"):
            inspect(tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = adapter_tensors()
    tensors[FIRST_A] = np.ones((2, 4), np.int8)
    with pytest.raises(AdapterError, match="type I8"):
        inspect(write_adapter(tmp_path, tensors))


def test_missing_half_of_a_layer_is_refused(tmp_path: Path) -> None:
    tensors = adapter_tensors()
    del tensors[FIRST_B]
    with pytest.raises(AdapterError, match=r"expected lora_A and lora_B of .* found only lora_A"):
        inspect(write_adapter(tmp_path, tensors))


def test_one_layer_missing_from_one_target_is_found_by_the_base(tmp_path: Path) -> None:
    tensors = adapter_tensors()
    del tensors[FIRST_A], tensors[FIRST_B]
    with pytest.raises(AdapterError, match=r"layers\.0\.self_attn\.q_proj is expected as \(6, 4\)"):
        inspect(write_adapter(tmp_path, tensors), base_shapes=BASE_SHAPES)


def test_layer_missing_from_every_target_is_found_by_the_base(tmp_path: Path) -> None:
    tensors = {n: t for n, t in adapter_tensors().items() if ".layers.1." not in n}
    write_adapter(tmp_path, tensors)
    assert inspect(tmp_path).rank == 2
    with pytest.raises(AdapterError, match="does not fit the base model"):
        inspect(tmp_path, base_shapes=BASE_SHAPES)


def test_adapter_of_a_wider_model_is_refused(tmp_path: Path) -> None:
    tensors = adapter_tensors()
    tensors[FIRST_A] = np.ones((2, 5), np.float32)
    write_adapter(tmp_path, tensors)
    with pytest.raises(AdapterError, match=r"expected as \(6, 4\).*found \(6, 5\)"):
        inspect(tmp_path, base_shapes=BASE_SHAPES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_modules": ["q_proj"]}, r"expected weights for \['q_proj'\]"),
        ({"target_modules": ["down_proj", "q_proj", "v_proj"]}, "expected weights for"),
        ({"target_modules": "all-linear"}, "as a list"),
        ({"target_modules": []}, "as a list"),
        ({"peft_type": "IA3"}, "LoRA adapter"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"use_dora": True}, "use_dora"),
        ({"use_rslora": True}, "use_rslora"),
        ({"auto_mapping": {"base_model_class": "Evil"}}, "auto_mapping"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"bias": "all"}, "bias"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow"),
        ({"exclude_modules": ["q_proj"]}, "exclude_modules"),
        ({"layers_to_transform": [0]}, "layers_to_transform"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed base weights"),
        ({"r": "2"}, "r as a number"),
        ({"r": True}, "r as a number"),
        ({"r": 0}, "whole number"),
        ({"lora_alpha": 2.5}, "whole number"),
        ({"lora_alpha": float("inf")}, "whole number"),
        ({"lora_alpha": float("nan")}, "whole number"),
        ({"lora_alpha": 10**400}, "whole number"),
    ],
)
def test_config_that_means_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_adapter(tmp_path, config=adapter_config(**changes))
    with pytest.raises(AdapterError, match=message):
        inspect(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{" * 100, b"[" * 100_000])
def test_config_that_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (write_adapter(tmp_path) / "adapter_config.json").write_bytes(content)
    with pytest.raises(AdapterError):
        inspect(tmp_path)


def test_huge_config_is_refused_unread(tmp_path: Path) -> None:
    (write_adapter(tmp_path) / "adapter_config.json").write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(AdapterError, match="at most"):
        inspect(tmp_path)


def test_foreign_tensor_name_is_refused(tmp_path: Path) -> None:
    tensors = adapter_tensors() | {"lm_head.weight": np.ones((2, 2), np.float32)}
    with pytest.raises(AdapterError, match=r"lm_head\.weight"):
        inspect(write_adapter(tmp_path, tensors))
