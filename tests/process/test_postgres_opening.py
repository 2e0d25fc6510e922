"""How a PostgreSQL store is opened, shared, forked, pooled and closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from threading import Thread
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from milecastle.errors import Corrupted, InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.stores.opening import find_store
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.libpq import Lease, Libpq
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.statements import Statements, file_text
from milecastle.testing import race_in_threads
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key, a_result
from tests.postgres_cluster import (
    count_rows,
    fresh_store,
    needs_postgres,
    new_schema,
    pool_of,
    schema_of,
    the_cluster,
)

pytestmark = needs_postgres


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    yield from fresh_store()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_opens_the_store(scheme: str) -> None:
    url = the_cluster().url_of(new_schema()).replace("postgresql:", f"{scheme}:")
    store = find_store(url)
    assert isinstance(store, PostgresStore)
    store.close()


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "milecastle.stores.postgres", None)
    with pytest.raises(InvalidRequest, match=r"pip install milecastle\[postgres\]"):
        find_store("postgresql://127.0.0.1/nowhere")


@pytest.mark.parametrize(
    "option",
    [
        "schema=",
        "schema=pg_mine",
        "schema=" + "x" * 64,
        "prepare=maybe",
        "rls=2",
        "min_size=0",
        "min_size=3&max_size=2",
        "max_size=many",
        "timeout=0",
        "timeout=soon",
        "unheard_of=1",
    ],
)
def test_an_option_that_makes_no_sense_is_refused(option: str) -> None:
    with pytest.raises(InvalidRequest):
        PostgresStore(f"{the_cluster().url}?{option}")


def test_options_of_postgres_are_left_to_it() -> None:
    address = parse("postgresql://u:p%40@a:1,b:2/d?schema=s&sslmode=disable&application_name=a%20b")
    assert address.schema == "s"
    assert address.connect["host"] == "a,b"
    assert address.connect["port"] == "1,2"
    assert address.connect["password"] == "p@"
    assert address.connect["application_name"] == "a b"
    assert address.connect["target_session_attrs"] == "read-write"


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:
        PostgresStore("postgresql://someone:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)


def test_of_several_hosts_the_one_that_takes_writes_is_used() -> None:
    cluster = the_cluster()
    url = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{cluster.port}/postgres"
    store = PostgresStore(f"{url}?schema={new_schema()}")
    check_reads(store, Writer().begin(store, 3))
    store.close()


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync"])
def test_a_server_that_loses_commits_is_refused(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(name: str) -> str:
        return file_text(name).replace(f"current_setting('{setting}')", "'off'")

    monkeypatch.setattr("milecastle.stores.postgres.migrating.file_text", changed)
    url = the_cluster().url_of(new_schema())
    with pytest.raises(StoreError, match=f"{setting} is off"):
        PostgresStore(url)
    PostgresStore(f"{url}&synchronous_commit=off").close()


def test_a_role_that_commits_asynchronously_is_refused() -> None:
    cluster, schema = the_cluster(), new_schema()
    role = sql.Identifier(f"hasty_{schema}")
    cluster.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(role))
    cluster.execute(sql.SQL("ALTER ROLE {} SET synchronous_commit = off").format(role))
    with pytest.raises(StoreError, match="synchronous_commit is off"):
        PostgresStore(cluster.url_of(schema, f"hasty_{schema}"))


def test_a_database_in_another_encoding_is_refused() -> None:
    cluster = the_cluster()
    name = sql.Identifier(f"latin_{new_schema()}")
    cluster.execute(sql.SQL("CREATE DATABASE {} ENCODING 'LATIN1' TEMPLATE template0").format(name))
    url = cluster.url.removesuffix("postgres") + name.as_string(None).strip('"')
    with pytest.raises(StoreError, match="UTF8"):
        PostgresStore(url)


def discarding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have every session forgotten between two calls, as a pooler that hands out others does."""
    forgotten: list[int] = []
    take = Pool.take

    def fresh(pool: Pool) -> Lease:
        lease = take(pool)
        lease.connection.execute("DISCARD ALL")
        forgotten.append(1)
        return lease

    monkeypatch.setattr(Pool, "take", fresh)
    return forgotten


