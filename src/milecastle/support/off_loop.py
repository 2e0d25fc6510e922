"""Threads for calls of an event loop that wait for a store.

They are ours: nodes may occupy all threads of asyncio's own executor (``asyncio.to_thread``), and
claims, commits and requests must not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

_MOST = 32
"""As many threads as asyncio's own executor has at most."""

P = ParamSpec("P")
T = TypeVar("T")


class StoreThreads:
    def __init__(self, most: int = _MOST) -> None:
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(
            most, thread_name_prefix="milecastle-calls"
        )

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


_Ending = AsyncGenerator[None, None]

_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[StoreThreads, _Ending]] = (
    WeakKeyDictionary()
)


async def off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        threads = StoreThreads()
        _threads[loop] = threads, (ending := _closed_with_its_loop(threads))
        await anext(ending)
    return await _threads[loop][0].call(function, *args, **kwargs)


async def _closed_with_its_loop(threads: StoreThreads) -> _Ending:
    try:
        yield
    finally:
        threads.close()
