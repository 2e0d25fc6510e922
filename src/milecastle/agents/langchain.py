"""LangChain's chat models. Needs the extra ``langgraph``, or ``langchain-core``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from milecastle.agents.messages import ChatMessage, calls_of, closed
from milecastle.agents.wire import Spec, from_provider, openai_tools

__all__ = ["chat"]


def chat(model: BaseChatModel, **options: Any) -> Callable[..., Any]:
    """Make a model for ``agent`` from LangChain's chat model; ``options`` go with each request."""

    def reply(
        messages: Sequence[ChatMessage], tools: Sequence[Spec], emit: Callable[[str], object]
    ) -> ChatMessage:
        bound: Any = model.bind_tools(openai_tools(tools)) if tools else model
        found: Any = None
        for chunk in bound.stream([_as_langchain(each) for each in closed(messages)], **options):
            if chunk.text:
                emit(str(chunk.text))
            found = chunk if found is None else found + chunk
        return _message(found)

    return reply


def _as_langchain(message: ChatMessage) -> BaseMessage:
    content: Any = message["content"]
    match message["role"]:
        case "system":
            return SystemMessage(content)
        case "tool":
            status: Any = "error" if message.get("is_error") else "success"
            return ToolMessage(content, tool_call_id=message["tool_call_id"], status=status)
        case "assistant":
            calls = calls_of(message)
            kept = from_provider(message, "langchain")
            if kept is not None:
                ids = {call.get("given_id"): call["id"] for call in calls}
                content = [
                    {**each, "id": ids.get(each["id"], each["id"])} if "id" in each else each
                    for each in kept
                ]
            asked: list[Any] = [
                {key: call[key] for key in ("id", "name", "args")} for call in calls
            ]
            return AIMessage(content, tool_calls=asked)
        case _:
            return HumanMessage(content)


def _message(found: Any) -> ChatMessage:
    calls: list[Mapping[str, Any]] = [*found.tool_calls, *found.invalid_tool_calls]
    made: ChatMessage = {"content": str(found.text), "tool_calls": [{**call} for call in calls]}
    used: Mapping[str, Any] = found.usage_metadata or {}
    read: Mapping[str, Any] = used.get("input_token_details") or {}
    written: Mapping[str, Any] = used.get("output_token_details") or {}
    made["usage"] = {
        "input": used.get("input_tokens", 0),
        "output": used.get("output_tokens", 0),
        "cache_read": read.get("cache_read", 0),
        "cache_write": read.get("cache_creation", 0),
        "reasoning": written.get("reasoning", 0),
    }
    made["model"] = found.response_metadata.get("model_name", "")
    if not isinstance(found.content, str) and all(isinstance(each, dict) for each in found.content):
        made["provider"] = {"name": "langchain", "message": found.content}
    return made
