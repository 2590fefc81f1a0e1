"""One choice of an answer: words, ids, log-probabilities, and how vLLM writes them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.fake_engine.tokens import EOS, logprob, pieces
from tests.fake_engine.tool_calls import ToolCallStream, extract


class Choice:
    """One choice of one answer.

    Args:
        body: the request.
        index: its place among the answer's choices.
        text: what is said.
        token_ids: of the text, without the end-of-sequence token.
        weights: the name of what computes it; log-probabilities depend on it.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        index: int,
        text: str,
        token_ids: Sequence[int],
        weights: str,
    ) -> None:
        self.index = index
        self.pieces = [*pieces(text), ""]  # the last is the end-of-sequence token's text
        self.token_ids = [*token_ids, EOS]
        self.finish_reason = "stop"
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is not None and limit < len(self.token_ids):
            self.pieces, self.token_ids = self.pieces[:limit], self.token_ids[:limit]
            self.finish_reason = "length"
        self.with_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
        self.with_ids = bool(body.get("return_token_ids"))
        self.with_logprobs = bool(body.get("logprobs"))
        self.logprobs = [
            logprob(weights, place, token) for place, token in enumerate(self.token_ids)
        ]

    def complete(self) -> dict[str, Any]:
        """Return the choice of an answer that is not streamed."""
        unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.pieces), **unused}
        finish_reason = self.finish_reason
        if self.with_tools:
            message["content"], calls = extract("".join(self.pieces))
            if calls:
                message["tool_calls"] = calls
                finish_reason = "tool_calls"
        return {
            "index": self.index,
            "message": message,
            "logprobs": self._logprobs(0, len(self.token_ids)),
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": self.token_ids if self.with_ids else None,
            "routed_experts": None,
        }

    def first_chunk(self, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """Return the chunk that opens a stream."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {
            "choices": [choice],
            "prompt_token_ids": prompt_ids if self.with_ids else None,
            "prompt_text": None,
        }

    def chunks(self, size: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield, for every ``size`` tokens, their number and the chunk that tells of them.

        Tokens inside a tool call's markup have no chunk, unless ids or log-probabilities are asked
        for: then it has an empty delta.
        """
        parser = ToolCallStream()
        for start in range(0, len(self.token_ids), size):
            end = min(start + size, len(self.token_ids))
            text = "".join(self.pieces[start:end])
            delta = parser.delta(text) if self.with_tools else {"content": text}
            is_last = end == len(self.token_ids)
            if not (delta or is_last or self.with_ids or self.with_logprobs):
                yield end - start, None
                continue
            choice: dict[str, Any] = {
                "index": self.index,
                "delta": delta,
                "logprobs": self._logprobs(start, end),
                "finish_reason": None,
            }
            if is_last:
                is_call = bool(parser.sent_arguments) and self.finish_reason == "stop"
                reason = "tool_calls" if is_call else self.finish_reason
                choice |= {"finish_reason": reason, "stop_reason": None}
            choice["token_ids"] = self.token_ids[start:end] if self.with_ids else None
            yield end - start, {"choices": [choice]}

    def _logprobs(self, start: int, end: int) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        entries = []
        for place in range(start, end):
            token = self.pieces[place] or "<|im_end|>"
            entry = {"token": token, "logprob": self.logprobs[place], "bytes": list(token.encode())}
            entries.append({**entry, "top_logprobs": []})
        return {"content": entries}
