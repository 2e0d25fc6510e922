"""Emitted values on PostgreSQL: from a worker in one process to a reader in another."""

from __future__ import annotations

import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Event as Flag
from threading import Thread
from typing import Any, cast

import msgspec
import pytest
from psycopg import sql

from milecastle import App, Event, ThreadKey, Unavailable
from milecastle.app.emitting import feed_of
from milecastle.app.encryption.keyring import Keyring
from milecastle.fleet.worker import Worker
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore, feed, migrating
from milecastle.stores.postgres.feed import PostgresFeed
from milecastle.stores.postgres.pool import Pool
from tests.acceptance.fleet.working import work
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster, wait_until
from tests.process.fleet_chaos import ROOT
from tests.process.fleet_emitting import Speech, build

pytestmark = needs_postgres

KEY = ThreadKey("default", "t")


@pytest.fixture
def url() -> str:
    return the_cluster().url_of(new_schema())


@pytest.fixture
def app(url: str) -> Iterator[App[Speech]]:
    app = build().compile(store=PostgresStore(url))
    yield app
    app.close()


def speech(count: int, text: str = "") -> dict[str, Any]:
    return {"count": count, "rate": 0.0, "text": text, "took": []}


@contextmanager
def a_worker(url: str) -> Generator[None, None, None]:
    """A worker in another process."""
    command = [sys.executable, "-m", "milecastle", "worker", "tests.process.fleet_emitting:app"]
    process = subprocess.Popen([*command, "--store", url], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Reader:
    """Follows a thread from a thread of this process."""

    def __init__(self, app: App[Speech], thread: str, gate: Flag | None = None) -> None:
        self.events: list[Event[Speech]] = []
        self._source = app.follow(thread, emitted=True)
        self._gate = gate
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: bool(self.events), 30)  # it has read the log, and so it listens

    def _read(self) -> None:
        for event in self._source:
            self.events.append(event)
            if self._gate is not None:
                self._gate.wait(60)

    def numbers(self) -> list[int]:
        """What was emitted, once the thread has stopped."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [event.update[0] for event in self.events if event.type == "emit"]


@pytest.mark.requirement("F12")
def test_values_emitted_in_another_process_arrive_in_order(app: App[Speech], url: str) -> None:
    """Fails if the worker's process does not send, or the reader's does not listen."""
    app.submit(speech(200, "x" * 100), "t")
    reader = Reader(app, "t")
    with a_worker(url):
        assert reader.numbers() == list(range(200))
    assert not [event for event in reader.events if event.type == "missed"]


@pytest.mark.requirement("F12")
def test_a_slow_reader_slows_no_node_and_learns_what_it_missed(app: App[Speech], url: str) -> None:
    """It reads nothing until the run is over. Fails if it is not told, or if the node waits."""
    count, gate = 30_000, Flag()
    app.submit(speech(count), "t")
    reader = Reader(app, "t", gate)
    worker = build().compile(store=PostgresStore(url))
    work(worker)
    worker.close()
    assert app.state("t").status == "completed"
    gate.set()
    numbers = reader.numbers()
    missed = sum(event["count"] for event in reader.events if event.type == "missed")
    assert missed > 0
    assert numbers == sorted(numbers)
    assert len(numbers) + missed <= max(numbers) + 1


def test_publishing_never_waits_for_a_server_that_hangs(url: str) -> None:
    """Fails if ``publish`` sends by itself, or if the buffer has no bound: then all are sent."""
    hangs, sent, store = Flag(), list[int](), PostgresStore(url)

    class Hanging:
        address = store._pool.address  # pyright: ignore[reportPrivateUsage]

        def run(self, query: bytes, parameters: dict[str, Any], tenant: str) -> None:
            sent.append(sum(map(len, parameters["payloads"])))
            hangs.wait(60)
            raise Unavailable("on purpose")

    made = PostgresFeed(cast("Pool", Hanging()))
    try:
        made.publish(KEY, b"first")
        wait_until(lambda: len(sent) >= 1, 30)
        for _ in range(50_000):
            made.publish(KEY, bytes(10))
        hangs.set()
        wait_until(lambda: len(sent) >= 2, 30)
    finally:
        made.close()
        store.close()
    assert sent[1] < 50_000 * 10
    assert sent[1] > feed._MOST * 10  # pyright: ignore[reportPrivateUsage]


def test_a_payload_that_does_not_fit_is_dropped(url: str) -> None:
    """The others arrive. Fails if the server refuses all of a batch because of one."""
    stores = PostgresStore(url), PostgresStore(url)
    heard: list[bytes] = []
    end = stores[0].feed.subscribe(KEY, heard.append)
    payloads = [b"a", bytes(5895), bytes(5896), bytes(100_000), b"b", bytes(3000), bytes(3000)]
    for payload in payloads:
        stores[1].feed.publish(KEY, payload)
    fitting = [payload for payload in payloads if len(payload) <= 5895]
    wait_until(lambda: len(heard) == len(fitting), 30)
    assert heard == fitting
    end()
    for store in stores:
        store.close()


def test_a_reader_hears_only_its_thread_and_again_after_its_connection_was_lost(url: str) -> None:
    """Fails if channels are shared, or without the outer loop of the receiver."""
    stores = PostgresStore(url), PostgresStore(the_cluster().url_of(new_schema()))
    heard: list[bytes] = []
    end = stores[0].feed.subscribe(KEY, heard.append)
    other = stores[0].feed.subscribe(ThreadKey("default", "other"), lambda payload: None)
    stores[1].feed.publish(KEY, b"another schema")
    stores[0].feed.publish(ThreadKey("other", "t"), b"another tenant")
    stores[0].feed.publish(KEY, b"ours")
    wait_until(lambda: bool(heard), 30)
    assert heard == [b"ours"]
    other()
    the_cluster().execute(
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        b"WHERE query LIKE '%LISTEN%milecastle_%' AND pid <> pg_backend_pid()"
    )

    def arrives() -> bool:
        stores[0].feed.publish(KEY, b"again")
        return b"again" in heard

    wait_until(arrives, 30)
    end()
    for store in stores:
        store.close()


def test_notices_of_others_are_ignored(url: str) -> None:
    """Fails if noise ends the thread that receives."""
    store, heard = PostgresStore(url), list[bytes]()
    end = store.feed.subscribe(KEY, heard.append)
    ((channel,),) = the_cluster().execute(
        b"SELECT substring(query FROM 'milecastle_[0-9a-f]+') FROM pg_stat_activity "
        b"WHERE query LIKE 'LISTEN \"milecastle_%' ORDER BY backend_start DESC LIMIT 1"
    )
    for noise in ("", "not base64!", b64encode(msgspec.msgpack.encode([1])).decode()):
        the_cluster().execute(
            sql.SQL("SELECT pg_notify({}, {})").format(sql.Literal(channel), sql.Literal(noise))
        )
    store.feed.publish(KEY, b"ours")
    wait_until(lambda: bool(heard), 30)
    assert heard == [b"ours"]
    end()
    store.close()


def test_a_server_that_does_not_answer_is_reported(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a reader waits forever, or reads on without the values that it asked for."""
    store = PostgresStore(url)
    monkeypatch.setattr(feed, "_PATIENCE", 0.3)

    def away(address: object) -> Any:
        raise Unavailable("on purpose")

    monkeypatch.setattr(feed, "connect", away)
    with pytest.raises(Unavailable, match="cannot be followed"):
        store.feed.subscribe(KEY, lambda payload: None)
    store.close()


