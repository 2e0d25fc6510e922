"""Serving with uvicorn: where, under which names, and how it stops.

Rules:

- Without tokens, only this machine can connect, and only callers with the start URL.
- There are fewer connections than this process may have open files, so accepting one never fails,
  and the store can open its files. One caller has at most half of them.
- On SIGTERM streams end, waiting requests are answered, and the worker drains. A second signal ends
  the process at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final, cast

import msgspec
import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from milecastle.errors import InvalidRequest
from milecastle.server.application import Application
from milecastle.server.connections import MOST_INCOMPLETE, ConnectionLimits, connections

_log = logging.getLogger("milecastle.server")

_GRACE: Final = 10
"""For how many seconds requests may take to end when the server stops."""

_CONNECTIONS: Final = 5000
_BACKLOG: Final = 128
_OTHER_FILES: Final = 128
"""At most: connections with a request, those that are accepted in one turn of the loop, and the
files that are kept for the store and everything else."""

_TURNS: Final = 3
"""Turns of the loop from accepting a connection to closing the one that it replaces."""

_NO_LIMIT: Final = 1 << 16
_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_KEPT_ALIVE: Final = 15


class ListeningSocket(msgspec.Struct, frozen=True):
    socket: Any
    address: str


def listen(host: str, port: int) -> ListeningSocket:
    """Open a socket.

    Raises:
        InvalidRequest: the address is another machine's, or is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=_limits().backlog)
        # asyncio leaves Nagle's algorithm on for sockets made without a protocol number, and then
        # a body waits 40 ms for the acknowledgement of its head. Accepted sockets inherit this.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError) as error:
        raise InvalidRequest(f"{host}:{port} cannot be served: {error}") from None
    name = f"[{host}]" if ":" in host else host
    return ListeningSocket(found, f"{name}:{found.getsockname()[1]}")


async def serve(application: Application, listening: ListeningSocket) -> None:
    limits = _limits()
    most = application.open_requests.most
    application.open_requests.most = min(most, max(1, limits.used // 2))
    asyncio.get_running_loop().set_exception_handler(_report)
    config = uvicorn.Config(
        application,
        loop="asyncio",
        http=cast("type[asyncio.Protocol]", connections(limits)),
        backlog=limits.backlog,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # the start URL has a token
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEPT_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        h11_max_incomplete_event_size=MOST_INCOMPLETE,
    )
    await _Server(config, application.service.closing.set).serve([listening.socket])


def _limits() -> ConnectionLimits:
    files = _NO_LIMIT
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = files if soft == resource.RLIM_INFINITY else soft
    backlog = min(_BACKLOG, files // 16)
    room = files - _TURNS * backlog - min(_OTHER_FILES, files // 4)
    return ConnectionLimits(used=min(_CONNECTIONS, room * 3 // 4), all=room, backlog=backlog)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
        _log.warning("a client was not accepted: %s (see ulimit -n)", error.strerror)
    else:
        loop.default_exception_handler(context)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, closing: Callable[[], None]) -> None:
        super().__init__(config)
        self._closing = closing

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if current_thread() is not main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        await super().shutdown(sockets)
