"""Readers that share a broadcast, on a log that is written here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any, ParamSpec

import pytest

from milecastle.errors import Unavailable
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.server import broadcasts
from milecastle.server.broadcasts import Broadcasts

KEY = ThreadKey("default", "t")
SILENCE = 60.0

P = ParamSpec("P")


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on an event loop."""

    @wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        async def whole() -> None:
            await test(*args, **named)

        asyncio.run(whole())

    return run


class Log:
    """A thread that has so many checkpoints; see ``FollowedThread``."""

    def __init__(self, head: int) -> None:
        self.head = head
        self.is_resting = False
        self.emitted: list[int] = []
        self.watched: list[bool] = []
        self.error: Exception | None = None
        self.is_deleted = False
        self.kept: list[int] = []
        self.began = 1

    def _kept(self, offset: int) -> Event[Any]:
        data = {"began": self.began, "offset": offset}
        return Event(type="emit", run_id="r", update=f"kept {self.began}.{offset}", data=data)

    async def stored(self, place: tuple[int, int]) -> list[Event[Any]]:
        return [self._kept(offset) for offset in self.kept if offset >= place[1]]

    async def watch(self, after: int, *, emitted: bool) -> AsyncGenerator[Event[Any] | None, None]:
        self.watched.append(emitted)
        told, began, kept = len(self.emitted), 0, 0
        was_resting = False
        while not self.is_deleted:
            if self.error is not None:
                raise self.error
            while after < self.head:
                after, was_resting = after + 1, False
                yield Event(type="state", run_id="r", seq=after)
            while emitted and told < len(self.emitted):
                told += 1
                yield Event(type="emit", run_id="r", update=self.emitted[told - 1])
            began, kept = self.began, kept if began == self.began else 0
            while emitted and kept < len(self.kept):
                kept += 1
                yield self._kept(kept - 1)
            if self.is_resting and not was_resting:
                yield None
            was_resting = self.is_resting
            await asyncio.sleep(0)

    async def text(self, event: Event[Any]) -> bytes:
        return f"{event.type} {event.seq or event.update}".encode()

    async def rest(self, after: int, *, is_news: bool) -> bytes | None:
        if self.is_deleted:
            return None
        return b"rest" if is_news or self.is_resting else b""

    def missed(self, run_id: str, count: int) -> bytes:
        return f"missed {count}".encode()


def reading(
    found: Broadcasts, log: Log, after: int = 0, stored: int = 0
) -> AsyncGenerator[bytes, None]:
    return found.read(KEY, log, after, log.head, SILENCE, stored)


async def take(texts: AsyncGenerator[bytes, None], count: int) -> list[str]:
    async with asyncio.timeout(60):
        return [(await anext(texts)).decode() for _ in range(count)]


async def pass_on(steps: int = 50) -> None:
    """Let the broadcast read what was written."""
    for _ in range(steps):
        await asyncio.sleep(0)


def states(first: int, last: int) -> list[str]:
    return [f"state {seq}" for seq in range(first, last + 1)]


async def close(*texts: AsyncGenerator[bytes, None]) -> None:
    for one in texts:
        await one.aclose()


@on_loop
async def test_thread_is_followed_once_for_all_its_readers() -> None:
    """Failed when each reader had a broadcast. The last one that leaves closes it."""
    found, log = Broadcasts(), Log(1)
    readers = [reading(found, log) for _ in range(50)]
    for one in readers:
        assert await take(one, 1) == ["state 1"]
    log.head = 4
    for one in readers:
        assert await take(one, 3) == states(2, 4)
    assert log.watched == [True]
    await close(*readers[1:])
    assert found.find(KEY) is not None
    await close(readers[0])
    assert found.find(KEY) is None


