"""Threads for calls of an event loop that wait for a store.

They are ours: nodes may occupy all threads of asyncio's own executor (``asyncio.to_thread``), and
claims, commits and requests must not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["StoreThreads", "off_loop"]

_MOST = 32
"""As many threads as asyncio's own executor has at most."""

P = ParamSpec("P")
T = TypeVar("T")


class StoreThreads:
    """Some threads, which are made when they are needed."""

    def __init__(self, most: int = _MOST) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="milecastle-calls")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that may block, in the context of the caller."""
        call = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        self._pool.shutdown(wait=False)


_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, StoreThreads] = WeakKeyDictionary()


async def off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call something that waits for a store, in the threads that calls of this loop share."""
    loop = asyncio.get_running_loop()
    threads = _threads.get(loop)
    if threads is None:
        threads = _threads[loop] = StoreThreads()
    return await threads.call(function, *args, **kwargs)