def test_nothing_is_kept_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(the_cluster().url_of(new_schema(), prepare="off"))
    forgotten = discarding(monkeypatch)
    writer = Writer().begin(store, 12)
    writer.append(store, SNAPSHOT)
    store.commit(writer.batch(results=(a_result(13),)))
    writer.prune(store, 5)
    check_reads(store, writer)
    assert len(list(store.history(writer.key))) == 9
    assert store.delete(writer.key)
    assert len(forgotten) > 25
    store.close()


def test_a_statement_of_another_schema_is_never_run_in_its_place() -> None:
    """A pooler that follows no statements puts two stores onto one session of the server."""
    stores = [PostgresStore(the_cluster().url_of(new_schema())) for _ in range(2)]
    writers = [Writer(a_key(), number).begin(store, 3) for number, store in enumerate(stores, 1)]
    first, second = (pool_of(store).idle[-1] for store in stores)
    own, second.pgconn = second.pgconn, first.pgconn
    append = Statements(schema_of(stores[1])).append
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        second.write(append, [b""] * len(append.types))
    second.pgconn = own
    for writer, store in zip(writers, stores, strict=True):
        check_reads(store, writer)
        store.close()


def test_name_of_a_statement_depends_on_schema_text_and_types() -> None:
    one, other = Statements("one"), Statements("other")
    direct = [one.append, one.append_many, one.commit, one.keep_results]
    direct += [other.append, other.append_many, other.commit, other.keep_results]
    direct += [Libpq.of("append", one.append.text, [*one.append.types, 25])]
    assert len({statement.name for statement in direct}) == len(direct)
    assert max(len(statement.name) for statement in direct) <= 63
    assert Statements("one").append.name == one.append.name


def test_a_step_is_one_statement_and_no_transaction_block(store: PostgresStore) -> None:
    """One round trip: counted on the wire by psycopg's own trace."""
    writer = Writer().begin(store, 10)
    (lease,) = pool_of(store).idle
    read, write = os.pipe()
    lease.connection.pgconn.trace(write)
    writer.append(store)
    lease.connection.pgconn.untrace()
    os.close(write)
    with os.fdopen(read) as traced:
        lines = traced.read().splitlines()
    sent = [line for line in lines if "\tF\t" in line]
    assert [line.split("\t")[3].split()[0] for line in sent] == [
        "Bind",
        "Describe",
        "Execute",
        "Sync",
    ]


def test_the_thread_index_does_not_change_with_steps(store: PostgresStore) -> None:
    writer = Writer().begin(store, 2)
    versions = sql.SQL("SELECT xmin::text, ctid::text FROM {}").format(
        sql.Identifier(schema_of(store), "threads")
    )
    before = the_cluster().execute(versions)
    for _ in range(5):
        writer.append(store)
        store.commit(writer.batch(results=(a_result(writer.head),)))
    assert the_cluster().execute(versions) == before


def test_results_of_finished_steps_do_not_pile_up(store: PostgresStore) -> None:
    writer = Writer().begin(store, 2)
    for _ in range(5):
        store.commit(writer.batch(results=tuple(a_result(writer.head, f"{n}") for n in range(4))))
        writer.append(store)
    store.commit(writer.batch(runs=(writer.run,)))
    assert count_rows(the_cluster().url_of(schema_of(store)), "results") == 0


