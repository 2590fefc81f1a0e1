"""Embeds texts for the service, in a process of its own and behind whatever else the machine does.

``python -m memory.embedding_worker [PARENT]`` answers one line of standard input, a JSON list of
texts, with one of standard output: ``{"embeddings": [{"vector": base64 of float32 [D]} |
{"reason": …}, …]}`` or ``{"error": …}``. It ends with its input and with the process that started
it, so that it does not outlive the service. Whether it waits for idle processors is for who starts
it to say.
"""

import base64
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

import orjson

from memory.embed import Embedding, EmbeddingError, MiniLmEmbedder

NICENESS = 10
"""With it, 16 texts take 2.4 s beside two busy loops on two cores (EPYC)."""
_PR_SET_PDEATHSIG = 1


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


def _end_with(parent: int) -> None:
    """Be killed when the thread of the parent that started this process ends; Linux only.

    The end of the input would do, but who computes does not read it.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before it was told
        sys.exit()


def main() -> None:
    """Serve standard input; what libraries print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the service
    if sys.argv[1:]:
        _end_with(int(sys.argv[1]))
    os.nice(NICENESS)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with suppress(BrokenPipeError):  # the service has ended
        serve(MiniLmEmbedder(), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
