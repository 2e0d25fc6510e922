"""OpenAI's models, and services with its chat completions. Needs the extra ``openai``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from openai import AsyncOpenAI, OpenAI

from milecastle.agents.messages import ChatMessage
from milecastle.agents.wire import Spec, openai_tools, to_openai

__all__ = ["chat"]


def chat(
    model: str, *, client: OpenAI | AsyncOpenAI | None = None, **options: Any
) -> Callable[..., Any]:
    """Make a model for ``agent``. An async client makes it async.

    Other services are called by a client with their ``base_url``. ``options`` are passed with each
    request, such as ``max_completion_tokens``.
    """
    made: Any = client or OpenAI()

    def request(messages: Sequence[ChatMessage], tools: Sequence[Spec]) -> dict[str, Any]:
        given: dict[str, Any] = {"model": model, "messages": to_openai(messages), "stream": True}
        given["stream_options"] = {"include_usage": True}
        given |= {"tools": openai_tools(tools)} if tools else {}
        return given | options

    def reply(
        messages: Sequence[ChatMessage], tools: Sequence[Spec], emit: Callable[[str], object]
    ) -> ChatMessage:
        found = _Reply(model)
        for chunk in made.chat.completions.create(**request(messages, tools)):
            if text := found.add(chunk):
                emit(text)
        return found.message()

    async def reply_on_loop(
        messages: Sequence[ChatMessage],
        tools: Sequence[Spec],
        emit: Callable[[str], Awaitable[object]],
    ) -> ChatMessage:
        found = _Reply(model)
        async for chunk in await made.chat.completions.create(**request(messages, tools)):
            if text := found.add(chunk):
                await emit(text)
        return found.message()

    return reply_on_loop if isinstance(made, AsyncOpenAI) else reply


class _Reply:
    """A reply that comes in chunks; a call's arguments come in pieces of JSON."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._texts: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._usage: dict[str, int] = {}

    def add(self, chunk: Any) -> str:
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        text = ""
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = self._calls.setdefault(piece.index, {"id": "", "name": "", "args": ""})
                call["id"] = piece.id or call["id"]
                if piece.function is not None:
                    call["name"] += piece.function.name or ""
                    call["args"] += piece.function.arguments or ""
        self._texts.append(text)
        return text

    def message(self) -> ChatMessage:
        calls = [self._calls[place] for place in sorted(self._calls)]
        found = {"content": "".join(self._texts), "tool_calls": calls, "usage": self._usage}
        return {**found, "model": self._model}


def _usage(given: Any) -> dict[str, int]:
    read = getattr(given.prompt_tokens_details, "cached_tokens", 0)
    thought = getattr(given.completion_tokens_details, "reasoning_tokens", 0)
    return {
        "input": given.prompt_tokens,
        "output": given.completion_tokens,
        "cache_read": read or 0,
        "reasoning": thought or 0,
    }
