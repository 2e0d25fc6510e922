"""``ctx.transaction``: a node's own rows and the record of them are there together, or neither."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from socket import SHUT_RDWR, socket
from threading import Event, Thread
from typing import Annotated, Any, TypedDict

import msgspec.structs
import psycopg
import pytest

from milecastle import (
    END,
    START,
    Conflict,
    Context,
    ExecutionError,
    MilecastleError,
    Retry,
    StateGraph,
    Store,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.translating import Lost
from tests.postgres_cluster import fresh_store, needs_postgres, the_cluster

pytestmark = needs_postgres


class Order(TypedDict):
    log: Annotated[list[int], append]


def nothing() -> None:
    """What a node does after its payment, unless a test says otherwise."""


class Ledger:
    """A graph whose node writes its own row into its own table."""

    def __init__(self, store: Store) -> None:
        self.calls = 0
        self.after: Callable[[], object] = nothing
        graph: StateGraph[Order] = StateGraph(Order)
        graph.add_node("pay", self.pay)
        graph.add_edges(START, "pay", END)
        self.app = graph.compile(store=store)
        with the_cluster().connect() as connection:
            connection.execute("DROP TABLE IF EXISTS payments")
            connection.execute("CREATE TABLE payments (number int PRIMARY KEY)")

    def pay(self, state: Order, ctx: Context) -> dict[str, Any]:
        number = ctx.transaction("pay", self.write)
        self.after()
        return {"log": [number]}

    def write(self, connection: Any) -> int:
        self.calls += 1
        connection.execute("INSERT INTO payments VALUES (%s)", (self.calls,))
        return self.calls

    def rows(self) -> int:
        with the_cluster().connect() as connection:
            found = connection.execute("SELECT count(*) FROM payments").fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture(name="store")
def a_store() -> Iterator[PostgresStore]:
    yield from fresh_store()


@pytest.fixture(name="ledger")
def a_ledger(store: PostgresStore) -> Ledger:
    return Ledger(store)


def fail() -> None:
    raise ValueError("on purpose")


def test_rows_and_record_are_written_together(ledger: Ledger) -> None:
    assert ledger.app.invoke({"log": []}, "t")["log"] == [1]
    assert (ledger.rows(), ledger.calls) == (1, 1)


def test_a_node_that_fails_afterwards_does_not_pay_twice(ledger: Ledger) -> None:
    ledger.after = fail
    with pytest.raises(ExecutionError):
        ledger.app.invoke({"log": []}, "t")
    ledger.after = nothing
    assert ledger.app.resume("t")["log"] == [1]
    assert (ledger.rows(), ledger.calls) == (1, 1)


def test_a_node_that_asks_afterwards_does_not_pay_twice(ledger: Ledger) -> None:
    ledger.after = lambda: interrupt("Ship it?", answer=bool)
    assert ledger.app.invoke({"log": []}, "t").status == "interrupted"
    assert ledger.app.resume("t", answer=True).status == "completed"
    assert (ledger.rows(), ledger.calls) == (1, 1)


def test_what_fails_inside_leaves_neither_rows_nor_record(ledger: Ledger) -> None:
    def twice(connection: Any) -> int:
        ledger.write(connection)
        connection.execute("INSERT INTO payments VALUES (%s)", (ledger.calls,))
        return 0

    def pay(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.transaction("pay", twice)]}

    graph: StateGraph[Order] = StateGraph(Order)
    graph.add_node("pay", pay)
    graph.add_edges(START, "pay", END)
    app = graph.compile(store=ledger.app.store)
    with pytest.raises(ExecutionError) as caught:
        app.invoke({"log": []}, "t")
    assert isinstance(caught.value.cause, psycopg.errors.UniqueViolation)
    assert ledger.rows() == 0


def test_a_writer_that_was_superseded_leaves_no_rows(ledger: Ledger, store: PostgresStore) -> None:
    """The record is refused by the fence, and the rows go with it."""
    ledger.app.invoke({"log": []}, "t")
    key = ThreadKey("default", "t")

    def late(connection: Any) -> Batch:
        ledger.write(connection)
        chain = store.read(key, 1)
        assert chain is not None
        return Batch(key=key, head=1, results=())

    with pytest.raises(Conflict):
        store.transact(key, late)
    assert ledger.rows() == 1


def test_other_stores_say_that_they_cannot() -> None:
    ledger = Ledger(MemoryStore())
    with pytest.raises(ExecutionError) as caught:
        ledger.app.invoke({"log": []}, "t")
    assert "postgresql://" in str(caught.value.cause)
    assert ledger.calls == 0


class Paused:
    """Stops a writer between its record and its COMMIT, as a suspended process would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_there, self.may_continue = Event(), Event()
        commit = psycopg.Transaction.__exit__

        def exit_later(transaction: Any, *raised: Any) -> Any:
            if not self.is_there.is_set():
                self.is_there.set()
                self.may_continue.wait(60)
            return commit(transaction, *raised)

        monkeypatch.setattr(psycopg.Transaction, "__exit__", exit_later)


