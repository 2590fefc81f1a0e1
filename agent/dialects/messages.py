"""Anthropic's Messages: content blocks in, content blocks out.

A request becomes one chat completion. Tools without a schema, which only Anthropic can run, are
left out of it.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.chat_request import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOKENS,
    MAX_TOOLS,
    Metadata,
    check_format,
    upstream_body,
)
from agent.dialects.dialect import Ask, FindCall, given, with_usage
from agent.dialects.errors import anthropic_body
from agent.dialects.message_blocks import MessageParam, TextBlocks, system_text
from agent.dialects.message_reply import MessageReply
from agent.policy import CHAT_PATH
from memory.errors import DenizenError, InvalidRequestError
from memory.wire import parse_body

TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ToolChoice(BaseModel):
    """Whether the model may, must or must not call tools."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(BaseModel):
    """Whether to think; how much is not said to the engine, so ``budget_tokens`` has no effect."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["enabled", "disabled", "adaptive"]


class Caller(Metadata):
    """Anthropic's one key, and those of this service."""

    user_id: str | None = None


class OutputConfig(BaseModel):
    """The form of the answer, and how much to think over it."""

    model_config = ConfigDict(extra="ignore")

    effort: str | None = None
    format: dict[str, Any] | None = None


class Counted(BaseModel):
    """What takes up room in the prompt."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=200)
    messages: list[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: TextBlocks | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None  # no effect: nothing is cleared here
    cache_control: dict[str, Any] | None = None  # no effect: the engine caches by itself

    def chat_messages(self) -> list[dict[str, Any]]:
        """Return the conversation as chat messages."""
        system = [{"role": "system", "content": system_text(self.system)}] if self.system else []
        return [*system, *(chat for said in self.messages for chat in said.chat_messages())]

    def chat_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the model can be offered, as chat functions."""
        return [_chat_tool(tool) for tool in self.tools or () if "input_schema" in tool]


class MessagesRequest(Counted):
    """Anthropic's parameters, and what vLLM adds."""

    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    metadata: Caller | None = None
    stop_sequences: list[str] | None = Field(None, max_length=MAX_STOPS)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    service_tier: str | None = None  # no effect

    def chat(self) -> dict[str, Any]:
        """Return the chat completion that this stands for."""
        output = self.output_config or OutputConfig()
        return given(
            model=self.model,
            messages=self.chat_messages(),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stream=self.stream,
            reasoning_effort=output.effort,
            response_format=_response_format(output.format),
            chat_template_kwargs=_template_options(self.thinking),
            **self._tool_fields(),
        )

    def _tool_fields(self) -> dict[str, Any]:
        tools, choice = self.chat_tools(), self.tool_choice
        if not tools:
            if choice is not None and choice.type in {"any", "tool"}:
                raise InvalidRequestError("there is no tool to choose", param="tool_choice")
            return {}
        if choice is None:
            return {"tools": tools}
        named = {"type": "function", "function": {"name": choice.name}}
        parallel = False if choice.disable_parallel_tool_use else None
        return given(
            tools=tools,
            tool_choice=TOOL_CHOICES.get(choice.type, named),
            parallel_tool_calls=parallel,
        )


class Messages:
    """``POST /v1/messages``."""

    def read(self, body: dict[str, Any], find_call: FindCall) -> Ask:
        """Read a request."""
        asked = parse_body(MessagesRequest, body)
        chat = asked.chat()
        check_format(chat, param="output_config.format")
        if chat["messages"][-1]["role"] == "assistant":
            raise InvalidRequestError(
                "the last message is the assistant's: an answer cannot be begun for the model",
                param="messages",
            )
        caller = asked.metadata or Caller()
        return Ask(
            model=asked.model,
            path=CHAT_PATH,
            body=upstream_body(with_usage(chat)),
            messages=chat["messages"],
            record={"dialect": "messages"} | chat,
            stream=bool(asked.stream),
            reply=lambda capture: MessageReply(capture, asked.model),
            metadata=caller,
            user=caller.user_id,
        )

    def count(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Read a request to count its tokens; return its model and what the engine is asked."""
        asked = parse_body(Counted, body)
        tools = asked.chat_tools() or None
        return asked.model, given(messages=asked.chat_messages(), tools=tools)

    def error(self, error: DenizenError) -> dict[str, Any]:
        """Return Anthropic's error body."""
        return anthropic_body(error)


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = given(
        name=tool.get("name"),
        description=tool.get("description"),
        parameters=tool["input_schema"],
        strict=tool.get("strict"),
    )
    return {"type": "function", "function": function}


def _template_options(thinking: Thinking | None) -> dict[str, Any] | None:
    if thinking is None or thinking.type == "adaptive":
        return None
    return {"enable_thinking": thinking.type == "enabled"}


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None:
        return None
    schema = {"name": "answer", "schema": form.get("schema")}
    return {"type": "json_schema", "json_schema": schema}
