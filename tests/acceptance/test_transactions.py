"""``ctx.transaction``: a node's own rows and the record of them are there together, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import psycopg
import pytest

from milecastle import (
    END,
    START,
    Conflict,
    Context,
    ExecutionError,
    StateGraph,
    Store,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
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
