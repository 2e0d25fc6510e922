"""A database that was never analysed: what touches many entries costs what it touches.

Joined naively, a thread of 900 entries took twelve seconds to delete. The limits here are far above
what it takes now, and far below that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from psycopg import sql

from milecastle.model.checkpoint import SNAPSHOT
from milecastle.stores.postgres import PostgresStore
from milecastle.testing.entries import Writer
from tests.postgres_cluster import fresh_store, needs_postgres, schema_of, the_cluster

pytestmark = needs_postgres

LONG = 2_000
SECONDS = 5.0


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    for store in fresh_store():
        table = sql.Identifier(schema_of(store), "entries")
        never = sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(table)
        the_cluster().execute(never)
        yield store


def took(call: Callable[[], object]) -> float:
    began = monotonic()
    call()
    return monotonic() - began


def a_long_thread(store: PostgresStore) -> Writer:
    writer = Writer().begin(store, LONG)
    writer.append(store, SNAPSHOT)
    return writer


def test_a_long_thread_is_deleted_in_no_time(store: PostgresStore) -> None:
    writer = a_long_thread(store)
    assert took(lambda: store.delete(writer.key)) < SECONDS
    assert list(store.history(writer.key)) == []


def test_a_long_thread_is_pruned_in_no_time(store: PostgresStore) -> None:
    writer = a_long_thread(store)
    head = writer.head
    assert took(lambda: store.prune(writer.key, head=head, cut=head, rewritten=())) < SECONDS
    assert [entry.seq for entry in store.history(writer.key)] == [head]


def test_a_checkpoint_is_found_in_no_time(store: PostgresStore) -> None:
    writer = a_long_thread(store)
    wanted = writer.entries[LONG // 2].id
    assert took(lambda: [store.locate(writer.key, wanted) for _ in range(20)]) < SECONDS
