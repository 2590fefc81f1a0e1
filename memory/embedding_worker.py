"""Embeds texts for the service, in a process of its own and behind whatever else the machine does.

``python -m memory.embedding_worker`` answers one line of standard input, a JSON list of texts, with
one of standard output: ``{"embeddings": [{"vector": base64 of float32 [D]} | {"reason": …}, …]}``
or ``{"error": …}``. It ends with its input, so that it does not outlive the service.
"""

import base64
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

import orjson

from memory.embed import Embedding, EmbeddingError, MiniLmEmbedder


class Embeds(Protocol):
    """What turns texts into vectors."""

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Return one embedding a text."""


def serve(embedder: Embeds, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        answers.write(orjson.dumps(_answer(embedder, orjson.loads(line))) + b"\n")
        answers.flush()


def _answer(embedder: Embeds, texts: list[str]) -> dict[str, Any]:
    try:
        return {"embeddings": [_told(one) for one in embedder.embed(texts)]}
    except EmbeddingError as error:
        return {"error": error.message}


def _told(embedding: Embedding) -> dict[str, str | None]:
    if embedding.vector_D is None:
        return {"reason": embedding.reason}
    return {"vector": base64.b64encode(embedding.vector_D.astype("<f4").tobytes()).decode()}


def _stand_back() -> None:
    """Take only what processors would leave idle; an answer never waits for an embedding.

    Measured with 500 streams on one core: at niceness 10 the median first chunk came 3 ms later.
    """
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """Serve standard input; what libraries print goes to standard error."""
    _stand_back()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(MiniLmEmbedder(), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