def test_a_large_thread_is_deleted_and_pruned_in_batches(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milecastle.stores.postgres.store._BATCH", 3)
    writer = Writer().begin(store, 20)
    writer.append(store, SNAPSHOT)
    assert writer.prune(store, 18) == 17
    check_reads(store, writer)
    assert store.delete(writer.key)
    url = the_cluster().url_of(schema_of(store))
    assert count_rows(url, "entries") == 2
    again = Writer(writer.key, 2).begin(store, 7)
    check_reads(store, again)
    assert store.delete(writer.key)
    assert count_rows(url, "entries") == 4


def test_a_long_history_is_read_in_pages(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milecastle.stores.postgres.store._PAGE", 4)
    writer = Writer().begin(store, 10)
    listed = store.history(writer.key)
    seqs = [next(listed).seq for _ in range(4)]
    writer.append(store)
    assert seqs + [entry.seq for entry in listed] == list(range(10, 0, -1))
    listed = store.history(writer.key)
    next(listed)
    store.delete(writer.key)
    Writer(writer.key, 2).begin(store, 20)
    assert [entry.seq for entry in listed] == [10, 9, 8]


def test_more_threads_than_connections_take_turns() -> None:
    store = PostgresStore(the_cluster().url_of(new_schema(), max_size="2"))
    outcome = race_in_threads(store, a_key(), races=20, writers=6)
    assert outcome.problems(store) == []
    store.close()


def test_waiting_too_long_for_a_connection_is_an_error() -> None:
    store = PostgresStore(the_cluster().url_of(new_schema(), max_size="1", timeout="2"))
    pool = pool_of(store)
    lease = pool.take()
    with pytest.raises(Unavailable, match="max_size"):
        store.read(a_key())
    pool.give_back(lease)
    assert store.read(a_key()) is None
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_has_its_own_connections(store: PostgresStore) -> None:
    writer = Writer().begin(store, 2)
    (ours,) = [lease.connection.info.backend_pid for lease in pool_of(store).idle]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Writer(a_key("child")).begin(store, 3)
            (theirs,) = [lease.connection.info.backend_pid for lease in pool_of(store).idle]
            store.close()
            code = 0 if theirs != ours else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    writer.append(store)
    assert [entry.seq for entry in store.history(a_key("child"))] == [3, 2, 1]


def test_closing_while_others_work_ends_them(store: PostgresStore) -> None:
    writer = Writer().begin(store)
    ended: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                store.read(writer.key)
        except Unavailable as error:
            ended.append(error)

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    store.close()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 3


Look = Callable[[PostgresStore, Writer], object]


def look_at_entries(store: PostgresStore, writer: Writer) -> object:
    return list(store.history(writer.key))


def look_at_runs(store: PostgresStore, writer: Writer) -> object:
    return store.runs(writer.key)


@pytest.mark.parametrize(
    ("table", "column", "value", "look"),
    [
        ("entries", "source", 7, look_at_entries),
        ("entries", "nodes", "[nonsense", look_at_entries),
        ("entries", "id", b"nonsense", look_at_entries),
        ("entries", "parent", b"nonsense", look_at_entries),
        ("entries", "origin", b"nonsense", look_at_entries),
        ("runs", "status", "nonsense", look_at_runs),
        ("runs", "metadata", "nonsense", look_at_runs),
        ("runs", "graph", None, look_at_runs),
        ("runs", "started_at", None, look_at_runs),
    ],
)
def test_what_was_never_written_is_not_read(
    store: PostgresStore, table: str, column: str, value: object, look: Look
) -> None:
    writer = Writer().begin(store, 2)
    the_cluster().execute(
        sql.SQL("UPDATE {} SET {} = {}").format(
            sql.Identifier(schema_of(store), table), sql.Identifier(column), sql.Literal(value)
        )
    )
    with pytest.raises(Corrupted) as caught:
        look(store, writer)
    assert "nonsense" not in str(caught.value)


def test_a_cancelled_statement_is_unavailable(store: PostgresStore) -> None:
    pool = pool_of(store)
    with pytest.raises(Unavailable):
        pool.run_together(
            [
                (b"SELECT set_config('statement_timeout', '10', true)", {}),
                (b"SELECT pg_sleep(5)", {}),
            ],
            "tenant",
        )
    assert store.read(a_key()) is None


def test_psycopg_reads_what_the_store_wrote(store: PostgresStore) -> None:
    """The rows are plain: any client can read them."""
    writer = Writer().begin(store, 2)
    with psycopg.connect(the_cluster().url) as connection:
        query = sql.SQL("SELECT tenant, thread, seq, nodes, id FROM {} ORDER BY seq").format(
            sql.Identifier(schema_of(store), "entries")
        )
        found = connection.execute(query).fetchall()
    tenant, thread = writer.key.tenant, writer.key.thread
    assert found == [
        (tenant, thread, seq, "research", UUID(writer.entries[seq].id).bytes) for seq in (1, 2)
    ]
