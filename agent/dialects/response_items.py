"""The items of a Responses request, and the chat messages that they stand for.

One answer of the model is one chat message but several items (reasoning, message, function calls);
here they become one message again, so that the prompt's tokens extend the earlier ones exactly.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag

from memory.types import Message


class Part(BaseModel):
    """A part of a message's content, or of a function's output."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_text", "output_text", "text", "refusal", "input_image"]
    text: str = ""
    refusal: str = ""
    image_url: str | None = None

    def chat_part(self) -> dict[str, Any]:
        """Return the part as a chat message holds it."""
        if self.type == "input_image":
            return {"type": "image_url", "image_url": {"url": self.image_url}}
        return {"type": "text", "text": self.text or self.refusal}


def _as_parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Content: TypeAlias = Annotated[list[Part], BeforeValidator(_as_parts)]


class MessageItem(BaseModel):
    """What somebody said."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(BaseModel):
    """A function that the model called."""

    model_config = ConfigDict(extra="ignore")

    call_id: str
    name: str
    arguments: str


class OutputItem(BaseModel):
    """What a called function gave."""

    model_config = ConfigDict(extra="ignore")

    call_id: str
    output: Content


class ReasoningPart(BaseModel):
    """A part of what the model thought."""

    model_config = ConfigDict(extra="ignore")

    text: str = ""


class ReasoningItem(BaseModel):
    """What the model thought before it spoke; encrypted thoughts and summaries are left out."""

    model_config = ConfigDict(extra="ignore")

    content: list[ReasoningPart] | None = None

    @property
    def text(self) -> str:
        """The thoughts in plain text."""
        return "".join(part.text for part in self.content or ())


def _kind(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else None


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message=(
            "items are of type message, function_call, function_call_output or reasoning"
        ),
    ),
]


def chat_messages(items: Sequence[Item]) -> list[Message]:
    """Return the conversation that the items stand for."""
    messages: list[Message] = []
    answer: Message | None = None  # the model's newest message, while items may still belong to it
    for item in items:
        if isinstance(item, OutputItem):
            content = _content(item.output)
            answer = None
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            answer = None
            messages.append({"role": item.role, "content": _content(item.content)})
        elif not (isinstance(item, ReasoningItem) and not item.text):
            if answer is None or _begins_another(answer, item):
                answer = {"role": "assistant", "content": ""}
                messages.append(answer)
            _add(answer, item)
    return messages


def _begins_another(answer: Message, item: MessageItem | CallItem | ReasoningItem) -> bool:
    """Say whether an item is no part of the answer before it: thoughts, text, then calls."""
    if isinstance(item, ReasoningItem):
        return bool(answer["content"]) or "tool_calls" in answer
    return isinstance(item, MessageItem) and bool(answer["content"]) and "tool_calls" not in answer


def _add(answer: Message, item: MessageItem | CallItem | ReasoningItem) -> None:
    if isinstance(item, ReasoningItem):
        answer["reasoning"] = answer.get("reasoning", "") + item.text
    elif isinstance(item, MessageItem):
        answer["content"] += "".join(part.text or part.refusal for part in item.content)
    else:
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        answer.setdefault("tool_calls", []).append(call)


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return a content as plain text where it is all text, joined as the engine joins it."""
    if any(part.type == "input_image" for part in parts):
        return [part.chat_part() for part in parts]
    return "\n".join(part.text or part.refusal for part in parts)
