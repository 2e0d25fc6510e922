"""Reading a thread: its state, its history, and following it while any process runs it.

A reader following a thread needs nothing from the process running it: the log is the stream.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from heapq import merge
from itertools import islice
from time import monotonic
from typing import Any

import msgspec.structs

from milecastle.app.emitting import EmittedQueue, feed_of
from milecastle.app.results import Snapshot
from milecastle.app.threads.children import children_of
from milecastle.app.threads.log import At, Threads, interrupts_at
from milecastle.codec.deltas import LogCodec, replay
from milecastle.engine.emissions import emission_mark, emission_offset
from milecastle.engine.reserved_channels import CONFIG, split
from milecastle.engine.status import claimed, thread_info, waits_at
from milecastle.errors import ThreadNotFound
from milecastle.graph.comparison import Renames
from milecastle.model.checkpoint import DELTA, CheckpointMetadata, Entry, to_datetime
from milecastle.model.event import Emitted, Event
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import START, Manifest
from milecastle.model.notebook import card, table
from milecastle.model.run import RunStatus
from milecastle.ports.store import Store

_PAGE = 100

_SHOWN = 50
"""How many checkpoints a notebook shows."""

_ON_THE_WAY = 0.3
_ON_THE_WAY_AT_MOST = 2.0
"""For how many seconds after the last one a stopped thread may have emitted values to come: after
the hint that its run stopped, and without one."""


def snapshot(threads: Threads, key: ThreadKey, at: At) -> Snapshot[Any]:
    position, entry, record = threads.standing(key, at)
    known = CheckpointMetadata.of(key, entry)
    info = thread_info(entry, record, waits_at(position.reserved))
    status, next = running_now(threads.store, key, entry, info.status)
    is_taken = status != info.status
    known = msgspec.structs.replace(known, next=next)
    return Snapshot(
        **msgspec.structs.asdict(known),
        state=threads.graph.schema.view(position.values),
        status=status,
        metadata=record.metadata,
        interrupts=interrupts_at(position, status),
        wake_at=None if info.wake_at is None or is_taken else to_datetime(info.wake_at),
    )


def running_now(
    store: Store, key: ThreadKey, entry: Entry, status: RunStatus
) -> tuple[RunStatus, tuple[str, ...]]:
    """The status at a checkpoint and the nodes to run; at the head, with a worker's claim.

    ``status`` comes from the log.
    """
    next, info = entry.next or entry.route, store.thread(key)
    if info is not None and (taken := claimed(info)) is not info:
        head = store.head(key)
        if head is not None and head.seq == entry.seq:
            status = taken.status
    if status == "running" and next == (START,):
        stored = store.manifest(key, entry.fingerprint)
        next = (stored and Manifest.from_bytes(stored).first) or next
    return status, next


class History(Iterator[CheckpointMetadata]):
    """A thread's checkpoints, read lazily. A notebook shows the first ones."""

    def __init__(self, thread: str, read: Callable[[], Iterator[CheckpointMetadata]]) -> None:
        self._thread = thread
        self._read = read
        self._left = read()

    def __next__(self) -> CheckpointMetadata:
        return next(self._left)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._thread!r})"

    def _repr_html_(self) -> str:
        head = ["seq", "source", "nodes", "next", "step", "time", "run"]
        rows = [
            (
                str(one.seq),
                one.source,
                ", ".join(one.nodes),
                ", ".join(one.next),
                str(one.step),
                one.timestamp.isoformat(timespec="seconds"),
                one.run_id,
            )
            for one in islice(self._read(), _SHOWN)
        ]
        return card("History", {"thread": self._thread}, table(head, rows))


def history(
    threads: Threads, key: ThreadKey, limit: int | None, *, subgraphs: bool
) -> Iterator[CheckpointMetadata]:
    return History(key.thread, lambda: _history(threads, key, limit, subgraphs=subgraphs))


def _history(
    threads: Threads, key: ThreadKey, limit: int | None, *, subgraphs: bool
) -> Iterator[CheckpointMetadata]:
    if not subgraphs:
        return threads.history(key, limit)
    keys = [key, *(child.key for child in children_of(threads.store, key))]
    found = merge(
        *(threads.history(each, limit) for each in keys),
        key=lambda known: known.timestamp,
        reverse=True,
    )
    return islice(found, limit)


def follow(
    threads: Threads, key: ThreadKey, after: int, poll: float, *, emitted: bool
) -> Iterator[Event[Any]]:
    """The states from a seq on, then those to come, until the run stops.

    With ``emitted`` also emitted values, if a worker runs the thread.
    """
    from threading import Event as Flag

    news = Flag()
    follower = _Follower(threads, key, after, poll)
    if emitted:
        follower.listen(news.set)
    try:
        while not follower.is_over:
            news.clear()
            yield from follower.take()
            if follower.patience:
                news.wait(follower.patience)
            else:
                yield from follower.look()
    finally:
        follower.end()


