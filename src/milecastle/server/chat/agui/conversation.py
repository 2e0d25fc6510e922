"""Messages of a state as messages of AG-UI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from milecastle.server.chat.messages import as_object, role_of, text_of
from milecastle.views.values import anything, as_json

__all__ = ["conversation"]

_SPEAKERS: Final = frozenset({"assistant", "developer", "system", "tool", "user"})
_PARTS: Final = frozenset({"audio", "document", "image", "text", "video"})


def conversation(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that a client of AG-UI can have: those with an id, of somebody who speaks."""
    found = [one for one in messages if isinstance(one.get("id"), str)]
    return [_message(one, role) for one in found if (role := role_of(one)) in _SPEAKERS]


def _message(given: dict[str, Any], role: str) -> dict[str, Any]:
    content: Any = given.get("content")
    has_parts = role == "user" and _is_parts(content)
    made: dict[str, Any] = {"id": given["id"], "role": role}
    made["content"] = content if has_parts else text_of(content)
    if role == "tool":
        made["toolCallId"] = str(given.get("toolCallId") or given.get("tool_call_id") or "")
    calls = given.get("toolCalls") or [*map(_call, given.get("tool_calls") or ())]
    return {**made, "toolCalls": calls} if calls and role == "assistant" else made


def _is_parts(content: Any) -> bool:
    parts: list[Any] = anything(content) if isinstance(content, list) else [None]
    return all((as_object(part) or {}).get("type") in _PARTS for part in parts)


def _call(given: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool as LangChain writes it."""
    function = {"name": str(given.get("name")), "arguments": as_json(given.get("args"))}
    return {"id": str(given.get("id")), "type": "function", "function": function}
