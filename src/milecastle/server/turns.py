"""Callers and their turns: bounds on one caller's use, so others are served.

Rules:

- Work that waits for a store, or grows with its data, runs on the server's own threads. One caller
  has at most half of them at a time; its other requests wait for these.
- A thread stays occupied until its call has ended, also if the request was given up before.
- One caller has a limited number of open requests and streams; further ones are refused.
- A caller is a token, or a proxy's identity. Requests without one count as one caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from milecastle.server.problems import TOO_MANY, Refused

T = TypeVar("T")

THREADS: Final = 8
MOST_OPEN: Final = 2000
"""Threads of a server; requests and streams of one caller that are open at a time."""

_AFTER: Final = "5"
"""Seconds after which a caller that was refused may try again."""

CALLER: ContextVar[str] = ContextVar("milecastle.caller", default="")
"""Whose request this is."""


class ServerThreads:
    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._share = max(1, count // 2)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        loop, caller = asyncio.get_running_loop(), CALLER.get()
        turn = self._turns.get(caller)
        if turn is None:
            turn = self._turns[caller] = asyncio.Semaphore(self._share)
        await turn.acquire()
        future = self._threads.submit(copy_context().run, function, *args)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(turn.release)

        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)


class OpenRequests:
    def __init__(self) -> None:
        self.most = MOST_OPEN
        self._open: dict[str, int] = {}

    @contextmanager
    def one(self, caller: str) -> Generator[None, None, None]:
        """One more request, while the block runs.

        Raises:
            Refused: the caller has too many.
        """
        count = self._open.get(caller, 0)
        if count >= self.most:
            why = f"one caller may have {self.most} requests and streams open: end some"
            raise Refused(TOO_MANY, 429, why, {"Retry-After": _AFTER})
        self._open[caller] = count + 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]