@on_loop
async def test_reader_that_was_away_is_served_from_what_is_kept() -> None:
    """Fails if the log is read again for it: a thousand may come back at once."""
    found, log = Broadcasts(), Log(1)
    first = reading(found, log)
    log.head = 9
    assert await take(first, 9) == states(1, 9)
    again = reading(found, log, 5)
    assert await take(again, 4) == states(6, 9)
    assert log.watched == [True]
    await close(first, again)


@on_loop
async def test_reader_that_is_behind_reads_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed when it went on with the oldest text that was kept: it missed what was not."""
    monkeypatch.setattr(broadcasts, "KEPT", 30)
    found, log = Broadcasts(), Log(20)
    quick, slow = reading(found, log, 20), reading(found, log)
    assert await take(slow, 2) == states(1, 2)
    log.head = 60
    assert await take(quick, 40) == states(21, 60)
    assert await take(slow, 58) == states(3, 60)
    assert log.watched.count(True) == 1
    await close(quick, slow)


@on_loop
async def test_values_that_a_slow_reader_missed_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those from before it came are not for it. Fails if they are sent, or not counted."""
    monkeypatch.setattr(broadcasts, "KEPT", 30)
    found, log = Broadcasts(), Log(1)
    first = reading(found, log)
    assert await take(first, 1) == ["state 1"]
    for number in range(100, 105):
        log.emitted.append(number)
        assert await take(first, 1) == [f"emit {number}"]
    late = reading(found, log, 1)
    coming = asyncio.create_task(take(late, 1))
    await pass_on()
    log.emitted.append(105)
    assert await coming == ["emit 105"]
    log.emitted += range(200, 220)
    await pass_on()
    missed, *rest = await take(late, 4)
    assert (missed, rest) == ("missed 17", ["emit 217", "emit 218", "emit 219"])
    await close(first, late)


@on_loop
async def test_reader_of_a_thread_at_rest_is_told_so() -> None:
    """Unless it was resumed since. Fails if the rest of before is sent, or none."""
    found, log = Broadcasts(), Log(2)
    log.is_resting = True
    first = reading(found, log)
    assert await take(first, 3) == [*states(1, 2), "rest"]
    second = reading(found, log, 1)
    assert await take(second, 2) == ["state 2", "rest"]
    log.is_resting = False
    third = reading(found, log, 1)
    assert await take(third, 1) == ["state 2"]
    coming = asyncio.create_task(take(third, 2))
    await pass_on()
    log.head = 3
    await pass_on()
    log.is_resting = True
    assert await coming == ["state 3", "rest"]
    fourth = reading(found, log, 1)
    assert await take(fourth, 3) == [*states(2, 3), "rest"]
    await close(first, second, third, fourth)


@on_loop
async def test_silence_is_an_empty_text() -> None:
    found, log = Broadcasts(), Log(1)
    async with aclosing(found.read(KEY, log, 0, 1, 0.01)) as texts:
        assert await take(texts, 3) == ["state 1", "", ""]


@on_loop
async def test_error_and_deletion_reach_every_reader() -> None:
    """Fails if a reader waits for a broadcast that has ended."""
    for error in (Unavailable("the store is away"), None):
        found, log = Broadcasts(), Log(1)
        readers = [reading(found, log) for _ in range(3)]
        for one in readers:
            assert await take(one, 1) == ["state 1"]
        log.error, log.is_deleted = error, error is None
        for one in readers:
            with pytest.raises(StopAsyncIteration if error is None else Unavailable):
                await take(one, 1)
        assert found.find(KEY) is None