async def afollow(
    threads: Threads,
    key: ThreadKey,
    after: int,
    poll: float,
    off_loop: Callable[..., Awaitable[Any]],
    *,
    emitted: bool,
) -> AsyncIterator[Event[Any]]:
    async with aclosing(awatch(threads, key, after, poll, off_loop, emitted=emitted)) as found:
        async for event in found:
            if event is None:
                return
            yield event


async def awatch(
    threads: Threads,
    key: ThreadKey,
    after: int,
    poll: float,
    off_loop: Callable[..., Awaitable[Any]],
    *,
    emitted: bool,
    page: int = _PAGE,
) -> AsyncGenerator[Event[Any] | None, None]:
    """``afollow`` without an end: ``None`` says the run has stopped, and it may be resumed.

    ``page`` is how many checkpoints are read at once, and so are in memory.
    """
    import asyncio

    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(news.set)

    follower = _Follower(threads, key, after, poll, page)
    try:
        if emitted:
            await off_loop(follower.listen, wake)
        was_over = False
        while True:
            news.clear()
            for event in follower.take():
                yield event
            if patience := follower.patience:
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await news.wait()
                continue
            for event in await off_loop(follower.look):
                was_over = False
                yield event
            if follower.is_over and not was_over:
                yield None
            if follower.is_over and follower.is_gone:
                return
            was_over = follower.is_over
    finally:
        follower.end()


def emitted_after(
    threads: Threads, key: ThreadKey, after: Emitted | tuple[int, int] | None
) -> list[Emitted]:
    if threads.store.head(key) is None:
        raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
    if after is None:
        place = 0, 0
    elif isinstance(after, Emitted):
        place = after.seq, after.offset + 1
    else:
        place = sys.maxsize, after[1] + 1
    return stored_emissions(threads.store, threads.codec.for_thread(key), key, place)


def stored_emissions(
    store: Store, codec: LogCodec, key: ThreadKey, place: tuple[int, int]
) -> list[Emitted]:
    """Values emitted in the step at the head, from a place on, in their order.

    A place is a checkpoint's seq, and an offset in the step it belongs to or leads to.
    """
    seen, least = place
    found: list[Emitted] = []
    for row in store.results(key):
        first = emission_offset(row.task)
        if first is None:
            continue
        began, values = codec.decode_state(codec.unseal_result(row))["value"]
        for offset, (task, node, attempt, begins, body) in enumerate(values, first):
            if began > seen or offset >= least:
                found.append(
                    Emitted(
                        seq=began,
                        attempt=attempt,
                        offset=offset,
                        begins=begins,
                        node=node,
                        task=task,
                        value=codec.decode_state(body)["value"],
                    )
                )
    return sorted(found, key=lambda one: one.offset)


def emitted_events(threads: Threads, key: ThreadKey, place: tuple[int, int]) -> list[Event]:
    head = threads.store.head(key)
    found = stored_emissions(threads.store, threads.codec.for_thread(key), key, place)
    return [_event_of_emitted(one, key, head) for one in found] if head else []


def is_kept(event: Event) -> bool:
    return event.type == "emit" and "offset" in event.data


def _event_of_emitted(one: Emitted, key: ThreadKey, head: Entry) -> Event:
    return Event(
        type="emit",
        run_id=head.run_id,
        time=head.created_at,
        key=key,
        step=head.step + 1,
        node=one.node,
        task=one.task,
        attempt=one.attempt,
        update=one.value,
        data={"seq": head.seq, "offset": one.offset, "began": one.seq, "begins": one.begins},
    )