def test_a_writer_that_stops_before_its_commit_does_not_pay_beside_another(
    ledger: Ledger, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: a takeover did not wait for the transaction, paid, and then both had paid.

    Once the transaction is over, either of them may be the first to commit the step.
    """
    paused = Paused(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ledger.app.invoke, {"log": []}, "t")
        assert paused.is_there.wait(60)
        second = pool.submit(lambda: ledger.app.resume("t", take_over=True))
        wait([second], timeout=1.0)
        paused.may_continue.set()
        ends = [type(one.exception(60)) for one in (first, second)]
    assert sorted(ends, key=str) == [type(None), Conflict]
    assert ledger.app.state("t").state["log"] == [1]
    assert (ledger.rows(), ledger.calls) == (1, 1)


def test_a_writer_that_stops_for_long_before_its_commit_is_not_waited_for(
    ledger: Ledger, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its transaction, and the run that takes over pays."""
    monkeypatch.setattr("milecastle.stores.postgres.writing.HOLDING_TIME", b"300ms")
    paused = Paused(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ledger.app.invoke, {"log": []}, "t")
        assert paused.is_there.wait(60)
        assert ledger.app.resume("t", take_over=True)["log"] == [2]
        paused.may_continue.set()
        with pytest.raises(MilecastleError):
            first.result(60)
    assert (ledger.rows(), ledger.calls) == (1, 2)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_commit_whose_answer_is_lost_is_waited_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Was broken: the outcome was read once, while the server was still committing.

    A trigger of the user's table takes its time at the end of the transaction; the connection is
    cut meanwhile. So may be the next one, on which the outcome is made durable: that was an
    internal error.
    """
    honest, answers = Pool.settle, [False] * lost

    def settle(self: Pool) -> bool:
        if answers and not answers.pop():
            raise Lost("on purpose")
        return honest(self)

    monkeypatch.setattr(Pool, "settle", settle)
    with the_cluster().connect() as connection:
        connection.execute(
            b"CREATE OR REPLACE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql"
            b" AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$"
        )
        connection.execute(
            b"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON payments DEFERRABLE INITIALLY"
            b" DEFERRED FOR EACH ROW EXECUTE FUNCTION slowly()"
        )
    cuts: list[Thread] = []

    def pay(connection: Any) -> int:
        cuts.append(Thread(target=cut_at_commit, args=(connection.pgconn,), daemon=True))
        cuts[-1].start()
        return ledger.write(connection)

    def node(state: Order, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.transaction("pay", pay)]}

    graph: StateGraph[Order] = StateGraph(Order)
    graph.add_node("pay", node, retry=Retry(attempts=3, delay=0.0, jitter=0))
    graph.add_edges(START, "pay", END)
    assert graph.compile(store=ledger.app.store).invoke({"log": []}, "t")["log"] == [1]
    for cut in cuts:
        cut.join()
    assert (ledger.rows(), ledger.calls) == (1, 1)


def cut_at_commit(pgconn: Any) -> None:
    """Cut a connection when its server has begun to commit."""
    pid, line = pgconn.backend_pid, socket(fileno=os.dup(pgconn.socket))
    asked = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query = 'COMMIT'"
    with the_cluster().connect() as connection, line:
        while not connection.execute(asked, (pid,)).fetchall():
            time.sleep(0.01)
        line.shutdown(SHUT_RDWR)


def test_a_result_that_is_there_is_not_written_again(ledger: Ledger, store: PostgresStore) -> None:
    """As by an attempt that was given up, and committed all the same."""
    ledger.after = fail
    with pytest.raises(ExecutionError):
        ledger.app.invoke({"log": []}, "t")
    key = ThreadKey("default", "t")
    (known,) = [one for one in store.results(key) if one.task.endswith("/pay")]
    head = store.head(key)
    assert head is not None

    def again(connection: Any) -> Batch:
        ledger.write(connection)
        result = msgspec.structs.replace(known, payload=b"another")
        return Batch(key=key, head=head.seq, head_id=head.id, results=(result,))

    assert store.transact(key, again) is False
    assert known in store.results(key)
    assert ledger.rows() == 1
