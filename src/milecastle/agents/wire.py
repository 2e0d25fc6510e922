"""Messages and tools in the providers' forms: pure functions of closed conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milecastle.agents.messages import ChatMessage, calls_of, closed

Spec = Mapping[str, Any]


def to_openai(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    made: list[ChatMessage] = []
    for message in closed(messages):
        role, content = message["role"], message["content"]
        calls = calls_of(message)
        if role == "tool":
            made.append({"role": role, "tool_call_id": message["tool_call_id"], "content": content})
        elif calls:
            asked = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": as_json(call["args"])},
                }
                for call in calls
            ]
            made.append({"role": role, "content": content or None, "tool_calls": asked})
        else:
            made.append({"role": role, "content": content})
    return made


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def openai_tools(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": spec["name"],
                "description": spec["description"],
                "parameters": spec["schema"],
            },
        }
        for spec in specs
    ]


def to_anthropic(messages: Sequence[ChatMessage]) -> tuple[str, list[ChatMessage]]:
    """The system prompt, and messages as Anthropic takes them.

    Roles alternate, the first and the last are the user's, results come first, and no text is
    empty. A message that came from Anthropic is sent back with the blocks it had: they are signed.
    """
    system: list[str] = []
    made: list[ChatMessage] = []
    for message in closed(messages):
        role = message["role"]
        if role == "system":
            system.append(message["content"])
            continue
        blocks = _assistant(message) if role == "assistant" else _user(message)
        to = "assistant" if role == "assistant" else "user"
        if made and made[-1]["role"] == to:
            made[-1]["content"] += blocks
        elif blocks:
            if not made and to == "assistant":
                made.append({"role": "user", "content": _texts("(an earlier conversation)")})
            made.append({"role": to, "content": blocks})
    if made and made[-1]["role"] == "assistant":  # what followed it was empty, or was removed
        made.append({"role": "user", "content": _texts("(continue)")})
    return "\n\n".join(system), made


def anthropic_tools(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    return [
        {
            "name": spec["name"],
            "description": spec["description"],
            "input_schema": spec["schema"],
        }
        for spec in specs
    ]


def _user(message: ChatMessage) -> list[dict[str, Any]]:
    content = message["content"]
    if message["role"] != "tool":
        return _texts(content)
    block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
    return [{**block, "is_error": bool(message.get("is_error"))}]


def _assistant(message: ChatMessage) -> list[dict[str, Any]]:
    calls = calls_of(message)
    asked = [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
        for call in calls
    ]
    kept = from_provider(message, "anthropic")
    if kept is None:
        return [*_texts(message["content"]), *asked]
    blocks: list[dict[str, Any]] = [block for block in kept if block["type"] != "tool_use"]
    return [*blocks, *asked]


def _texts(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, str):
        return [*content]
    return [{"type": "text", "text": content}] if content.strip() else []


def from_provider(message: ChatMessage, name: str) -> Any:
    kept: Mapping[str, Any] = message.get("provider") or {}
    return kept.get("message") if kept.get("name") == name else None
