"""The content blocks of a Messages request, and the chat messages that they stand for."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from memory.types import Message


class Source(BaseModel):
    """Where an image is."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["base64", "url"]
    media_type: str = ""
    data: str = ""
    url: str = ""

    @property
    def address(self) -> str:
        """The image as a URL."""
        return self.url if self.type == "url" else f"data:{self.media_type};base64,{self.data}"


class Text(BaseModel):
    """Something said."""

    model_config = ConfigDict(extra="ignore")

    text: str


class Image(BaseModel):
    """Something shown."""

    model_config = ConfigDict(extra="ignore")

    source: Source


class Thinking(BaseModel):
    """What the model thought before it spoke; nothing where the thoughts were redacted."""

    model_config = ConfigDict(extra="ignore")

    thinking: str = ""


class ToolUse(BaseModel):
    """A tool that the model called."""

    model_config = ConfigDict(extra="ignore")

    id: str
    name: str
    input: dict[str, Any]


def _as_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


Shown: TypeAlias = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Image, Tag("image")],
    Discriminator(
        _kind,
        custom_error_type="unknown_block",
        custom_error_message="only blocks of type text and image can stand here",
    ),
]


class ToolResult(BaseModel):
    """What a called tool gave; whether it failed must stand in the text, the model sees no more."""

    model_config = ConfigDict(extra="ignore")

    tool_use_id: str
    content: Annotated[list[Shown], BeforeValidator(_as_blocks)] = Field(default_factory=list)


Block: TypeAlias = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Image, Tag("image")]
    | Annotated[Thinking, Tag("thinking")]
    | Annotated[Thinking, Tag("redacted_thinking")]
    | Annotated[ToolUse, Tag("tool_use")]
    | Annotated[ToolResult, Tag("tool_result")],
    Discriminator(
        _kind,
        custom_error_type="unknown_block",
        custom_error_message=(
            "blocks are of type text, image, thinking, redacted_thinking, tool_use or tool_result"
        ),
    ),
]
Blocks: TypeAlias = Annotated[list[Block], BeforeValidator(_as_blocks)]
TextBlocks: TypeAlias = Annotated[list[Text], BeforeValidator(_as_blocks)]


class MessageParam(BaseModel):
    """One message of the history."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: Blocks

    def chat_messages(self) -> Iterator[Message]:
        """Yield the chat messages that this one stands for: results of tools are their own."""
        if self.role == "assistant":
            yield _answer(self.content)
            return
        shown: list[Text | Image] = []
        for block in self.content:
            if isinstance(block, ToolResult):
                content = _content(block.content)
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            elif isinstance(block, Text | Image):
                shown.append(block)
        if shown:
            yield {"role": self.role, "content": _content(shown)}


def system_text(blocks: Sequence[Text]) -> str:
    """Return the system prompt as one text."""
    return "\n".join(block.text for block in blocks)


def _answer(blocks: Sequence[Block]) -> Message:
    """Return an answer of the model as the one message that it was."""
    texts = (block.text for block in blocks if isinstance(block, Text))
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, Thinking))
    calls = [_call(block) for block in blocks if isinstance(block, ToolUse)]
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ToolUse) -> dict[str, Any]:
    # As most models write JSON, so that the prompt's tokens extend the earlier ones.
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _content(blocks: Sequence[Text | Image]) -> str | list[dict[str, Any]]:
    """Return a content as plain text where it is all text, joined as the engine joins it."""
    if any(isinstance(block, Image) for block in blocks):
        return [_part(block) for block in blocks]
    return "\n".join(block.text for block in blocks if isinstance(block, Text))


def _part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "image_url", "image_url": {"url": block.source.address}}
