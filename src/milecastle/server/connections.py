"""HTTP/1.1 connections that slow and hostile clients cannot use up.

Rules:

- A connection is *vacant* while no request on it is being answered: nothing, or part of a head, or
  the rest of a refused body has come. It may be so for a few seconds.
- With many vacant connections, each may be so for a moment only, and they do not count as this
  server's connections. So clients sending a request are served, however many send none.
- There are never more connections than descriptors: the oldest vacant one makes room for a new one.
- Probes are answered even at the connection limit.
- An unwanted body is read and discarded up to a size before the connection ends. It is not ended at
  once, so the answer arrives.
- Input that is not HTTP is answered with a problem document, like everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from milecastle.server.event_stream import ABORT
from milecastle.server.limits import MOST_HEADERS
from milecastle.server.problems import TOO_LARGE, TOO_MANY, UNREADABLE, Refused, problem_response

VACANT: Final = 15.0
"""Seconds that a connection may be vacant; a client that still reads an answer has more."""

MANY: Final = 512
CROWDED: Final = 1.0
"""How many vacant connections are many, and for how many seconds they may be so then."""

MOST_DISCARDED: Final = 4 * 1024 * 1024
"""Bytes of a refused body."""

MOST_INCOMPLETE: Final = 2 * MOST_HEADERS
"""Bytes of a head, as they are sent."""

_READING: Final = 4
"""For how many times as long an answer may be read."""


_LATER: Final = {"Retry-After": "5", "Connection": "close"}
_PROBES: Final = ("/healthz", "/readyz")


class ConnectionLimits(msgspec.Struct, frozen=True):
    used: int
    all: int
    backlog: int


def connections(limits: ConnectionLimits) -> Callable[..., asyncio.Protocol]:
    vacant: dict[_Connection, float] = {}

    def make(*args: Any, **settings: Any) -> asyncio.Protocol:
        return _Connection(vacant, limits, *args, **settings)

    return make


class _Connection(H11Protocol):
    def __init__(
        self,
        vacant: dict[_Connection, float],
        limits: ConnectionLimits,
        *args: Any,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._vacant = vacant
        self._limits = limits
        self._served, self.app = self.app, self._serve
        self._timer: asyncio.TimerHandle | None = None
        self._periods = 0
        self._discarded = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._become_vacant()
        if len(self.connections) > self._limits.all and self._vacant:
            next(iter(self._vacant)).drop()  # which may be this one

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_used()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.DONE:
            self._discarded += len(data)
            if self._discarded > MOST_DISCARDED:
                self.transport.abort()
                return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._be_used()
            self._discarded = 0
            scope: Any = self.scope
            scope.setdefault("extensions", {})[ABORT] = self.transport.abort

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        used = len(self.connections) - len(self._vacant)
        if used > self._limits.used and scope.get("path") not in _PROBES:
            full = Refused(TOO_MANY, 503, "the server has all its connections", _LATER)
            await problem_response(full)(scope, receive, send)
        else:
            await self._served(scope, receive, send)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle: Any = self.cycle
        if cycle.response_complete and not self.transport.is_closing():
            self._become_vacant()

    def send_400_response(self, msg: str) -> None:
        self._be_used()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        refused = Refused(UNREADABLE, 400, "this is not HTTP/1.1")
        if len(self.conn.trailing_data[0]) > MOST_INCOMPLETE:
            most = f"path and headers may have at most {MOST_HEADERS} bytes"
            refused = Refused(TOO_LARGE, 431, most)
        found = problem_response(refused)
        headers = [*found.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=found.status_code, headers=headers),
            h11.Data(data=bytes(found.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    # ---- being vacant

    def _become_vacant(self) -> None:
        self._be_used()
        now = self.loop.time()
        self._vacant[self] = now
        self._periods = 0
        self._wait(CROWDED if len(self._vacant) > MANY else VACANT)
        oldest = next(iter(self._vacant))
        if len(self._vacant) > MANY and self._vacant[oldest] < now - CROWDED:
            oldest.drop()

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._periods += 1
        if self.transport.get_write_buffer_size() and self._periods < _READING:
            self._wait(VACANT)
        else:
            self.drop()

    def _be_used(self) -> None:
        self._vacant.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def drop(self) -> None:
        self._be_used()
        self.transport.abort()
