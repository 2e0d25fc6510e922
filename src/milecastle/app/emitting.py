"""Emitted values on their way to readers in other processes, or elsewhere in this one.

Rules:

- A value is encoded by its thread's codec, and so encrypted if the thread is. Values without an
  encoding are left out: emitting never fails a node.
- A publisher numbers its values. A reader counts the numbers it has not seen: whatever
  was lost on the way, and whatever the reader itself was too slow for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import msgspec.structs

from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.errors import CodecError, EncryptionError, UnserializableState
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.ports.feed import Feed
from milecastle.ports.store import Store
from milecastle.support.prepared import prepared
from milecastle.support.printable import printable

if TYPE_CHECKING:
    from logging import Logger

_PLACE = PayloadPlace(task="emit")
"""Where a payload is sealed for: no position of the log has it."""

_ROOM = 10_000
"""How many payloads wait for a reader; then the oldest are dropped."""


@prepared
class _Emitted(msgspec.Struct, frozen=True, kw_only=True):
    publisher: str
    number: int
    run_id: str
    time: int
    thread: str
    step: int
    node: str
    task: str
    attempt: int
    value: Any


class Publisher:
    def __init__(self, feed: Feed, key: ThreadKey, codec: LogCodec) -> None:
        self._feed = feed
        self._key = key
        self._codec = codec
        self._id = ""
        self._number = 0
        self._lock = Lock()
        self._has_refused = False

    def publish(self, event: Event) -> None:
        with self._lock:  # so that numbers are in the order in which payloads are published
            self._id = self._id or os.urandom(8).hex()
            self._number += 1
            emitted = _Emitted(
                publisher=self._id,
                number=self._number,
                run_id=event.run_id,
                time=event.time,
                thread=event.key.thread if event.key else self._key.thread,
                step=event.step,
                node=event.node or "",
                task=event.task or "",
                attempt=event.attempt or 1,
                value=event.update,
            )
            try:
                body = self._codec.encode_state(msgspec.structs.asdict(emitted), node=event.node)
            except UnserializableState as error:
                self._refuse(event, error)
                return
            self._feed.publish(self._key, self._codec.seal(body, _PLACE))

    def _refuse(self, event: Event, error: UnserializableState) -> None:
        if not self._has_refused:
            self._has_refused = True
            _logger().warning(
                "thread '%s', node '%s': a value of type %s was emitted that cannot be sent to "
                "other processes: emit plain data, or a type of the state",
                printable(self._key.thread),
                printable(event.node or ""),
                printable(error.type_name),
            )


def _logger() -> Logger:
    import logging

    return logging.getLogger("milecastle")


class EmittedQueue:
    """Events a reader has not taken yet. ``wake`` is called from any thread on news.

    ``is_hinted``: the thread's log or its stored values have changed. ``hints`` counts how often;
    publishers give one when a run stops, behind its values. ``is_open``: values came, and no hint
    since.
    """

    def __init__(self, key: ThreadKey, codec: LogCodec, wake: Callable[[], None]) -> None:
        self._key = key
        self._codec = codec
        self._wake = wake
        self._waiting: deque[bytes] = deque(maxlen=_ROOM)
        self._dropped: bytes | None = None
        self._seen: dict[str, int] = {}
        self.is_hinted = False
        self.hints = 0
        self.is_open = False

    def put(self, payload: bytes) -> None:
        self.is_open = bool(payload)
        if not payload:
            self.hints += 1
            self.is_hinted = True
            self._wake()
            return
        if len(self._waiting) == self._waiting.maxlen and self._dropped is None:
            with suppress(IndexError):  # the reader has just taken them
                self._dropped = self._waiting[0]
        was_empty = not self._waiting
        self._waiting.append(payload)
        if was_empty:  # otherwise the reader has been woken, and takes until nothing is left
            self._wake()

    def take(self) -> list[Event]:
        found: list[Event] = []
        dropped, self._dropped = self._dropped, None
        if dropped is not None and (first := self._open(dropped)) is not None:
            self._seen.setdefault(first.publisher, first.number - 1)
        while self._waiting:
            emitted = self._open(self._waiting.popleft())
            if emitted is None:
                continue
            before = self._seen.get(emitted.publisher, emitted.number - 1)
            self._seen[emitted.publisher] = emitted.number
            if missing := emitted.number - before - 1:
                found.append(self._missed(emitted, missing))
            found.append(self._event(emitted))
        return found

    def _open(self, payload: bytes) -> _Emitted | None:
        try:
            fields = self._codec.decode_state(self._codec.unseal(payload, _PLACE))
            return msgspec.convert(fields, _Emitted)
        except (CodecError, EncryptionError, msgspec.ValidationError) as error:
            _logger().debug("an emitted value cannot be read: %s", error)
            return None

    def _event(self, emitted: _Emitted) -> Event:
        return Event(
            type="emit",
            run_id=emitted.run_id,
            time=emitted.time,
            key=ThreadKey(self._key.tenant, emitted.thread),
            step=emitted.step,
            node=emitted.node,
            task=emitted.task,
            attempt=emitted.attempt,
            update=emitted.value,
        )

    def _missed(self, emitted: _Emitted, count: int) -> Event:
        data = {"count": count}
        return Event(
            type="missed", run_id=emitted.run_id, time=emitted.time, key=self._key, data=data
        )


class _LocalFeed:
    def __init__(self) -> None:
        self._lock = Lock()
        self._heard: dict[ThreadKey, tuple[Callable[[bytes], None], ...]] = {}

    def publish(self, key: ThreadKey, payload: bytes) -> None:
        for heard in self._heard.get(key, ()):
            heard(payload)

    def subscribe(self, key: ThreadKey, heard: Callable[[bytes], None]) -> Callable[[], None]:
        with self._lock:
            self._heard[key] = (*self._heard.get(key, ()), heard)

        def end() -> None:
            with self._lock:
                left = tuple(other for other in self._heard.pop(key, ()) if other is not heard)
                if left:
                    self._heard[key] = left

        return end

    subscribe_soon = subscribe


_local: WeakKeyDictionary[Store, _LocalFeed] = WeakKeyDictionary()


def notify_rest(store: Store, key: ThreadKey) -> None:
    """Wake callers waiting for a thread: its run may have stopped. A hint."""
    feed_of(store).publish(key, b"")


def feed_of(store: Store) -> Feed:
    return store.feed or _local.setdefault(store, _LocalFeed())
