"""Anthropic's models. Needs the extra ``anthropic``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

from milecastle.agents.messages import ChatMessage
from milecastle.agents.wire import Spec, anthropic_tools, to_anthropic

__all__ = ["chat"]


def chat(
    model: str,
    *,
    max_tokens: int = 4096,
    client: Anthropic | AsyncAnthropic | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Make a model for ``agent``. An async client makes it async.

    ``options`` are passed with each request, such as ``thinking``.
    """
    made: Any = client or Anthropic()

    def request(messages: Sequence[ChatMessage], tools: Sequence[Spec]) -> dict[str, Any]:
        system, said = to_anthropic(messages)
        given: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": said}
        given |= {"system": system} if system else {}
        given |= {"tools": anthropic_tools(tools)} if tools else {}
        return given | options

    def reply(
        messages: Sequence[ChatMessage], tools: Sequence[Spec], emit: Callable[[str], object]
    ) -> ChatMessage:
        with made.messages.stream(**request(messages, tools)) as stream:
            for text in stream.text_stream:
                emit(text)
            return _message(stream.get_final_message())

    async def reply_on_loop(
        messages: Sequence[ChatMessage],
        tools: Sequence[Spec],
        emit: Callable[[str], Awaitable[object]],
    ) -> ChatMessage:
        async with made.messages.stream(**request(messages, tools)) as stream:
            async for text in stream.text_stream:
                await emit(text)
            return _message(await stream.get_final_message())

    return reply_on_loop if isinstance(made, AsyncAnthropic) else reply


def _message(found: Any) -> ChatMessage:
    blocks: list[dict[str, Any]] = [
        block.model_dump(mode="json", exclude_none=True) for block in found.content
    ]
    calls = [
        {"id": block["id"], "name": block["name"], "args": block["input"]}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    made: ChatMessage = {"content": text, "tool_calls": calls, "model": found.model}
    used = found.usage
    read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
    made["usage"] = {
        "input": used.input_tokens + read + written,
        "output": used.output_tokens,
        "cache_read": read,
        "cache_write": written,
    }
    if any(block["type"] not in ("text", "tool_use") for block in blocks):
        made["provider"] = {"name": "anthropic", "message": blocks}
    return made
