"""Answers as JSON, made off the event loop and sent in pieces.

Rules:

- A document becomes text on a thread, in pieces of bounded size: no call holds the interpreter's
  lock for longer than a moment, however large a value is.
- A short answer is sent whole. A long one has only a piece in memory, and the next is made when the
  reader has taken it. A reader taking nothing for a while is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from milecastle.server.event_stream import abort, send_soon
from milecastle.server.service import Service
from milecastle.views.values import json_pieces

_TOGETHER: Final = 4
"""Pieces that are made, and sent, at once."""


async def json_answer(
    service: Service,
    make: Callable[[], Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    pieces: Iterator[str] = iter(())

    def begin() -> tuple[bytes, bytes]:
        nonlocal pieces
        pieces = json_pieces(make())
        return _next(pieces), _next(pieces)

    first, second = await service.off_loop(begin)
    if not second:
        return Response(first, status, headers, media_type="application/json")
    return _LongAnswer(service, [first, second], pieces, status, headers)


def _next(pieces: Iterator[str]) -> bytes:
    return "".join(islice(pieces, _TOGETHER)).encode()


class _LongAnswer(Response):
    media_type = "application/json"

    def __init__(
        self,
        service: Service,
        made: list[bytes],
        pieces: Iterator[str],
        status: int,
        headers: Mapping[str, str] | None,
    ) -> None:
        super().__init__(None, status, headers)
        del self.headers["content-length"]
        self._service = service
        self._made = made
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        try:
            await send_soon(send, head)
            for piece in self._made:
                await send_soon(send, _body(piece))
            while piece := await self._service.off_loop(_next, self._pieces):
                await send_soon(send, _body(piece))
            await send_soon(send, _body(b"", more=False))
        except TimeoutError:
            await abort(scope, receive)


def _body(piece: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}