class _Follower:
    """Reads a thread's log as ``state`` events, each with its seq.

    The log is read every ``poll`` seconds; emitted values arrive in between. Stored ones are read
    when their number has changed, and for a tenth of the time at most. Once the thread has
    stopped, late ones get a moment. A log whose last entry is not the one that was seen is another
    one: the thread was deleted, and ``is_gone`` says so.
    """

    def __init__(
        self, threads: Threads, key: ThreadKey, after: int, poll: float, page: int = _PAGE
    ) -> None:
        self._threads = threads
        self._key = key
        self._after = after
        self._poll = poll
        self._size = page
        self._next_look = monotonic()
        self._values: dict[str, Any] | None = None
        self._codec: LogCodec | None = None
        self._mailbox: EmittedQueue | None = None
        self._heard = 0.0
        self._hints = -1
        self._waits_for_hint = False
        self._rested: float | None = None
        self._seen: str | None = None
        self._renames: dict[str, Renames] = {}
        self._rows: tuple[int, int] = (0, 0)
        self._place = (0, 0)
        self._rows_from = 0.0
        self.is_gone = False
        self.is_over = False
        self.end: Callable[[], None] = lambda: None

    def listen(self, wake: Callable[[], None]) -> None:
        key, threads = self._key, self._threads
        mailbox = self._mailbox = EmittedQueue(key, threads.codec.for_thread(key), wake)
        self.end = feed_of(threads.store).subscribe(key, mailbox.put)

    def take(self) -> list[Event]:
        mailbox = self._mailbox
        found = [] if mailbox is None else mailbox.take()
        if mailbox is not None and mailbox.is_hinted:
            mailbox.is_hinted, self._next_look = False, 0.0
        if found:
            self._heard = monotonic()
        return found

    @property
    def patience(self) -> float:
        return max(0.0, self._next_look - monotonic())

    def look(self) -> list[Event]:
        store, key, mailbox = self._threads.store, self._key, self._mailbox
        hints = mailbox.hints if mailbox else 0
        info = store.thread(key)  # before the log: what is appended in between is found there
        info = info and claimed(info)
        newest = store.head(key)
        self.is_gone |= newest is None or self._is_of_another_log(newest)
        found = self._page() if newest is not None and newest.seq > self._after else []
        if not found and mailbox is not None and newest and newest.seq == self._after:
            found = self._emissions(newest)
        is_at_rest = info is None or info.status not in ("queued", "running") or self.is_gone
        self._next_look = monotonic() + (0.0 if found else self._poll)
        self.is_over = False
        if not is_at_rest:
            self._hints = hints  # the next hint says that its run has stopped
        if not is_at_rest or found:
            self._rested = None
        elif mailbox is None:
            self.is_over = True
        else:
            self._rested = self._rested or monotonic()
            is_hint_due = store.feed is not None and mailbox.hints == self._hints
            if self._waits_for_hint and not is_hint_due:
                self._heard = monotonic()  # the hint came: late values get their moment from here
            self._waits_for_hint = is_hint_due
            late = _ON_THE_WAY_AT_MOST if is_hint_due or mailbox.is_open else _ON_THE_WAY
            until = max(self._rested, self._heard) + late
            self.is_over = monotonic() >= until
            self._next_look = monotonic() + self._poll if self.is_over else until
        return found

    def _page(self) -> list[Event]:
        seen = 0 if self._seen is None else 1
        found = self._threads.store.entries(
            self._key, after=self._after - seen, limit=self._size + seen
        )
        if found and self._is_of_another_log(found[0]):
            self.is_gone = True
            return []
        return [self._event(entry) for entry in found if entry.seq > self._after]

    def _emissions(self, head: Entry) -> list[Event]:
        store, key, began = self._threads.store, self._key, monotonic()
        rows = head.step, store.count_results(key, emission_mark(head.step + 1))
        if rows == self._rows or not rows[1] or began < self._rows_from:
            return []
        self._codec = self._codec or self._threads.codec.for_thread(key)
        found = stored_emissions(store, self._codec, key, self._place)
        self._rows_from = monotonic() + 9 * (monotonic() - began)
        self._rows = rows
        if found:
            self._place = found[-1].seq, found[-1].offset + 1
        return [_event_of_emitted(one, key, head) for one in found]

    def _is_of_another_log(self, entry: Entry) -> bool:
        if self._seen is None or entry.seq > self._after:
            return False
        return entry.seq < self._after or entry.id != self._seen

    def _event(self, entry: Entry) -> Event:
        follows = entry.seq == self._after + 1
        self._after, self._seen = entry.seq, entry.id
        threads = self._threads
        if self._values is None or entry.kind != DELTA or not follows:
            self._values = threads.existing(self._key, entry.seq)[0].values
        else:
            if self._codec is None:
                self._codec = threads.codec.for_thread(self._key)
            codec = self._codec
            body = codec.unseal_entry(entry, entry.roll_seq)
            self._values = replay(_copied(self._values), codec.decode(body))
            split(self._values)
            self._values.pop(CONFIG, None)
        renames = self._renames_at(entry)
        nodes, next = (
            tuple(renames.nodes.get(name, name) for name in names)
            for names in (entry.nodes, entry.next)
        )
        return Event(
            type="state",
            run_id=entry.run_id,
            time=entry.created_at,
            key=self._key,
            step=entry.step,
            seq=entry.seq,
            state=threads.graph.schema.view(_under_new_names(self._values, renames)),
            data={"nodes": nodes, "next": next, "source": entry.source},
        )

    def _renames_at(self, entry: Entry) -> Renames:
        if entry.fingerprint not in self._renames:
            self._renames[entry.fingerprint] = self._threads.renames_at(self._key, entry)
        return self._renames[entry.fingerprint]


def _under_new_names(values: dict[str, Any], renames: Renames) -> dict[str, Any]:
    former = {name: values[name] for name in renames.channels if name in values}
    if not former:
        return values
    kept = {name: value for name, value in values.items() if name not in former}
    return kept | {renames.channels[name]: value for name, value in former.items()}


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.copy() if isinstance(value, list | dict | set) else value
        for name, value in values.items()
    }
