"""A thread of its own for a call that may have to be left to itself.

A pool would lose one of its threads to every call that is stuck, and the process could not end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

__all__ = ["call_in_own_thread"]


async def call_in_own_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call off the event loop. If this is cancelled, nobody hears any more of the call."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(returned: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((returned, error))

    def work() -> None:
        returned, error = None, None
        try:
            returned = function(*args)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(settle, returned, error)

    Thread(target=work, name="milecastle-timed", daemon=True).start()
    returned, error = await ended
    if error is not None:
        raise error
    return returned
