"""Server-Sent Events: texts sent as they come.

Rules:

- A comment is sent if there was nothing else for a while, so both ends see a dead connection.
- A reader taking nothing for a while is dropped.
- Before something is sent the caller is checked again, at most once a second: a session that is
  logged out or over is sent nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from milecastle.errors import MilecastleError
from milecastle.server.problems import Refused

_log = logging.getLogger("milecastle.server")

ABORT: Final = "milecastle.abort"
"""The ASGI extension with which our server lets a response end its connection at once."""

HEARTBEAT: Final = 15.0
SLOW: Final = 30.0
RECHECK: Final = 1.0
"""Seconds: between two comments if nothing else is sent; that a reader may take for one event;
between two looks at the caller."""

_PIECE: Final = 256 * 1024
"""Bytes that are sent at once."""


def event_text(name: str, data: str, id: int | str | None = None) -> bytes:
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {name}\ndata: {data}\n\n".encode()


class EventStreamResponse(Response):
    """Sends texts as they come, until the reader leaves or is too slow, or ``closing`` is set.

    ``opening`` is sent at once, and ``silence`` for each empty text. ``check`` raises ``Refused``
    if the caller may not read any more.
    """

    media_type = "text/event-stream"
    opening = b": milecastle\n\n"
    silence = b": still here\n\n"

    def __init__(
        self,
        closing: asyncio.Event,
        texts: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._closing = closing
        self._texts = texts
        self.check: Callable[[], object] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        sending = asyncio.create_task(self._send(start, send))
        ends = [asyncio.create_task(_left(receive)), sending]
        ends.append(asyncio.create_task(self._closing.wait()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            is_slow = sending.done() and not sending.cancelled() and sending.result()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.wait(ends)
            await self._texts.aclose()
        if is_slow:
            _log.info("a reader of events was too slow, and was dropped")
            await abort(scope, receive)
        elif not ends[0].done() or ends[0].cancelled():
            with suppress(TimeoutError):
                end = {"type": "http.response.body", "body": b"", "more_body": False}
                await send_soon(send, end)

    async def _send(self, start: dict[str, Any], send: Send) -> bool:
        try:
            await send_soon(send, start)
            await send_soon(send, _part(self.opening))
            checked = monotonic()
            async for text in self._texts:
                if monotonic() >= checked + RECHECK:
                    self.check()
                    checked = monotonic()
                for at in range(0, max(1, len(text)), _PIECE):
                    await send_soon(send, _part(text[at : at + _PIECE] or self.silence))
        except TimeoutError:
            return True
        except (MilecastleError, Refused):  # the store is away: the reader comes back, if it may
            return False
        except Exception as error:  # its text may contain values
            _log.error("a stream of events raised %s", type(error).__name__)
            return False
        return False


def _part(text: bytes) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": True}


async def send_soon(send: Send, message: Message) -> None:
    async with asyncio.timeout(SLOW):
        await send(message)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def abort(scope: Scope, receive: Receive) -> None:
    abort = scope.get("extensions", {}).get(ABORT)
    if abort is not None:
        abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(SLOW):
                await _left(receive)
