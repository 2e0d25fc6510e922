"""A run is submitted, and a message sent, in a transaction of the caller: both commit, or none."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from milecastle import App, Conflict, InvalidRequest, Keyring, Store, ThreadKey
from milecastle.errors import Unavailable
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.sqlite import SqliteStore
from tests.acceptance.fleet.working import Trip, line, note, start, work
from tests.every_store import Stores

KEY = ThreadKey("default", "order")
ROWS = "SELECT count(*) FROM orders"


class Desk(msgspec.Struct):
    """A store, and how its user connects to the same database."""

    store: Any
    kind: str
    place: str
    url: str

    def connect(self, **options: Any) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.place, **options)
        return psycopg.connect(self.place, **options)

    def app(self, **options: Any) -> App[Trip]:
        return line(self.store, ("a", note("a")), **options)

    def orders(self) -> int:
        with closing(self.connect()) as mine:
            return int(mine.execute(ROWS).fetchone()[0])


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    stores = Stores(tmp_path)
    store: Any = stores.open(request.param)
    if isinstance(store, PostgresStore):
        place = conninfo_of(store)
    else:
        assert isinstance(store, SqliteStore)
        place = store.path
    found = Desk(store, request.param, place, stores.url(request.param))
    with closing(found.connect()) as mine:
        mine.execute("DROP TABLE IF EXISTS orders")
        mine.execute("CREATE TABLE orders (name text)")
        mine.commit()
    yield found
    stores.close()


def conninfo_of(store: Store) -> str:
    """The same database, as its user knows it."""
    known: dict[str, Any] = vars(store)
    return make_conninfo(**known["_address"].connect)


def insert(mine: Any) -> None:
    mine.execute("INSERT INTO orders VALUES ('order')")


@pytest.mark.requirement("M8")
def test_a_commit_leaves_both_and_a_rollback_nothing(desk: Desk) -> None:
    """Was broken: the batch committed by the store's own connection."""
    app = desk.app()
    with closing(desk.connect()) as mine:
        insert(mine)
        handle = app.submit(start(), "order", connection=mine, tags=("x",))
        assert handle.status == "queued"
        assert app.store.head(KEY) is None
        mine.rollback()
        assert (app.store.head(KEY), desk.orders()) == (None, 0)
        app.submit(start(), "order", connection=mine)
        insert(mine)
        mine.commit()
    assert desk.orders() == 1
    app.notify_workers()
    work(app)
    assert app.state("order").state["log"] == ["a"]
    with closing(desk.connect()) as mine:
        assert app.submit(start(), "order", connection=mine).reused


def test_a_message_is_part_of_the_transaction(desk: Desk) -> None:
    """Was broken: the message stored by the store's own connection."""
    app = desk.app()
    app.submit(start(), "order")
    with closing(desk.connect()) as mine:
        insert(mine)
        app.send("order", "paid", "news", key="k", connection=mine)
        assert list(app.mailbox("order")) == []
        mine.rollback()
        assert (list(app.mailbox("order")), desk.orders()) == ([], 0)
        insert(mine)
        sent = app.send("order", "paid", "news", key="k", connection=mine)
        mine.commit()
        assert not sent.reused
        assert app.send("order", "paid", "news", key="k", connection=mine).reused
        mine.rollback()
        with pytest.raises(InvalidRequest, match="nothing"):
            app.send("nothing", "x", connection=mine)
        app.submit(start(), "new", connection=mine)
        app.send("new", "hello", connection=mine)
        mine.commit()
    assert [one.value for one in app.mailbox("new")] == ["hello"]
    assert [one.value for one in app.mailbox("order")] == ["paid"]
    assert desk.orders() == 1


def test_a_lost_connection_of_the_store_is_unavailable(desk: Desk) -> None:
    """Was broken: an internal error was raised."""
    app = desk.app()
    app.submit(start(), "order")
    if desk.kind == "sqlite":
        return
    with closing(desk.connect()) as mine:
        insert(mine)
        mine.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with pytest.raises(Unavailable, match="the caller's transaction"):
            app.send("order", "paid", "news", key="k", connection=mine)
        assert not app.send("order", "paid", "news", key="k", connection=mine).reused
        mine.commit()
    assert ([one.value for one in app.mailbox("order")], desk.orders()) == (["paid"], 1)


def test_a_key_sent_by_two_transactions_at_once_is_one_message(desk: Desk) -> None:
    """The second waits for the first, then finds its message, and goes on. Was refused as a full
    mailbox on PostgreSQL.
    """
    if desk.kind == "sqlite":
        pytest.skip("one writer at a time")
    app = desk.app()
    app.submit(start(), KEY)
    with closing(desk.connect()) as mine, closing(desk.connect()) as other:
        first = app.send(KEY, "x", "late", key="k", connection=mine)
        pid = other.info.backend_pid
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(app.send, KEY, "x", "late", key="k", connection=other)
            with closing(desk.connect(autocommit=True)) as watching:
                query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
                while watching.execute(query, [pid]).fetchone() != ("Lock",):
                    assert not sending.done()
            mine.commit()
            second = sending.result(30)
        other.execute("INSERT INTO orders VALUES ('b')")
        other.commit()
    assert (second.number, second.reused) == (first.number, True)
    assert len(app.mailbox(KEY)) == desk.orders() == 1


def test_a_refused_submit_leaves_the_transaction_usable(desk: Desk) -> None:
    """Was broken: no savepoint, so that an error of ours ended the caller's transaction."""
    app = desk.app()
    with closing(desk.connect()) as mine:
        insert(mine)
        app.submit(start(), "order", connection=mine)
        with pytest.raises(Conflict):  # the thread is new to other connections, and there to this
            app.submit({"n": 1, "log": []}, "order", connection=mine)
        insert(mine)
        mine.commit()
    assert desk.orders() == 2
    work(app)
    assert app.state("order").state["log"] == ["a"]


