"""Chat messages: items in the channel ``messages``, and pieces emitted by nodes.

A message has an ``id``, a ``content``, and a ``role`` (``user``, ``assistant``) or LangChain's
``type`` (``human``, ``ai``). A node with a part of a message emits ``{"id": ..., "delta": "some
text"}``, and later returns the message with that id.

A new message may come while the last run has not ended: it failed, was cancelled, or asks. That run
is closed and its changes are undone, as with ``if_busy="cancel"``. But its messages stay: they are
part of the new run's input.

A run in progress gets new messages at its next step, if the channel is an inbox: they are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import msgspec.structs

from milecastle.app.application import App
from milecastle.app.runs.submission import Handle
from milecastle.errors import Conflict
from milecastle.graph.messages import Upsert
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.server.chat.following import is_unfinished
from milecastle.server.documents import RunOptions, RunRequest
from milecastle.server.runs import submit_run
from milecastle.server.service import Service
from milecastle.views.values import anything

MESSAGES: Final = "messages"
"""The channel."""

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_TYPES: Final = {"user": "human", "assistant": "ai", "developer": "system"}


class Chunk(msgspec.Struct, frozen=True):
    id: str
    delta: str


def as_object(value: Any) -> dict[str, Any] | None:
    return anything(value) if isinstance(value, dict) else None


def chunk_of(emitted: Any) -> Chunk | None:
    if not isinstance(emitted, dict):
        return None
    found: dict[str, Any] = anything(emitted)
    id, delta = found.get("id"), found.get("delta")
    return Chunk(id, delta) if isinstance(id, str) and isinstance(delta, str) else None


def messages_in(state: Any) -> list[dict[str, Any]]:
    found: Any = anything(state).get(MESSAGES) if isinstance(state, dict) else None
    if not isinstance(found, list):
        return []
    items: list[Any] = anything(found)
    objects = [one for one in map(as_object, items) if one is not None]
    return [one for one in objects if isinstance(one.get("id"), str)]


def role_of(message: dict[str, Any]) -> str:
    name = str(message.get("role") or message.get("type") or "assistant")
    return _ROLES.get(name, name)


def with_type(message: dict[str, Any]) -> dict[str, Any]:
    role = role_of(message)
    return {"type": _TYPES.get(role, role), **message}


def text_of(content: Any) -> str:
    if isinstance(content, list):
        parts: list[Any] = anything(content)
        return "".join(text_of(part) for part in parts)
    if isinstance(content, dict):
        return text_of(anything(content).get("text"))
    return content if isinstance(content, str) else ""


_LOOKS = 20
"""How often a thread is looked at that others change meanwhile."""


async def submit_message(
    service: Service,
    key: ThreadKey,
    app: App[Any],
    asked: RunRequest,
    closes: Collection[RunStatus],
    *,
    steers: bool = True,
) -> Handle[Any]:
    """Queue a run for the workers, and close a run with one of these statuses.

    Only the run that was seen is closed: if another message has started one since, the thread is
    looked at again, and is busy. If it ``steers``, the input has only messages, and they have an
    inbox, a run in progress gets them.
    """
    topics = [to for to, name in app.graph.schema.inboxes.items() if name == MESSAGES]
    if steers and topics and [*asked.input] == [MESSAGES]:
        info = await service.off_loop(service.store.thread, key)
        if info is not None and is_unfinished(info.status):
            return await service.off_loop(_send, app, info, topics[0], asked.input[MESSAGES])
    for _ in range(_LOOKS):
        info = await service.off_loop(service.store.thread, key)
        if info is None or info.status not in closes:
            break
        given = await service.off_loop(_with_kept_messages, service, key, app, asked.input)
        options = RunOptions(if_busy="cancel" if is_unfinished(info.status) else "reject")
        closing = msgspec.structs.replace(asked, input=given, options=options)
        with suppress(Conflict):
            return await submit_run(service, key, closing, instead_of=info.run_id)
    return await submit_run(service, key, asked)


def _send(app: App[Any], info: ThreadInfo, topic: str, messages: list[Any]) -> Handle[Any]:
    for message in messages:
        app.send(info.key, message, topic, key=(as_object(message) or {}).get("id"))
    return Handle(info.key, info.run_id, info.status, True, app)


def _with_kept_messages(
    service: Service, key: ThreadKey, app: App[Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the thread's messages to an input, if the graph recognizes them by id."""
    channel = app.graph.schema.channels.get(MESSAGES)
    new: Any = given.get(MESSAGES, [])
    has_ids = channel is not None and isinstance(channel.reducer.function, Upsert)
    if not has_ids or not isinstance(new, list):
        return dict(given)
    values = service.decoded(key, service.chain(key, None)).values
    return {**given, MESSAGES: [*values.get(MESSAGES, ()), *anything(new)]}