@pytest.mark.parametrize("seed", range(20))
@on_loop
async def test_readers_that_come_and_go_get_each_checkpoint_once(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """At any pace, with little that is kept. Failed with ``>=`` where a seq is compared."""
    chance = random.Random(seed)
    monkeypatch.setattr(broadcasts, "KEPT", chance.choice([1, 40, 200]))
    found, log, last = Broadcasts(), Log(1), 60

    async def read() -> list[str]:
        seen: list[str] = []
        while len(seen) < last:
            texts = reading(found, log, len(seen))
            wanted = min(chance.randint(1, 9), last - len(seen))
            while wanted:
                await pass_on(chance.randint(0, 5))
                (text,) = await take(texts, 1)
                if text.startswith("state"):
                    seen.append(text)
                    wanted -= 1
            await texts.aclose()
        return seen

    async def write() -> None:
        while log.head < last:
            await pass_on(chance.randint(0, 8))
            log.head = min(last, log.head + chance.randint(1, 4))
            log.emitted += [0] * chance.randint(0, 2)

    *got, _ = await asyncio.gather(*(read() for _ in range(6)), write())
    assert got == [states(1, last)] * 6
    assert found.find(KEY) is None


@on_loop
async def test_thread_that_is_deleted_where_it_rests_ends_its_readers() -> None:
    """Fails if a rest of a thread that is gone is sent, or its readers wait for more."""
    found, log = Broadcasts(), Log(1)
    texts = reading(found, log)
    assert await take(texts, 1) == ["state 1"]

    async def gone(after: int, *, is_news: bool) -> bytes | None:
        return None

    log.rest = gone  # type: ignore[method-assign] # between the last checkpoint and the rest
    log.is_resting = True
    with pytest.raises(StopAsyncIteration):
        await take(texts, 1)
    assert found.find(KEY) is None


@on_loop
async def test_reader_that_is_behind_a_thread_that_began_again_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has to ask again. Fails if it waits for checkpoints that the new log does not have."""
    monkeypatch.setattr(broadcasts, "KEPT", 1)
    found, log = Broadcasts(), Log(5)
    first = reading(found, log, 4)
    assert await take(first, 1) == ["state 5"]
    log.head = 9
    assert await take(first, 4) == states(6, 9)
    log.head, log.is_resting = 1, True
    behind = reading(found, log)
    assert await take(behind, 1) == ["state 1"]
    with pytest.raises(StopAsyncIteration):
        await take(behind, 1)
    await close(first)


@on_loop
async def test_last_reader_of_a_broadcast_that_ended_leaves_the_next_one_open() -> None:
    """Fails if it is removed by its name: a third reader would follow the thread again."""
    found, log, again = Broadcasts(), Log(1), Log(1)
    first = reading(found, log)
    assert await take(first, 1) == ["state 1"]
    log.is_deleted = True
    await pass_on()
    second = reading(found, again)
    assert await take(second, 1) == ["state 1"]
    await close(first)
    third = reading(found, again)
    assert await take(third, 1) == ["state 1"]
    assert again.watched == [True]
    await close(second, third)


def kept(began: int, first: int, last: int) -> list[str]:
    return [f"emit kept {began}.{offset}" for offset in range(first, last + 1)]


@on_loop
async def test_stored_value_is_sent_to_each_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: a late reader gets nothing from before it came; a new step's values skipped,
    because their offsets are smaller.
    """
    found, log = Broadcasts(), Log(1)
    first = reading(found, log)
    log.kept = [*range(5)]
    assert await take(first, 6) == ["state 1", *kept(1, 0, 4)]
    late, back = reading(found, log), reading(found, log, 1, stored=3)
    assert await take(late, 6) == ["state 1", *kept(1, 0, 4)]
    assert await take(back, 2) == kept(1, 3, 4)
    log.head, log.began, log.kept = 2, 2, [0, 1]
    for one in (first, late, back):
        assert await take(one, 3) == ["state 2", *kept(2, 0, 1)]
    await close(first, late, back)


@on_loop
async def test_slow_reader_reads_stored_values_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: those that the broadcast has dropped were left out."""
    monkeypatch.setattr(broadcasts, "KEPT", 40)
    found, log = Broadcasts(), Log(1)
    quick, slow = reading(found, log), reading(found, log)
    assert await take(slow, 1) == ["state 1"]
    log.kept = [*range(20)]
    await take(quick, 1)
    await pass_on(200)
    assert await take(slow, 20) == kept(1, 0, 19)
    await close(quick, slow)
