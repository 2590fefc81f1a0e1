"""The service's handle on the process that embeds.

torch stays out of the process that answers: it would take its memory and its interpreter lock, and
seconds of its start. It does not know which model embeds.
"""

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from memory.embed import Embedding, EmbeddingError, MiniLmEmbedder, readable

_ROOT = Path(__file__).resolve().parents[1]


class EmbeddingProcess:
    """Embeds texts in a child process, which is started at first use and again after it died.

    Safe to call from several threads; they take turns.

    Example:
        ``with closing(EmbeddingProcess()) as embedder: [one] = embedder.embed(["What is 3 * 4?"])``
    """

    id = MiniLmEmbedder.id
    dimension = MiniLmEmbedder.dimension

    def __init__(self, module: str = "memory.embedding_worker") -> None:
        """Describe the process.

        Args:
            module: the program, which speaks the worker's protocol.
        """
        self._command = [sys.executable, "-m", module]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Embed each text.

        Returns:
            One embedding a text, in order: a float32 [D] vector of length 1, or None with the
            reason.

        Raises:
            EmbeddingError: the model is not installed, the process died twice at these texts, or it
                was closed.
        """
        request = orjson.dumps([readable(text) for text in texts]) + b"\n"
        with self._lock:
            line = self._ask(request) or self._ask(request)
        if not line:
            raise EmbeddingError(
                "the process that embeds texts died, and died again when restarted"
            )
        answer: dict[str, Any] = orjson.loads(line)
        if "error" in answer:
            raise EmbeddingError(answer["error"])
        return [_embedding(one) for one in answer["embeddings"]]

    def close(self) -> None:
        """End the process for good; whoever waits for it gets an error."""
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
        with self._lock:
            self._discard()

    def _ask(self, request: bytes) -> bytes | None:
        """Send one request; None when the process died of it."""
        process = self._process = self._process or self._start()
        if self._is_closed:
            self._discard()
            raise EmbeddingError("the process that embeds texts was closed")
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.flush()
        line = process.stdout.readline()
        if line.endswith(b"\n"):
            return line
        self._discard()
        return None

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> "subprocess.Popen[bytes]":
        search_path = [str(_ROOT), os.environ.get("PYTHONPATH")]
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in search_path if path)},
        )


def _embedding(told: dict[str, Any]) -> Embedding:
    if "vector" not in told:
        return Embedding(vector_D=None, reason=told["reason"])
    vector_D = np.frombuffer(base64.b64decode(told["vector"]), dtype="<f4").astype(np.float32)
    return Embedding(vector_D=vector_D)
