"""The feed: emitted values from one process to another, by NOTIFY.

Rules:

- Publishing puts a payload into a buffer. One thread sends the buffer every 20 milliseconds, in one
  statement that is its own transaction: never in that of a commit. If the buffer is full, the
  oldest are dropped; if the server is away, all are.
- Each thread has its own server channel, named by a hash: a reader receives no other values.
  Payloads fitting into one notice (8000 bytes) are sent together; a larger one is dropped.
- Empty payloads say runs may have stopped. There is one for each run, so all threads'
  share a notice on one channel, as these hashes' beginnings. Two that begin alike wake one
  reader too many.
- All a process's readers share one connection, which must not go through a pooler in transaction
  mode. Others' notices are ignored.
"""

from __future__ import annotations

import logging
import os
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from selectors import EVENT_READ, DefaultSelector
from socket import socket, socketpair
from threading import Event, Lock, Thread

import msgspec
import psycopg
from psycopg import sql

from milecastle.errors import StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres.address import ServerAddress
from milecastle.stores.postgres.migrating import connect
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.translating import Lost

_log = logging.getLogger("milecastle")

_SEND = (
    b"SELECT set_config('synchronous_commit', 'off', true), pg_notify(name, payload) "
    b"FROM unnest(%(names)s::text[], %(payloads)s::text[]) AS notice (name, payload)"
)
"""The commit need not wait for the disk: there is nothing to lose that is not lost anyway."""

_PROBE = b"SELECT 1"

_PAUSE = 0.02
"""Seconds between two sendings: what is published meanwhile shares the next one."""

_MOST = 5000
_FULL = 5900
_FRAME = 5
"""How many payloads wait to be sent; how many bytes a notice has before they become text; how many
each payload needs besides its own."""

_PROBES = 10.0
_PATIENCE = 15.0
"""Seconds: after which a reader's connection asks whether the server is there; after which a reader
gives up."""

_BEGINNING = 8
_STOPS = _BEGINNING * 700
"""How many bytes of a hash are in a notice of stops, and how many bytes such a notice has."""

_PARTS = msgspec.msgpack.Decoder(list[bytes])


class PostgresFeed:
    def __init__(self, pool: Pool) -> None:
        self._sender = _Sender(pool)
        self._receiver = _Receiver(pool.address)
        self.publish = self._sender.publish
        self.subscribe = self._receiver.subscribe
        self.subscribe_soon = self._receiver.subscribe_soon

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


@lru_cache(maxsize=4096)
def _digest(schema: str, key: ThreadKey) -> bytes:
    parts = "".join(f"{len(part)}:{part}" for part in (schema, key.tenant, key.thread))
    return sha256(parts.encode("utf-8", "surrogatepass")).digest()[:20]


def _channel(digest: bytes) -> str:
    return f"milecastle_{digest.hex()}"


def _stops(schema: str) -> str:
    return f"milecastle_stops_{sha256(schema.encode()).hexdigest()[:40]}"


class _Sender:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: deque[tuple[ThreadKey, bytes]] = deque(maxlen=_MOST)
        self._wanted = Event()
        self._closed = False
        self._lock = Lock()
        self._pid = 0

    def publish(self, key: ThreadKey, payload: bytes) -> None:
        if len(payload) + _FRAME > _FULL:
            _log.debug("an emitted value of %d bytes is too large to be sent", len(payload))
            return
        if self._pid != os.getpid():  # not started yet, or this is a fork
            self._start()
        self._waiting.append((key, payload))
        self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._waiting = deque(maxlen=_MOST)
                self._wanted = Event()
                Thread(target=self._run, name="milecastle-feed", daemon=True).start()
                self._pid = os.getpid()

    def _run(self) -> None:
        wanted, pause = self._wanted, Event()
        while wanted.wait() and not self._closed:
            pause.wait(_PAUSE)
            wanted.clear()
            names, payloads = self._notices()
            try:
                self._pool.run(_SEND, {"names": names, "payloads": payloads}, "")
            except (StoreError, Lost) as error:
                _log.debug("emitted values could not be sent: %s", error)

    def _notices(self) -> tuple[list[str], list[str]]:
        schema, names, texts = self._pool.address.schema, list[str](), list[str]()
        payloads: dict[bytes, list[bytes]] = {}
        stopped: dict[bytes, None] = {}
        for _ in range(len(self._waiting)):
            key, payload = self._waiting.popleft()
            digest = _digest(schema, key)
            if payload:
                payloads.setdefault(digest, []).append(payload)
            else:
                stopped[digest[:_BEGINNING]] = None
        for digest, some in payloads.items():
            for parts in _filled(some):
                names.append(_channel(digest))
                texts.append(b64encode(msgspec.msgpack.encode(parts)).decode())
        beginnings = b"".join(stopped)
        for start in range(0, len(beginnings), _STOPS):
            names.append(_stops(schema))
            texts.append(b64encode(beginnings[start : start + _STOPS]).decode())
        return names, texts


