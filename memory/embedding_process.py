"""The service's handle on the process that embeds.

torch stays out of the process that answers: it would take its memory and its interpreter lock, and
seconds of its start. It does not know which model embeds.
"""

import base64
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from memory.embed import Embedding, EmbeddingError, MiniLmEmbedder, readable
from memory.embedding_child import EmbeddingChild, StarvedError

_ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 120.0
"""For one answer. On processors that are never idle, 16 texts take seconds."""
LOAD_DEADLINE_S = 300.0
"""For a child's first answer, before which it loads the model."""

END_S = 5.0
"""For a child that was killed: without a processor it stays a little longer."""


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
        self._command = [sys.executable, "-m", module, str(os.getpid())]
        self._process: EmbeddingChild | None = None
        self._stands_back = True
        self._is_closed = False
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Embed each text.

        Returns:
            One embedding a text, in order: a float32 [D] vector of length 1, or None with the
            reason.

        Raises:
            EmbeddingError: the model is not installed, the process died twice at these texts, gave
                no answer in time, or was closed.
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
        process = self._process  # whoever waits for it may let go of it at any moment
        if process is not None:
            process.kill()
        with self._lock:
            self._discard()
        if process is not None:
            process.wait(END_S)

    def _ask(self, request: bytes) -> bytes | None:
        """Send one request; None when the process died of it, or was ended for want of a processor.

        Raises:
            EmbeddingError: there is no answer in time, or the process was closed.
        """
        process = self._process = self._process or self._start()
        if self._is_closed:
            self._discard()
            raise EmbeddingError("the process that embeds texts was closed")
        timeout_s = DEADLINE_S if process.has_answered else LOAD_DEADLINE_S
        try:
            line = process.ask(request, timeout_s=timeout_s)
        except TimeoutError as error:
            self._discard()
            raise EmbeddingError(f"the process that embeds texts was ended: {error}") from error
        except StarvedError:
            self._stands_back, line = False, None
        if line is None:
            self._discard()
        return line

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.discard()

    def _start(self) -> EmbeddingChild:
        search_path = [str(_ROOT), os.environ.get("PYTHONPATH")]
        given = {"PYTHONPATH": os.pathsep.join(path for path in search_path if path)}
        return EmbeddingChild(self._command, env=os.environ | given, stands_back=self._stands_back)


def _embedding(told: dict[str, Any]) -> Embedding:
    if "vector" not in told:
        return Embedding(vector_D=None, reason=told["reason"])
    vector_D = np.frombuffer(base64.b64decode(told["vector"]), dtype="<f4").astype(np.float32)
    return Embedding(vector_D=vector_D)
