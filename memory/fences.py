"""Text that must stay data: control tokens made harmless, and a fence around what is quoted.

A chat template puts messages between control tokens (``<|im_end|>``), and vLLM's tokenizer reads
such a literal inside a message as the token itself: whoever writes it can end a turn and begin one
of another role. Knows nothing of requests or of where texts come from.
"""

import re
import secrets
from collections.abc import Iterable, Sequence

from memory.types import Message, message_text

TURN_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|start|>",
    "<|end|>",
    "<|channel|>",
    "<|message|>",
    "<|return|>",
    "<|call|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
"""What begins and ends turns in the templates of ChatML, Llama 3, Mistral, Gemma, Phi, GPT-OSS, GLM
and DeepSeek."""
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""What a model writes inside its own turn; harmless in a user's, but not in a recalled answer."""
TOKEN_FORM = re.compile(r"<\|[^|<>\s]{1,64}\|>|<｜[^｜<>\s]{1,64}｜>")
_FENCE_FORM = re.compile(r"<{3,}|>{3,}")
UNTRUSTED_ROLES = frozenset({"user", "tool", "function"})
"""Whose words come from outside. A developer may well write ``<tool_call>`` into a system prompt,
and an assistant's message is the model's own."""


class ControlTokens:
    """The literals that a tokenizer would read as control tokens.

    Args:
        special: the tokenizer's own list, where it is known. Of it, what has a delimiter's form
            counts: a literal like ``<filename>`` is in some lists and in many users' texts.
    """

    def __init__(self, special: Iterable[str] = ()) -> None:
        turns = {*TURN_TOKENS, *(one for one in special if TOKEN_FORM.fullmatch(one))}
        self._turns = _any_of(turns)
        self._all = _any_of(turns | set(MARKUP_TOKENS))

    def neutralise(self, text: str) -> str:
        """Break every control token and piece of markup: ``<|im_end|>`` becomes ``< |im_end|>``.

        What remains reads the same and holds none.
        """
        return self._all.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def occur_in(self, text: str) -> bool:
        """Say whether a text holds what would end or begin a turn."""
        return ("<" in text or "[" in text) and self._turns.search(text) is not None

    def forged_in(self, messages: Iterable[Message]) -> bool:
        """Say whether a message from outside holds what would end or begin a turn."""
        return any(
            self._turns.search(message_text(message))
            for message in messages
            if message.get("role") in UNTRUSTED_ROLES
        )

    def neutralised(self, messages: Sequence[Message]) -> list[Message]:
        """Return as many messages, with the turn tokens broken in those from outside."""
        return [
            message | {"content": self._broken(message.get("content"))}
            if message.get("role") in UNTRUSTED_ROLES and message.get("content")
            else message
            for message in messages
        ]

    def _broken(self, content: object) -> object:
        if isinstance(content, str):
            return self._turns.sub(lambda match: f"{match[0][0]} {match[0][1:]}", content)
        if isinstance(content, list):
            return [
                part | {"text": self._broken(part["text"])}
                if isinstance(part, dict) and isinstance(part.get("text"), str)
                else part
                for part in content
            ]
        return content


def fenced(text: str, *, says: str) -> str:
    """Put a text between two lines that it cannot contain, below a line that says what it is.

    The fence is drawn anew each time, so that no text can close it; what only looks like a fence,
    which a careless reader may take for one, is broken by a space.
    """
    fence = f"data-{secrets.token_hex(8)}"
    text = _FENCE_FORM.sub(lambda match: " ".join(match[0]), text)
    return f"{says}\n<<<{fence}\n{text}\n{fence}>>>"


def _any_of(literals: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(one) for one in sorted(literals, key=len, reverse=True)))