def _filled(payloads: list[bytes]) -> Iterator[list[bytes]]:
    group, size = list[bytes](), 0
    for payload in payloads:
        needed = len(payload) + _FRAME
        if group and size + needed > _FULL:
            yield group
            group, size = [], 0
        group.append(payload)
        size += needed
    if group:
        yield group


class _Subscription:
    def __init__(self, digest: bytes, heard: Callable[[bytes], None], *, soon: bool) -> None:
        self.digest = digest
        self.heard = heard
        self.ready = Event()
        self._soon = soon

    def begin(self) -> None:
        if not self.ready.is_set():
            self.ready.set()
            if self._soon:
                self.heard(b"")


class _Receiver:
    """One connection for all subscriptions, on its own thread, while there are any.

    A byte through a socket pair tells the thread the subscriptions have changed.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._lock = Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self._change: socket | None = None

    def subscribe(self, key: ThreadKey, heard: Callable[[bytes], None]) -> Callable[[], None]:
        subscription = self._add(key, heard, soon=False)
        if not subscription.ready.wait(_PATIENCE):
            self._end(subscription)
            raise Unavailable(
                f"thread '{key.thread}' cannot be followed: PostgreSQL has not answered within "
                f"{_PATIENCE:.0f} seconds"
            )
        return partial(self._end, subscription)

    def subscribe_soon(self, key: ThreadKey, heard: Callable[[bytes], None]) -> Callable[[], None]:
        return partial(self._end, self._add(key, heard, soon=True))

    def _add(self, key: ThreadKey, heard: Callable[[bytes], None], *, soon: bool) -> _Subscription:
        subscription = _Subscription(_digest(self._address.schema, key), heard, soon=soon)
        with self._lock:
            self._set((*self._subscriptions, subscription))
        return subscription

    def close(self) -> None:
        with self._lock:
            self._set(())

    def _end(self, subscription: _Subscription) -> None:
        with self._lock:
            self._set(tuple(one for one in self._subscriptions if one is not subscription))

    def _set(self, subscriptions: tuple[_Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        if self._change is None and subscriptions:
            changed, self._change = socketpair()
            for end in (changed, self._change):
                end.setblocking(False)
            Thread(target=self._run, args=[changed], name="milecastle-reader", daemon=True).start()
        elif self._change is not None:
            with suppress(BlockingIOError):  # it is full, so the thread will look
                self._change.send(b"!")

    def _wanted(self) -> tuple[_Subscription, ...]:
        with self._lock:
            if not self._subscriptions and self._change is not None:
                self._change.close()
                self._change = None
            return self._subscriptions

    def _run(self, changed: socket) -> None:
        pause = Event()
        with changed:
            while self._wanted():
                try:
                    with connect(self._address) as connection:
                        self._serve(connection, changed)
                    return
                except (StoreError, psycopg.Error) as error:
                    _log.debug("nothing can be received: %s", error)
                    pause.wait(0.5)

    def _serve(self, connection: psycopg.Connection, changed: socket) -> None:
        known: tuple[_Subscription, ...] = ()
        listening: dict[str, list[_Subscription]] = {}
        stops = _stops(self._address.schema)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(stops)))
        with DefaultSelector() as selector:
            selector.register(connection.fileno(), EVENT_READ)
            selector.register(changed, EVENT_READ)
            while wanted := self._wanted():
                if wanted is not known:
                    known, listening = wanted, _listen(connection, wanted, listening)
                for notice in connection.notifies(timeout=0):
                    if notice.channel == stops:
                        _deliver_stops(notice, known)
                    else:
                        _deliver(notice, listening.get(notice.channel, []))
                if not selector.select(_PROBES):
                    connection.execute(_PROBE)
                with suppress(BlockingIOError):
                    changed.recv(4096)


def _listen(
    connection: psycopg.Connection,
    wanted: tuple[_Subscription, ...],
    before: dict[str, list[_Subscription]],
) -> dict[str, list[_Subscription]]:
    channels: dict[str, list[_Subscription]] = {}
    for subscription in wanted:
        channels.setdefault(_channel(subscription.digest), []).append(subscription)
    for name in channels.keys() - before.keys():
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
    for name in before.keys() - channels.keys():
        connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(name)))
    for subscription in wanted:
        subscription.begin()
    return channels


def _deliver(notice: psycopg.Notify, subscriptions: list[_Subscription]) -> None:
    try:
        parts = _PARTS.decode(b64decode(notice.payload, validate=True))
    except (ValueError, msgspec.MsgspecError):
        _log.debug("a notice on %s is none of milecastle's", notice.channel)
        return
    for subscription in subscriptions:
        for part in parts:
            subscription.heard(part)


def _deliver_stops(notice: psycopg.Notify, subscriptions: tuple[_Subscription, ...]) -> None:
    try:
        found = b64decode(notice.payload, validate=True)
    except ValueError:
        _log.debug("a notice on %s is none of milecastle's", notice.channel)
        return
    starts = range(0, len(found), _BEGINNING)
    stopped = {found[start : start + _BEGINNING] for start in starts}
    for subscription in subscriptions:
        if subscription.digest[:_BEGINNING] in stopped:
            subscription.heard(b"")
