"""Chat messages: the items of the channel ``messages``, and the pieces that nodes emit of them.

A message has an ``id``, a ``content``, and a ``role`` (``user``, ``assistant``) or the ``type``
that LangChain calls it (``human``, ``ai``). A node that has a part of a message emits
``{"id": ..., "delta": "some text"}``, and later returns the message with that id.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from milecastle.views.values import anything

__all__ = [
    "MESSAGES",
    "Chunk",
    "as_object",
    "chunk_of",
    "messages_in",
    "role_of",
    "text_of",
    "with_type",
]

MESSAGES: Final = "messages"
"""The channel."""

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_TYPES: Final = {"user": "human", "assistant": "ai", "developer": "system"}


class Chunk(msgspec.Struct, frozen=True):
    """A part of the text of a message."""

    id: str
    delta: str


def as_object(value: Any) -> dict[str, Any] | None:
    """A JSON value, if it is an object."""
    return anything(value) if isinstance(value, dict) else None


def chunk_of(emitted: Any) -> Chunk | None:
    """An emitted value as a part of a message, if it is one."""
    if not isinstance(emitted, dict):
        return None
    found: dict[str, Any] = anything(emitted)
    id, delta = found.get("id"), found.get("delta")
    return Chunk(id, delta) if isinstance(id, str) and isinstance(delta, str) else None


def messages_in(state: Any) -> list[dict[str, Any]]:
    """The messages of a state, as JSON; those without an id are left out."""
    found: Any = anything(state).get(MESSAGES) if isinstance(state, dict) else None
    if not isinstance(found, list):
        return []
    items: list[Any] = anything(found)
    objects = [one for one in map(as_object, items) if one is not None]
    return [one for one in objects if isinstance(one.get("id"), str)]


def role_of(message: dict[str, Any]) -> str:
    """Who says it."""
    name = str(message.get("role") or message.get("type") or "assistant")
    return _ROLES.get(name, name)


def with_type(message: dict[str, Any]) -> dict[str, Any]:
    """A message with the type that LangChain's clients look at."""
    role = role_of(message)
    return {"type": _TYPES.get(role, role), **message}


def text_of(content: Any) -> str:
    """The text of a content, which may be a list of parts."""
    if isinstance(content, list):
        parts: list[Any] = anything(content)
        return "".join(text_of(part) for part in parts)
    if isinstance(content, dict):
        return text_of(anything(content).get("text"))
    return content if isinstance(content, str) else ""