def test_a_connection_without_a_transaction_is_refused(desk: Desk) -> None:
    """Was broken: in autocommit each statement is a transaction of its own."""
    app = desk.app()
    options = {"isolation_level": None} if desk.kind == "sqlite" else {"autocommit": True}
    with closing(desk.connect(**options)) as mine:
        with pytest.raises(InvalidRequest, match="autocommit"):
            app.submit(start(), "order", connection=mine)
        mine.execute("BEGIN")
        app.submit(start(), "order", connection=mine)
        mine.execute("ROLLBACK")
    with pytest.raises(InvalidRequest, match=r"closed|cannot be used"):
        app.submit(start(), "order", connection=mine)
    with pytest.raises(InvalidRequest, match=r"not builtins\.object"):
        app.submit(start(), "order", connection=object())
    assert app.store.head(KEY) is None


def test_a_connection_to_another_database_is_refused(desk: Desk, tmp_path: Path) -> None:
    """Was broken: the batch written to whatever database the connection is of."""
    app = desk.app()
    other = Stores(tmp_path / "other")
    (tmp_path / "other").mkdir(exist_ok=True)
    try:
        second: Any = other.open(desk.kind)
        place = second.path if desk.kind == "sqlite" else conninfo_of(second)
        if desk.kind == "sqlite":
            mine: Any = sqlite3.connect(place)
        else:
            with closing(desk.connect(autocommit=True)) as server:
                server.execute("CREATE DATABASE elsewhere")
            mine = psycopg.connect(place, dbname="elsewhere")
        with closing(mine), pytest.raises(InvalidRequest, match="one transaction needs one"):
            app.submit(start(), "order", connection=mine)
    finally:
        if desk.kind == "postgres":
            with closing(desk.connect(autocommit=True)) as server:
                server.execute("DROP DATABASE elsewhere")
        other.close()
    assert app.store.head(KEY) is None


def test_what_is_not_one_write_is_refused(desk: Desk) -> None:
    """Was broken: the waiting input stored by the store's own connection."""
    app = desk.app()
    with closing(desk.connect()) as mine:
        for given in ({"if_busy": "queue"}, {"if_busy": "cancel"}, {"instead_of": "run"}):
            options: Any = given
            with pytest.raises(InvalidRequest, match="caller's transaction"):
                app.submit(start(), "order", connection=mine, **options)
    memory = line(MemoryStore(), ("a", note("a")))
    with pytest.raises(InvalidRequest, match="MemoryStore"):
        memory.submit(start(), "order", connection=mine)


def test_an_encrypted_thread_needs_its_key_before(desk: Desk) -> None:
    """Was broken: the key written by another connection, which waited for the caller's lock."""
    app = desk.app(encryption=Keyring({"main": b"k" * 32}, store=desk.store))
    with closing(desk.connect()) as mine:
        insert(mine)
        with pytest.raises(InvalidRequest, match=r"app\.create_key\('order'\)"):
            app.submit(start(), "order", connection=mine)
        mine.rollback()
        app.create_key("order")
        insert(mine)
        app.submit(start(), "order", connection=mine)
        mine.commit()
    work(app)
    assert app.state("order").state["log"] == ["a"]


def test_a_failed_transaction_and_an_async_connection_are_refused(tmp_path: Path) -> None:
    """Was broken: psycopg's own errors, from inside our statements."""
    stores = Stores(tmp_path)
    store = stores.open("postgres")
    app = line(store, ("a", note("a")))
    with closing(psycopg.connect(conninfo_of(store))) as mine:
        with suppress(psycopg.Error):
            mine.execute("SELECT 1 / 0")
        with pytest.raises(InvalidRequest, match="has failed: roll it back"):
            app.submit(start(), "order", connection=mine)
        mine.rollback()
        with mine.pipeline(), pytest.raises(InvalidRequest, match="pipeline"):
            app.submit(start(), "order", connection=mine)
        later: Any = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)
        with pytest.raises(InvalidRequest, match="AsyncConnection"):
            app.submit(start(), "order", connection=later)
        mine.rollback()
        mine.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        mine.execute("SELECT 1")
        app.submit(start(), "order")
        work(app)
        with pytest.raises((Conflict, Unavailable)):  # its snapshot is from before the thread
            app.submit({"n": 5, "log": []}, "order", connection=mine)
    stores.close()


KILLED = """
import os, signal, sqlite3, sys
import psycopg
from milecastle.stores.opening import find_store
from tests.acceptance.fleet.working import line, note, start
kind, url, place, thread, when = sys.argv[1:]
app = line(find_store(url), ("a", note("a")))
mine = sqlite3.connect(place) if kind == "sqlite" else psycopg.connect(place)
mine.execute("INSERT INTO orders VALUES ('" + thread + "')")
app.submit(start(), thread, connection=mine)
if when == "before":
    os.kill(os.getpid(), signal.SIGKILL)
mine.rollback() if when == "rollback" else mine.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.requirement("M8")
def test_a_killed_caller_leaves_both_or_none(desk: Desk) -> None:
    """Was broken (as above): the run of a caller that died before its commit was there."""
    moments = ["before", "after", "rollback"]
    for number, when in enumerate(moments):
        given = [desk.kind, desk.url, desk.place, f"t{number}", when]
        here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", KILLED, *given], env=here, check=False)
        assert done.returncode == -9
    with closing(desk.connect()) as mine:
        stored = [row[0] for row in mine.execute("SELECT name FROM orders").fetchall()]
    store: Store = desk.store
    threads = [f"t{n}" for n in range(3) if store.head(ThreadKey("default", f"t{n}")) is not None]
    assert stored == threads == ["t1"]
