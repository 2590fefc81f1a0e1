"""Tool calls in a text, as vLLM's ``hermes`` parser finds them.

``<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>``, once or several times, after any
text. A stream is the difference of what is found before and after each chunk.
"""

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def extract(text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the text before the first call, and the calls of a whole answer.

    A call that is no JSON makes the whole answer plain text.
    """
    content, *regions = text.split(OPEN)
    try:
        found = [json.loads(region.partition(CLOSE)[0]) for region in regions]
        calls = [
            _call(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in found
        ]
    except (ValueError, KeyError, TypeError):
        return text, []
    return content or None, calls


@dataclass
class ToolCallStream:
    """Turns a text that grows into the deltas that vLLM sends."""

    text: str = ""
    sent_content: str = ""
    sent_arguments: list[str] = field(default_factory=list)  # one for each call with a name

    def delta(self, more: str) -> dict[str, Any]:
        """Return what to send for the next piece; empty when it shows nothing yet."""
        self.text += more
        content, *regions = _without_partial(self.text, OPEN).split(OPEN)
        delta: dict[str, Any] = {}
        if content != self.sent_content:
            delta["content"] = content.removeprefix(self.sent_content)
            self.sent_content = content
        fragments = [
            fragment
            for index, region in enumerate(regions)
            for fragment in self._fragments(index, region)
        ]
        return delta | ({"tool_calls": fragments} if fragments else {})

    def _fragments(self, index: int, region: str) -> list[dict[str, Any]]:
        name = NAME.search(region)
        if name is None:
            return []
        fragments: list[dict[str, Any]] = []
        if index == len(self.sent_arguments):
            self.sent_arguments.append("")
            call = _call(name[1], "")
            fragments.append({**call, "index": index, "function": {"name": name[1]}})
        arguments = _arguments(region)
        if more := arguments.removeprefix(self.sent_arguments[index]):
            self.sent_arguments[index] = arguments
            fragments.append({"index": index, "function": {"arguments": more}})
        return fragments


def _arguments(region: str) -> str:
    """Return as much of the arguments' text as is known."""
    body = _without_partial(region.partition(CLOSE)[0], CLOSE).strip()
    found = ARGUMENTS.search(body)
    if found is None:
        return ""
    text = body[found.end() :]
    return text.rstrip().removesuffix("}") if _is_json(body) else text


def _without_partial(text: str, tag: str) -> str:
    """Cut off what may be the beginning of a tag."""
    lengths = range(len(tag) - 1, 0, -1)
    return next((text[:-n] for n in lengths if text.endswith(tag[:n])), text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _call(name: str, arguments: str) -> dict[str, Any]:
    identity = f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}
