"""Threads followed once, however many readers they have.

Rules:

- A thread with readers has one broadcast, which follows its log and buffers the newest texts up to
  a size in bytes. The last reader leaving closes it.
- A reader is a position, not a queue: it takes no memory and nothing waits for it. One behind the
  broadcast's buffer reads the log for itself until it has caught up.
- A checkpoint is recognized by its seq and an emitted value by its number, so a reader gets each
  once, whether it comes from the log or from the broadcast. A reader does not get values emitted
  before it came; those it was too slow for are counted as missed.
- A stored value is recognized by its place: the seq its step began with, and its offset. A reader
  that misses some, because it came late or was slow, reads them for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final, Protocol

import msgspec

from milecastle.app.threads.reading import is_kept
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey

KEPT: Final = 512 * 1024
"""Bytes of text that a broadcast keeps."""


class FollowedThread(Protocol):
    """A thread as seen by a broadcast and its readers."""

    def watch(self, after: int, *, emitted: bool) -> AsyncGenerator[Event[Any] | None, None]:
        """Yield events after a seq, endlessly; ``None`` means the run has stopped."""
        ...

    async def text(self, event: Event[Any]) -> bytes: ...

    async def rest(self, after: int, *, is_news: bool) -> bytes | None:
        """The stop event; ``None`` if the thread was deleted.

        It is empty if it is not news, and the thread was resumed since.
        """
        ...

    def missed(self, run_id: str, count: int) -> bytes: ...

    async def stored(self, place: tuple[int, int]) -> list[Event[Any]]:
        """Stored values from a place on, in the head's step."""
        ...


class BroadcastText(msgspec.Struct, frozen=True):
    """A checkpoint with its seq, an emitted value with its number or its place, or a stop."""

    text: bytes
    seq: int = 0
    number: int = 0
    run_id: str = ""
    place: tuple[int, int] | None = None


