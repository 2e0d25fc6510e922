"""A call on its way: the effects of a run, and the driver that performs them."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec

from milecastle.app.answering import NOTHING_GIVEN, Given
from milecastle.drivers import blocking
from milecastle.drivers.host import Host
from milecastle.engine.effects import Effect
from milecastle.engine.plan import Ending
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey

__all__ = ["Call", "take_page"]

T = TypeVar("T")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of ``invoke``, ``stream`` or ``resume``.

    A sync call of a graph that has async functions enters one event loop for the whole run.
    """

    run_id: str
    key: ThreadKey | None
    effects: Generator[Effect, Any, Ending]
    host: Host
    is_async: bool
    given: Given = NOTHING_GIVEN

    def finish(self) -> Ending:
        """Run to rest."""
        if self.is_async:
            refuse_running_loop()
            return _in_new_loop(self.afinish())
        return _exhaust(blocking.drive(self.effects, self.host))

    async def afinish(self) -> Ending:
        """Run to rest on the event loop."""
        from milecastle.drivers.asynchronous import Drive

        return await Drive(self.effects, self.host).finish()

    def events(self) -> Generator[Event, None, Ending]:
        """Run, and yield events on the way."""
        if self.is_async:
            refuse_running_loop()
            return self._events_of_loop()
        return blocking.drive(self.effects, self.host)

    def _events_of_loop(self) -> Generator[Event, None, Ending]:
        import asyncio

        from milecastle.drivers.asynchronous import Drive

        drive = Drive(self.effects, self.host)
        events = drive.events()
        with asyncio.Runner() as runner:
            try:
                while (event := runner.run(_next_of(events))) is not None:
                    yield event
            finally:
                runner.run(events.aclose())
        return drive.result()


def refuse_running_loop() -> None:
    """A sync call of an async graph cannot be made from inside a loop."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest(
        "this graph has async nodes and an event loop is already running here: "
        "await ainvoke(), aresume() or iterate astream() instead"
    )


def _in_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    import asyncio

    with asyncio.Runner() as runner:
        return runner.run(coroutine)


async def _next_of(events: Any) -> Event | None:
    return await anext(events, None)


def _exhaust(events: Generator[Event, None, Ending]) -> Ending:
    while True:
        try:
            next(events)
        except StopIteration as stop:
            ending: Ending = stop.value
            return ending


def take_page(history: Iterator[CheckpointMetadata]) -> list[CheckpointMetadata]:
    """The next few checkpoints of a history."""
    return list(islice(history, 100))
