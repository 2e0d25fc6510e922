"""Record agent libraries' calls in the task: made once, then read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, TypeVar

from milecastle.engine.context import current
from milecastle.engine.pauses import Paused
from milecastle.errors import InvalidRequest

T = TypeVar("T")

enclosing_call: Final[ContextVar[str]] = ContextVar("milecastle_enclosing_call", default="")
"""The record of the call that this code is part of; empty outside of any."""


async def recorded(call: str, make: Callable[[], Awaitable[T]]) -> T:
    """A call's record, or its result, which is then recorded.

    ``call`` names it in any order; those with the same name are counted. A question inside it is
    refused: once the call is recorded, it would not be asked again, and its answer would be given
    to the next question.
    """
    ctx = current()
    record = f"{call}#{ctx.count(call)}"

    async def made() -> T:
        token = enclosing_call.set(record)
        try:
            return await make()
        except Paused:
            raise InvalidRequest(
                f"a call that is recorded cannot ask or sleep ({call}): let the tool require "
                "approval, and ask in the node"
            ) from None
        finally:
            enclosing_call.reset(token)

    return await ctx.aonce(record, made)
