"""The bell: tells workers in other processes a thread is due, before they look.

Rules:

- It is a hint. One that is lost, late or doubled delays a run until workers look by themselves.
- It rings after a commit and never inside: a NOTIFY in a transaction is committed under a
  cluster-wide lock. Many commits are one ring.
- Its commit does not wait for the disk: runs that are being committed need that.
- Listening takes one connection, which must not go through a pooler in transaction mode.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from selectors import EVENT_READ, DefaultSelector
from socket import socketpair
from threading import Event, Thread
from time import monotonic

import psycopg

from milecastle.errors import StoreError
from milecastle.stores.postgres.address import ServerAddress
from milecastle.stores.postgres.migrating import connect
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.translating import Lost

_log = logging.getLogger("milecastle.fleet")

_RING = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify('milecastle', %(schema)s)"
_LISTEN = b"LISTEN milecastle"
_PROBE = b"SELECT 1"

_PAUSE = 0.01
"""Seconds between two rings: what is committed meanwhile shares the next one."""

_PROBES = 10.0
_DEAF = 30.0
"""After how many silent seconds a listener asks whether its connection is still there, and after
how many without an answer it is considered deaf."""


class DueListener:
    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._wanted = Event()
        self._closed = False
        self._pid = 0

    def ring(self) -> None:
        if self._pid != os.getpid():  # not started yet, or this is a fork
            self._pid = os.getpid()
            self._wanted = Event()
            Thread(target=self._run, name="milecastle-bell", daemon=True).start()
        self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _run(self) -> None:
        wanted, pause = self._wanted, Event()
        while wanted.wait() and not self._closed:
            wanted.clear()
            try:
                self._pool.run(_RING, {"schema": self._schema}, "")
            except (StoreError, Lost) as error:
                _log.debug("the bell could not be rung: %s", error)
            pause.wait(_PAUSE)


class Listener:
    """Calls ``heard`` on each notice, on its own thread and connection, until closed."""

    def __init__(self, address: ServerAddress, heard: Callable[[], None]) -> None:
        self._address = address
        self._heard = heard
        self._answered: float | None = None
        self._closed = Event()
        self._hung_up, self._hang_up = socketpair()
        self._thread = Thread(target=self._run, name="milecastle-listener", daemon=True)
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        answered = self._answered
        return answered is not None and monotonic() - answered < _DEAF

    def close(self) -> None:
        self._closed.set()
        self._hang_up.close()  # which ends what the thread waits for
        self._thread.join()
        self._hung_up.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._address) as connection:
                    self._listen(connection)
            except (StoreError, psycopg.Error) as error:
                _log.debug("the bell is not heard: %s", error)
                self._answered = None
                self._closed.wait(1.0)

    def _listen(self, connection: psycopg.Connection) -> None:
        connection.execute(_LISTEN)
        self._answered = monotonic()
        self._heard()  # what rang before is not known
        with DefaultSelector() as selector:
            selector.register(connection.fileno(), EVENT_READ)
            selector.register(self._hung_up, EVENT_READ)
            while not self._closed.is_set():
                if not selector.select(_PROBES):
                    connection.execute(_PROBE)
                rang = [found.payload for found in connection.notifies(timeout=0)]
                self._answered = monotonic()
                if self._address.schema in rang:
                    self._heard()