def test_subscribing_soon_does_not_wait_for_the_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told when it hears. Fails if it waits: with a server that is away, that takes 15 s."""
    store, heard, honest = PostgresStore(url), list[bytes](), migrating.connect
    is_away = True

    def connect(address: Any) -> Any:
        if is_away:
            raise Unavailable("on purpose")
        return honest(address)

    monkeypatch.setattr(feed, "connect", connect)
    end = store.feed.subscribe_soon(KEY, heard.append)
    assert heard == []
    is_away = False
    wait_until(lambda: heard == [b""], 30)
    store.feed.publish(KEY, b"ours")
    wait_until(lambda: heard == [b"", b"ours"], 30)
    end()
    store.close()


def test_emitted_values_of_an_encrypted_app_are_not_readable_on_the_server(url: str) -> None:
    """Fails if the publisher's codec is not that of the thread."""
    keys = MemoryStore()
    keyring = Keyring({"a": bytes(32)}, store=keys)
    app = build().compile(store=PostgresStore(url), encryption=keyring)
    seen: list[bytes] = []
    app.submit(speech(3, "a secret text"), "t")
    end = feed_of(app.store).subscribe(KEY, seen.append)
    reader = Reader(app, "t")
    work(app)
    assert reader.numbers() == [0, 1, 2]
    assert [event.update[2] for event in reader.events if event.type == "emit"] == [
        "a secret text"
    ] * 3
    assert len([payload for payload in seen if payload]) == 3
    assert b"secret" not in b"".join(seen)
    end()
    app.close()


def test_workers_do_not_need_the_feed(url: str) -> None:
    """A feed that raises nothing and sends nothing: the run ends as it would."""
    app = build().compile(store=PostgresStore(url))
    assert isinstance(app.store, PostgresStore)
    app.store.feed.close()
    app.submit(speech(100), "t")
    work(app)
    assert app.state("t").status == "completed"
    assert Worker([app]).running == 0
    app.close()
