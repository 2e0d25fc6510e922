"""Pydantic AI's models. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from milecastle.agents.messages import ChatMessage, calls_of, closed
from milecastle.agents.wire import Spec, from_provider

__all__ = ["chat"]


def chat(model: Model | str, **settings: Any) -> Callable[..., Any]:
    """Make an async model for ``agent`` from a Pydantic AI model, or from its name."""

    async def reply(
        messages: Sequence[ChatMessage],
        tools: Sequence[Spec],
        emit: Callable[[str], Awaitable[object]],
    ) -> ChatMessage:
        known = [
            ToolDefinition(
                name=spec["name"],
                description=spec["description"],
                parameters_json_schema=spec["schema"],
            )
            for spec in tools
        ]
        async with model_request_stream(
            model,
            _as_pydantic(closed(messages)),
            model_settings=cast("ModelSettings", settings),
            model_request_parameters=ModelRequestParameters(function_tools=known),
        ) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    await emit(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    await emit(event.delta.content_delta)
            return _message(stream.get())

    return reply


def _as_pydantic(messages: Sequence[ChatMessage]) -> list[ModelMessage]:
    made: list[ModelMessage] = []
    for message in messages:
        content: Any = message["content"]
        match message["role"]:
            case "system":
                made.append(ModelRequest([SystemPromptPart(content)]))
            case "tool":
                id, failed = message["tool_call_id"], bool(message.get("is_error"))
                outcome: Any = "failed" if failed else "success"
                part = ToolReturnPart(message["name"], content, id, outcome=outcome)
                made.append(ModelRequest([part]))
            case "assistant":
                made.append(_response(message, content))
            case _:
                made.append(ModelRequest([UserPromptPart(content)]))
    return made


def _response(message: ChatMessage, content: str) -> ModelResponse:
    kept = from_provider(message, "pydantic_ai")
    parts: list[Any] = [TextPart(content)] if content else []
    if kept is not None:
        (found,) = ModelMessagesTypeAdapter.validate_python(kept)
        parts = [part for part in found.parts if not isinstance(part, ToolCallPart)]
    asked = [ToolCallPart(call["name"], call["args"], call["id"]) for call in calls_of(message)]
    return ModelResponse([*parts, *asked])


def _message(found: ModelResponse) -> ChatMessage:
    calls = [
        {"id": part.tool_call_id, "name": part.tool_name, "args": part.args}
        for part in found.parts
        if isinstance(part, ToolCallPart)
    ]
    text = "".join(part.content for part in found.parts if isinstance(part, TextPart))
    made: ChatMessage = {"content": text, "tool_calls": calls, "model": found.model_name or ""}
    used = found.usage
    made["usage"] = {
        "input": used.input_tokens,
        "output": used.output_tokens,
        "cache_read": used.cache_read_tokens,
        "cache_write": used.cache_write_tokens,
    }
    if any(isinstance(part, ThinkingPart) for part in found.parts):
        kept = ModelMessagesTypeAdapter.dump_python([found], mode="json")
        made["provider"] = {"name": "pydantic_ai", "message": kept}
    return made
