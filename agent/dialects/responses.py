"""OpenAI's Responses: items in, items out, and a conversation that goes on by the id of a response.

A request becomes one chat completion. Tools of types that only OpenAI can run are left out of it,
as clients offer them to every server.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agent.chat_request import (
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    Metadata,
    check_format,
    upstream_body,
)
from agent.dialects.dialect import Ask, FindCall, given, with_usage
from agent.dialects.response_items import Item, chat_messages
from agent.dialects.response_reply import ResponseReply
from agent.policy import CHAT_PATH
from memory.errors import DenizenError, InvalidRequestError, NotFoundError
from memory.types import Call, CallStatus, Message, message_text
from memory.wire import parse_body


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class Reasoning(BaseModel):
    """How much to think; what is said of summaries has no effect: there are none."""

    model_config = ConfigDict(extra="ignore")

    effort: str | None = None


class TextOptions(BaseModel):
    """The form of the text; ``verbosity`` has no effect."""

    model_config = ConfigDict(extra="ignore")

    format: dict[str, Any] | None = None


class ResponsesRequest(BaseModel):
    """OpenAI's parameters; those that can have no effect here say so."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=200)
    input: Annotated[
        list[Item], BeforeValidator(_as_items), Field(min_length=1, max_length=MAX_MESSAGES)
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    text: TextOptions | None = None
    reasoning: Reasoning | None = None  # ``effort`` goes to the engine as ``reasoning_effort``
    tools: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    user: str | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None  # there is none
    store: bool | None = None  # no effect: whether to keep is said by header
    service_tier: str | None = None  # no effect, as the rest
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    client_metadata: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools that the model can be offered."""
        return [tool for tool in self.tools or () if tool.get("type") == "function"]

    def chat(self, earlier: list[Message]) -> dict[str, Any]:
        """Return the chat completion that this stands for, after an earlier conversation."""
        opening = [] if self.instructions is None else [_system(self.instructions)]
        return given(
            model=self.model,
            messages=[*opening, *earlier, *chat_messages(self.input)],
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=_response_format(self.text),
            reasoning_effort=self.reasoning and self.reasoning.effort,
            stream=self.stream,
            **self._tool_fields(),
        )

    def _tool_fields(self) -> dict[str, Any]:
        choice = _tool_choice(self.tool_choice)
        if self.functions:
            tools = [_chat_tool(tool) for tool in self.functions]
            parallel = self.parallel_tool_calls
            return given(tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
        if choice in {None, "auto", "none"}:
            return {}
        raise InvalidRequestError("there is no function tool to choose", param="tool_choice")

    def echo(self) -> dict[str, Any]:
        """Return the parameters that every response object repeats."""
        return {
            "model": self.model,
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "metadata": self.metadata or {},
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_output_tokens": self.max_output_tokens,
            "tools": self.functions,
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": {"format": (self.text and self.text.format) or {"type": "text"}},
            "reasoning": {"effort": self.reasoning and self.reasoning.effort, "summary": None},
            "store": self.store is not False,
            "truncation": "disabled",
            "background": False,
            "user": self.user,
        }


class Responses:
    """``POST /v1/responses``."""

    def read(self, body: dict[str, Any], find_call: FindCall) -> Ask:
        """Read a request."""
        asked = parse_body(ResponsesRequest, body)
        before = _call_before(asked.previous_response_id, find_call)
        chat = asked.chat([] if before is None else _conversation(before))
        check_format(chat, param="text.format")
        said = given(
            instructions=asked.instructions, previous_response_id=asked.previous_response_id
        )
        return Ask(
            model=asked.model,
            path=CHAT_PATH,
            body=upstream_body(with_usage(_with_one_system(chat))),
            messages=chat["messages"],
            record={"dialect": "responses"} | chat | said,
            stream=bool(asked.stream),
            reply=lambda capture: ResponseReply(capture, asked.echo()),
            metadata=parse_body(Metadata, asked.metadata or {}),
            user=asked.user,
            continues=before,
        )

    def error(self, error: DenizenError) -> dict[str, Any]:
        """Return OpenAI's error body."""
        return error.body()


def _call_before(response_id: str | None, find_call: FindCall) -> Call | None:
    """Return the call that is continued.

    Raises:
        InvalidRequestError: it is not in the record, or cannot be continued.
    """
    if response_id is None:
        return None
    try:
        call = find_call(response_id)
    except NotFoundError as error:
        raise InvalidRequestError(
            f"there is no record of a response {response_id!r}: it never was, it was erased, or it"
            " was asked for with x-denizen-record: off; send the conversation as input instead",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from error
    if call.status is not CallStatus.OK or call.message is None or not call.request.get("messages"):
        raise InvalidRequestError(
            f"{response_id!r} cannot be continued: it is no complete answer of a conversation",
            param="previous_response_id",
        )
    return call


def _conversation(call: Call) -> list[Message]:
    """Return a call's messages and its answer; its instructions are not carried over."""
    messages = call.request["messages"]
    assert call.message is not None
    return [*messages[1 if call.request.get("instructions") is not None else 0 :], call.message]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _with_one_system(chat: dict[str, Any]) -> dict[str, Any]:
    """Join instructions and developer messages at the head: many templates take one system."""
    messages = chat["messages"]
    others = (i for i, m in enumerate(messages) if m["role"] not in {"system", "developer"})
    end = next(others, len(messages))
    if end < 2:
        return chat
    text = "\n\n".join(message_text(message) for message in messages[:end])
    return chat | {"messages": [_system(text), *messages[end:]]}


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": given(**{name: tool.get(name) for name in names})}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise InvalidRequestError(
        "tool_choice is auto, none, required or one function", param="tool_choice"
    )


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    form = text.format if text else None
    if form is None or form.get("type") == "text":
        return None
    if form.get("type") != "json_schema":
        return form
    schema = given(**{name: form.get(name) for name in ("name", "description", "schema", "strict")})
    return {"type": "json_schema", "json_schema": schema}
