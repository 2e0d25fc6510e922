"""Statements that meet in the server, each pair in the one order that could go wrong."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from threading import Thread
from typing import cast

import msgspec.structs
import psycopg
import pytest

from milecastle.errors import Conflict
from milecastle.ports.store import Batch
from milecastle.stores.postgres import PostgresStore, rows, writing
from milecastle.stores.postgres.libpq import Lease, TrackedConnection
from milecastle.stores.postgres.statements import Statements
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key, a_result, a_run, make_id
from tests.postgres_cluster import (
    count_rows,
    needs_postgres,
    new_schema,
    schema_of,
    the_cluster,
    wait_until,
)

pytestmark = needs_postgres


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    store = PostgresStore(the_cluster().url_of(new_schema(), max_size="1"))
    yield store
    store.close()


@contextmanager
def committing(store: PostgresStore, batch: Batch) -> Generator[None, None, None]:
    """Have a batch written and not yet committed; it is committed at the end of the block."""
    with open_transaction() as lease:
        statement = Statements(schema_of(store)).commit
        assert lease.write(statement, writing.commit_values([batch])).ntuples == 1
        yield


@contextmanager
def open_transaction() -> Generator[Lease, None, None]:
    """A connection whose transaction is committed at the end of the block."""
    with TrackedConnection.connect(the_cluster().url) as connection:
        connection.execute("SELECT 1")
        yield Lease(connection, prepares=False)


class Waiting(Thread):
    """Does something that has to wait for somebody else, and keeps what came of it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self.outcome: object = None
        self.start()
        wait_until(self.waits)

    def run(self) -> None:
        try:
            self.outcome = self._work()
        except Conflict as conflict:
            self.outcome = conflict

    def waits(self) -> bool:
        query = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return the_cluster().execute(query) != [(0,)]


def ends_with(waiting: Waiting) -> object:
    waiting.join(30)
    assert not waiting.is_alive()
    return waiting.outcome


def test_record_of_an_overtaken_writer_is_refused(store: PostgresStore) -> None:
    """A takeover is on its way when the old writer records that it failed."""
    writer = Writer().begin(store, 2)
    superseded = msgspec.structs.replace(writer.run, status="superseded")
    failed = msgspec.structs.replace(writer.run, status="failed")
    new = a_run(writer.key, 2)
    takeover = writer.batch(writer.plan(source="takeover"), runs=(superseded, new))
    with committing(store, takeover):
        late = Waiting(lambda: store.commit(writer.batch(runs=(failed,))))
    assert isinstance(ends_with(late), Conflict)
    assert list(store.runs(writer.key)) == [new, superseded]


def test_entry_of_an_overtaken_writer_is_refused(store: PostgresStore) -> None:
    writer = Writer().begin(store, 2)
    with committing(store, writer.batch(writer.plan(id=make_id(99)))):
        late = Waiting(lambda: store.commit(writer.batch(writer.plan())))
    assert isinstance(ends_with(late), Conflict)
    assert store.locate(writer.key, make_id(99)) == 3


def test_waiting_with_a_group_does_not_block_other_threads_of_the_process() -> None:
    """The server waits for a transaction that only another thread can end."""
    url = the_cluster().url_of(new_schema(), options="-c lock_timeout=5s")
    with closing(PostgresStore(url)) as store:
        contested, other = (Writer(a_key(name)).begin(store, 2) for name in ("contested", "other"))
        payload = b"x" * 20_000_000
        late = [
            contested.batch(contested.plan()),
            other.batch(results=(a_result(2, "large", payload=payload),)),
        ]
        with committing(store, contested.batch(contested.plan(id=make_id(99)))):
            waiting = Waiting(lambda: store.commit_many(late))
        refused, kept = cast(list[object], ends_with(waiting))
        assert isinstance(refused, Conflict)
        assert kept is None


def test_a_deletion_waits_for_an_entry_that_is_on_its_way(store: PostgresStore) -> None:
    """It finds its place taken, and continues; on one connection, as often as need be."""
    for number in range(8):
        writer = Writer(a_key(f"deleted {number}")).begin(store, 2)
        with committing(store, writer.batch(writer.plan())):
            deletion = Waiting(partial(store.delete, writer.key))
        assert ends_with(deletion) is True
        assert store.read(writer.key) is None
        assert store.locate(writer.key, "") is None
        again = Writer(writer.key, 2).begin(store, 2)
        check_reads(store, again)


def test_a_deletion_waits_for_a_record_that_is_on_its_way(store: PostgresStore) -> None:
    writer = Writer().begin(store, 2)
    with committing(store, writer.batch(runs=(a_run(writer.key, 2),))):
        deletion = Waiting(lambda: store.delete(writer.key))
    assert ends_with(deletion) is True
    assert list(store.runs(writer.key)) == []
    assert list(store.threads(writer.key.tenant)) == []


def test_a_deletion_leaves_no_result_that_was_on_its_way(store: PostgresStore) -> None:
    writer = Writer().begin(store, 2)
    statement = Statements(schema_of(store)).keep_results
    values = writing.keep_results_values(writer.batch(results=(a_result(2),)))
    with open_transaction() as lease:
        assert lease.write(statement, values).ntuples == 1
        deletion = Waiting(lambda: store.delete(writer.key))
    assert ends_with(deletion) is True
    assert count_rows(the_cluster().url_of(schema_of(store)), "results") == 0


def test_a_record_that_meets_a_deletion_is_refused(store: PostgresStore) -> None:
    """The deletion is on its way when the writer records that it failed: nothing comes back."""
    writer = Writer().begin(store, 2)
    parameters = rows.key_parameters(writer.key, gap=1, head=None, head_id=None, life=None)
    with psycopg.connect(the_cluster().url) as connection:
        connection.execute(Statements(schema_of(store)).bury, parameters)
        late = Waiting(lambda: store.commit(writer.batch(runs=(writer.run,))))
    assert isinstance(ends_with(late), Conflict)
    assert list(store.threads(writer.key.tenant)) == []


def test_a_deletion_of_one_head_is_refused_when_another_comes_first(store: PostgresStore) -> None:
    """It waits for an entry that is on its way, and then it is no longer its thread to delete."""
    writer = Writer().begin(store, 2)
    with committing(store, writer.batch(writer.plan())):
        deletion = Waiting(lambda: store.delete(writer.key, head=2))
    refused = ends_with(deletion)
    assert isinstance(refused, Conflict)
    assert refused.head == 3
    assert [entry.seq for entry in store.history(writer.key)] == [3, 2, 1]
    assert list(store.runs(writer.key)) == [writer.run]


def refusals(store: PostgresStore, batches: list[Batch]) -> list[bool]:
    return [isinstance(outcome, Conflict) for outcome in store.commit_many(batches)]


def test_of_a_group_that_meets_another_writer_one_batch_is_refused(store: PostgresStore) -> None:
    """Steps and records: what was taken meanwhile is refused, the rest is written."""
    for runs in (False, True):
        writers = [Writer(a_key(f"{runs} {name}")).begin(store, 2) for name in "abc"]
        batches = [
            writer.batch(writer.plan(), runs=(writer.run,) if runs else ()) for writer in writers
        ]
        with committing(store, writers[1].batch(writers[1].plan(id=make_id(99)))):
            group = Waiting(partial(refusals, store, batches))
        assert ends_with(group) == [False, True, False]
        heads = [next(store.history(writer.key)).id for writer in writers]
        assert heads == [batches[0].entries[0].id, make_id(99), batches[2].entries[0].id]
