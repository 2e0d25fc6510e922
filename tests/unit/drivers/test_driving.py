"""Both drivers by hand: what they do with effects, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from milecastle import RunCancelled, RunTimeout, Unavailable
from milecastle.drivers import blocking
from milecastle.drivers.asynchronous import Drive
from milecastle.drivers.host import Host
from milecastle.engine.effects import Commit, Effect, Emit, Evaluate, Stopped
from milecastle.engine.plan import Ending
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock

Effects = Generator[Effect, Any, Ending]

ENDING = Ending(status="completed", values={}, nodes=(), next=(), step=0, time=0)
EMIT = Emit(Event(type="graph_start", run_id="run"))


def empty_batch(store: MemoryStore | None = None) -> Batch:
    return Batch(key=ThreadKey("a", "b"), head=0)


def host(**surroundings: Any) -> Host:
    return Host(clock=ManualClock(), **surroundings)


def nothing(event: Event) -> None:
    """What a reader sees that wants nothing."""


def everything(event: Event) -> Event:
    return event


def exhaust(effects: Effects, host: Host, way: str) -> Ending:
    if way == "asynchronous":
        return asyncio.run(Drive(lambda services: effects, host).finish())
    driven = blocking.drive(lambda services: effects, host)
    while True:
        try:
            next(driven)
        except StopIteration as stop:
            ending: Ending = stop.value
            return ending


def leave(effects: Effects, host: Host, way: str) -> None:
    """Read one event, then go away."""
    if way == "blocking":
        driven = blocking.drive(lambda services: effects, host)
        next(driven)
        driven.close()
        return

    async def read() -> None:
        events = Drive(lambda services: effects, host).events()
        await anext(events)
        await events.aclose()

    asyncio.run(read())


WAYS = pytest.mark.parametrize("way", ["blocking", "asynchronous"])


@WAYS
def test_what_an_effect_raised_is_thrown_into_the_engine(way: str) -> None:
    def effects() -> Effects:
        with pytest.raises(AssertionError, match="without a store"):
            yield Commit(empty_batch())
        return ENDING

    assert exhaust(effects(), host(), way) is ENDING


@WAYS
def test_an_unknown_effect_is_a_defect(way: str) -> None:
    def effects() -> Effects:
        with pytest.raises(AssertionError, match="does not know"):
            yield object()  # type: ignore[misc]  # pyright: ignore[reportReturnType]
        return ENDING

    assert exhaust(effects(), host(), way) is ENDING


def test_the_blocking_driver_awaits_nothing() -> None:
    async def holds(state: Any) -> bool:
        return True

    def effects() -> Effects:
        with pytest.raises(AssertionError, match="does not know Evaluate"):
            yield Evaluate(holds, {})
        return ENDING

    assert exhaust(effects(), host(), "blocking") is ENDING


def test_the_asynchronous_driver_awaits_predicates() -> None:
    async def holds(state: Any) -> bool:
        return bool(state == 7)

    def effects() -> Effects:
        assert (yield Evaluate(holds, 7)) is True
        return ENDING

    assert exhaust(effects(), host(timeout=60), "asynchronous") is ENDING


@WAYS
def test_a_reader_that_leaves_lets_the_engine_close_its_record(way: str) -> None:
    told: list[str] = []
    store = MemoryStore()

    class Ear:
        def on_event(self, event: Event) -> None:
            told.append(event.type)

    def effects() -> Effects:
        try:
            yield EMIT
        except Stopped as stopped:
            yield Commit(empty_batch())
            with pytest.raises(Unavailable):
                yield Commit(empty_batch())
            yield Emit(Event(type="graph_failed", run_id="run"))
            raise stopped.reason from None
        return ENDING

    class Once(MemoryStore):
        commits = 0

        def commit(self, batch: Batch) -> None:
            self.commits += 1
            if self.commits > 1:
                raise Unavailable("gone")
            store.commit(batch)

    leave(effects(), host(store=Once(), observers=(Ear(),), wanted=everything), way)
    assert told == ["graph_start", "graph_failed"]


@WAYS
@pytest.mark.parametrize("end", ["returns", "stays stopped"])
def test_an_engine_may_end_in_its_own_way_when_a_reader_leaves(way: str, end: str) -> None:
    def effects() -> Effects:
        try:
            yield EMIT
        except Stopped:
            if end != "returns":
                raise
        return ENDING

    leave(effects(), host(wanted=everything), way)


def test_a_drive_that_was_not_read_to_its_end_has_no_result() -> None:
    def effects() -> Effects:
        yield EMIT
        return ENDING

    drive = Drive(lambda services: effects(), host())
    with pytest.raises(RuntimeError, match="has not stopped"):
        drive.result()


def test_other_tasks_of_the_loop_get_their_turn() -> None:
    turns = 0

    def effects() -> Effects:
        for _ in range(1_000):
            yield Commit(empty_batch())
        return ENDING

    async def scenario() -> None:
        nonlocal turns
        driving = asyncio.ensure_future(
            Drive(lambda services: effects(), host(store=MemoryStore())).finish()
        )
        while not driving.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert turns >= 10


class Flag:
    """A cancel event of the user's own kind."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def is_set(self) -> bool:
        return self.value


def test_a_host_says_why_a_run_must_stop() -> None:
    assert host().stop_reason() is None
    assert not host().watching
    assert host(cancel=Flag(False), timeout=60).stop_reason() is None
    assert isinstance(host(cancel=Flag(True)).stop_reason(), RunCancelled)
    late = host(timeout=1e-9)
    reason = late.stop_reason()
    assert isinstance(reason, RunTimeout)
    with pytest.raises(Stopped) as caught:
        late.check()
    assert isinstance(caught.value.reason, RunTimeout)


def test_host_reports_and_selects_events() -> None:
    event = Event(type="graph_start", run_id="run")
    assert host().tell(event) is None
    assert host(wanted=everything).tell(event) is event
    assert host(wanted=nothing).tell(event) is None
