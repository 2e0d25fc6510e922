"""A thread as Server-Sent Events: commits, exactly once and in order; emitted values.

Rules:

- A committed checkpoint is an event with ``id: SEQ``. The log is the stream: a reader that
  reconnects with ``Last-Event-ID`` gets the rest, missing nothing and seeing nothing twice,
  whichever server answers.
- Emitted values are sent as they come, without an id, and are never replayed. Those emitted with
  ``keep`` have ``id: SEQ.ATTEMPT.OFFSET``, the last checkpoint and their place after it: a reader
  that reconnects while their step runs gets the rest, and ``begins`` says a retry begins again.
- The stream stays open when a run stops, and says so: the thread may be resumed.
- Nothing waits for a reader: see ``broadcasts``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from starlette.responses import Response

from milecastle.app.application import App
from milecastle.app.threads.reading import awatch, emitted_events, is_kept
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import Entry
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.server.broadcasts import FollowedThread
from milecastle.server.budget import outgoing
from milecastle.server.documents import (
    EmittedEvent,
    EventsQuery,
    MissedEvent,
    StateEvent,
    StoppedEvent,
)
from milecastle.server.event_stream import HEARTBEAT, EventStreamResponse, event_text
from milecastle.server.request import THREAD, ApiRequest, Endpoint
from milecastle.server.service import Service
from milecastle.views.documents import ThreadLine
from milecastle.views.lines import moment
from milecastle.views.listing import looked_at, with_tags
from milecastle.views.values import as_json, json_size, plain

POLL: Final = 0.2
"""Seconds between two looks at the log."""

PAGE: Final = 16
"""Checkpoints that are read at once, for a broadcast or for a reader that is behind it."""

_ID: Final = re.compile(r"(?P<seq>[0-9]{1,17})(\.[0-9]{1,17}\.(?P<offset>[0-9]{1,17}))?", re.ASCII)
"""``SEQ`` or ``SEQ.ATTEMPT.OFFSET``."""

_SMALL: Final = 8 * 1024
"""Bytes of an emitted value that becomes text on the event loop."""


@Endpoint(
    "GET",
    f"{THREAD}/events",
    "read",
    query=EventsQuery,
    answers={200: "text/event-stream"},
    problems=(404, 409, 500),
)
async def events(request: ApiRequest) -> Response:
    """Follow a thread by Server-Sent Events."""
    service = request.service
    texts = await read_thread(service, request.key, *_last_seen(request))
    return EventStreamResponse(service.closing, texts)


async def read_thread(
    service: Service, key: ThreadKey, after: int, stored: int = 0
) -> AsyncGenerator[bytes, None]:
    """A thread's events after a seq, as sent; empty texts during silence.

    ``stored`` is how many values stored since were seen.
    """
    broadcast = service.broadcasts.find(key)
    if broadcast is not None and after <= broadcast.seq:
        source, head = broadcast.source, broadcast.seq
    else:
        source, head = await service.off_loop(_begin, service, key, after)
    return service.broadcasts.read(key, source, after, head, HEARTBEAT, stored)


def _last_seen(request: ApiRequest) -> tuple[int, int]:
    given = request.http.headers.get("last-event-id")
    if given is None:
        after: int = request.query.after
        return after, 0
    found = _ID.fullmatch(given)
    if found is None:
        raise InvalidRequest("Last-Event-ID is not an id of this stream")
    return int(found["seq"]), int(found["offset"]) + 1 if found["offset"] else 0


def _begin(service: Service, key: ThreadKey, after: int) -> tuple[FollowedThread, int]:
    """The thread and its newest checkpoint; refuses before the response status is sent."""
    app, chain = service.apps.get(service.line(key).graph), service.chain(key, None)
    head = chain.entries[-1].seq
    if after > head:
        raise InvalidRequest(
            "the thread does not have the checkpoint that was seen last: it was deleted and "
            "created again, so follow it from its beginning"
        )
    service.decoded(key, chain)
    found = _UnservedThread(service, key) if app is None else _StoredThread(service, key, app)
    return found, head


class _UnservedThread:
    """A thread with a graph not served here: a session's, a job's, or LangGraph's.

    See ``FollowedThread``.
    """

    def __init__(self, service: Service, key: ThreadKey) -> None:
        self._service = service
        self._key = key

    async def watch(self, after: int, *, emitted: bool) -> AsyncGenerator[Event[Any] | None, None]:
        was_over = False
        while True:
            found, status = await self._service.off_loop(self._look, after)
            for event in found:
                after, was_over = event.seq or after, False
                yield event
            is_over = not found and status not in ("queued", "running")
            if is_over and not was_over:
                yield None
            if status is None:
                return
            was_over = is_over
            if not found:
                await asyncio.sleep(POLL)

    def _look(self, after: int) -> tuple[list[Event[Any]], str | None]:
        service, key = self._service, self._key
        info = service.store.thread(key)
        entries = service.store.entries(key, after=after, limit=PAGE) if info else ()
        found = [_event_of(service, key, entry) for entry in entries]
        return found, info.status if info else None

    async def text(self, event: Event[Any]) -> bytes:
        is_small = event.seq is None and json_size(event.update, _SMALL) <= _SMALL
        return self._text(event) if is_small else await self._service.off_loop(self._text, event)

    def _text(self, event: Event[Any]) -> bytes:
        name, document = _described(event)
        id = None if event.seq is None else str(event.seq)
        if is_kept(event):
            id = f"{event.data['seq']}.{event.attempt}.{event.data['offset']}"
        return self._block(name, document, id)

    async def stored(self, place: tuple[int, int]) -> list[Event[Any]]:
        return []

    def _block(self, name: str, data: msgspec.Struct, id: str | None = None) -> bytes:
        return event_text(name, as_json(outgoing(data, self._service.redact)), id)

    async def rest(self, after: int, *, is_news: bool) -> bytes | None:
        line = await self._service.off_loop(_resting, self._service, self._key, after)
        if line is None:
            return None
        is_over = is_news or line.status not in ("queued", "running")
        return self._block("stopped", StoppedEvent(thread=line)) if is_over else b""

    def missed(self, run_id: str, count: int) -> bytes:
        return self._block("missed", MissedEvent(run_id=run_id, count=count))


class _StoredThread(_UnservedThread):
    def __init__(self, service: Service, key: ThreadKey, app: App[Any]) -> None:
        super().__init__(service, key)
        self._runner = app.runner

    def watch(self, after: int, *, emitted: bool) -> AsyncGenerator[Event[Any] | None, None]:
        runner = self._runner
        threads, _ = runner.stored(self._key)
        return awatch(threads, self._key, after, POLL, runner.off_loop, emitted=emitted, page=PAGE)

    async def stored(self, place: tuple[int, int]) -> list[Event[Any]]:
        threads, key = self._runner.stored(self._key)
        return await self._runner.off_loop(emitted_events, threads, key, place)


def _event_of(service: Service, key: ThreadKey, entry: Entry) -> Event[Any]:
    return Event(
        type="state",
        run_id=entry.run_id,
        key=key,
        step=entry.step,
        seq=entry.seq,
        time=entry.created_at,
        state=service.decoded(key, service.chain(key, entry.seq)).values,
        data={"source": entry.source, "nodes": entry.nodes, "next": entry.next},
    )


def _resting(service: Service, key: ThreadKey, after: int) -> ThreadLine | None:
    info, head = service.store.thread(key), service.store.head(key)
    if info is None or head is None or head.seq < after:
        return None
    return with_tags(service.store, info.key.tenant, [looked_at(service.store, info)])[0]


def _described(event: Event[Any]) -> tuple[str, msgspec.Struct]:
    if event.type == "state":
        return "state", _state(event)
    if event.type == "missed":
        return "missed", MissedEvent(run_id=event.run_id, count=event.data["count"])
    emitted = EmittedEvent(
        run_id=event.run_id,
        time=moment(event.time),
        step=event.step,
        node=event.node,
        task=event.task,
        attempt=event.attempt,
        value=plain(event.update),
        offset=event.data.get("offset"),
        begins=event.data.get("begins", False),
    )
    return "emit", emitted


def _state(event: Event[Any]) -> StateEvent:
    return StateEvent(
        seq=event.seq or 0,
        step=event.step,
        run_id=event.run_id,
        time=moment(event.time),
        source=event.data["source"],
        nodes=event.data["nodes"],
        next=event.data["next"],
        state=plain(event.state),
    )