class Broadcast:
    """A thread's buffered events. ``seq`` is its newest checkpoint read here.

    It begins with the checkpoint after ``after``, which must exist.
    """

    def __init__(self, source: FollowedThread, after: int) -> None:
        self.source = source
        self._items: deque[BroadcastText] = deque()
        self._size = 0
        self._first = 0
        self._base = self.seq = after
        self.emitted = 0
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._follow(after))
        self.is_over = False
        self.readers = 0

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    # ---- following

    async def _follow(self, after: int) -> None:
        try:
            async with aclosing(self.source.watch(after, emitted=True)) as found:
                async for event in found:
                    item = await self._item(event)
                    if item is None:
                        return
                    self._publish(item)
        except Exception as error:  # each reader gets it
            self._error = error
        finally:
            self.is_over = True
            self._wake()

    async def _item(self, event: Event[Any] | None) -> BroadcastText | None:
        if event is None:
            text = await self.source.rest(self.seq, is_news=True)
            return None if text is None else BroadcastText(text)
        text = await self.source.text(event)
        if event.seq is not None:
            return BroadcastText(text, seq=event.seq)
        if is_kept(event):
            return BroadcastText(text, place=place_of(event))
        self.emitted += 1
        return BroadcastText(text, number=self.emitted, run_id=event.run_id)

    def _publish(self, item: BroadcastText) -> None:
        self._items.append(item)
        self._size += len(item.text)
        self.seq = item.seq or self.seq
        while self._size > KEPT and len(self._items) > 1:
            oldest = self._items.popleft()
            self._size -= len(oldest.text)
            self._first += 1
            self._base = oldest.seq or self._base
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # ---- what readers ask

    @property
    def end(self) -> int:
        return self._first + len(self._items)

    def has_all_after(self, seq: int) -> bool:
        return seq >= self._base

    def at(self, position: int) -> tuple[int, BroadcastText]:
        found = max(position, self._first)
        return found + 1, self._items[found - self._first]

    async def begun(self) -> None:
        while not (self._items or self.is_over):
            await self._news.wait()

    async def is_news(self, seconds: float) -> bool:
        """Wait for news or the end; ``False`` after this many seconds."""
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await news.wait()
        return news.is_set()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class Reader:
    """A reader that has seen checkpoints up to ``after``, and ``stored`` values since."""

    def __init__(self, broadcast: Broadcast, after: int, stored: int) -> None:
        self._broadcast = broadcast
        self._source = broadcast.source
        self._after = after
        self._place = after, stored
        self._came = broadcast.end
        self._heard = broadcast.emitted
        self._position = 0

    async def texts(self, silence: float) -> AsyncGenerator[bytes, None]:
        """The texts, until the thread is deleted; empty after ``silence`` seconds without any.

        Raises:
            MilecastleError: the store does not answer, or its data cannot be read.
        """
        broadcast = self._broadcast
        await broadcast.begun()
        while True:
            if not broadcast.is_over and not broadcast.has_all_after(self._after):
                async with aclosing(self._replay()) as old:
                    async for text in old:
                        yield text
                if not broadcast.has_all_after(self._after):  # the log is another one by now
                    return
            elif self._position < broadcast.end:
                self._position, item = broadcast.at(self._position)
                for text in await self._new(item):
                    yield text
            elif broadcast.is_over:
                broadcast.raise_error()
                return
            elif not await broadcast.is_news(silence):
                yield b""

    async def _replay(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._source.watch(self._after, emitted=False)) as found:
            async for event in found:
                if event is None:
                    return
                yield await self._source.text(event)
                self._after = event.seq or self._after
                if self._broadcast.has_all_after(self._after):
                    return

    async def _new(self, item: BroadcastText) -> list[bytes]:
        if item.seq:
            is_new, self._after = item.seq > self._after, max(item.seq, self._after)
            return [item.text] if is_new else []
        if item.place is not None:
            return await self._kept(item.text, item.place)
        if item.number:
            lost, self._heard = item.number - self._heard - 1, max(item.number, self._heard)
            missed = [self._source.missed(item.run_id, lost)] if lost > 0 else []
            return [*missed, item.text] if lost >= 0 else []
        if self._position > self._came:
            return [item.text]
        if self._position < self._broadcast.end:  # it was resumed before the reader came
            return []
        return [text] if (text := await self._source.rest(self._after, is_news=False)) else []

    async def _kept(self, text: bytes, place: tuple[int, int]) -> list[bytes]:
        began, offset = place
        seen, least = self._place
        least = 0 if began > seen else least
        if offset < least:
            return []
        self._place = began, offset + 1
        if offset == least:
            return [text]
        missing = await self._source.stored((began, least))
        found = [event for event in missing if place_of(event) < place]
        return [*[await self._source.text(event) for event in found], text]


def place_of(event: Event[Any]) -> tuple[int, int]:
    return event.data["began"], event.data["offset"]


class Broadcasts:
    def __init__(self) -> None:
        self._open: dict[ThreadKey, Broadcast] = {}

    def find(self, key: ThreadKey) -> Broadcast | None:
        found = self._open.get(key)
        return None if found is None or found.is_over else found

    async def read(
        self,
        key: ThreadKey,
        source: FollowedThread,
        after: int,
        head: int,
        silence: float,
        stored: int = 0,
    ) -> AsyncGenerator[bytes, None]:
        """Texts after a seq; see ``Reader``. ``head`` is the newest checkpoint."""
        broadcast = self.find(key)
        if broadcast is None:
            broadcast = self._open[key] = Broadcast(source, head - 1)
        broadcast.readers += 1
        try:
            async with aclosing(Reader(broadcast, after, stored).texts(silence)) as texts:
                async for text in texts:
                    yield text
        finally:
            broadcast.readers -= 1
            if not broadcast.readers:
                if self._open.get(key) is broadcast:
                    del self._open[key]
                await broadcast.close()
