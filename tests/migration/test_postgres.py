"""Migrations of the PostgreSQL schema: once each, by one at a time, never backwards."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from psycopg import sql

from milecastle.errors import FormatTooNew, StoreError
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresServer, PostgresStore, migrate, migrating
from milecastle.stores.postgres import store as store_module
from milecastle.stores.postgres.migrating import LATEST, script
from milecastle.stores.postgres.statements import migrations
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key
from tests.migration.postgres_golden import PATH, restore, rows_of
from tests.migration.sqlite_golden import (
    TAGGED,
    buckets_in,
    claims_in,
    everything_in,
    fill,
    memory_in,
    messages_in,
)
from tests.postgres_cluster import Cluster, needs_postgres, new_schema, the_cluster
from tests.process.postgres_workers import start

pytestmark = needs_postgres


@pytest.fixture
def cluster() -> Cluster:
    return the_cluster()


def versions(cluster: Cluster, schema: str) -> list[int]:
    query = sql.SQL("SELECT version FROM {} ORDER BY 1").format(sql.Identifier(schema, "format"))
    with cluster.connect() as connection:
        return [version for (version,) in connection.execute(query)]


def test_of_many_processes_one_migrates(cluster: Cluster) -> None:
    schema = new_schema()
    workers = [start("migrate", cluster.url_of(schema)) for _ in range(4)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = [worker.communicate(timeout=60)[0].strip() for worker in workers]
    assert sorted(said) == ["done", "nothing", "nothing", "nothing"]
    assert versions(cluster, schema) == list(range(1, LATEST + 1))


def test_migrating_again_does_nothing(cluster: Cluster) -> None:
    url = cluster.url_of(new_schema())
    assert "CREATE TABLE" in migrate(url)
    assert migrate(url) == ""
    assert migrate(url, print_only=True) == ""


def test_a_newer_schema_is_refused(cluster: Cluster) -> None:
    schema = new_schema()
    migrate(cluster.url_of(schema))
    table = sql.Identifier(schema, "format")
    cluster.execute(
        sql.SQL("INSERT INTO {} (version) VALUES ({})").format(table, sql.Literal(LATEST + 1))
    )
    with pytest.raises(FormatTooNew) as caught:
        PostgresStore(cluster.url_of(schema))
    assert (caught.value.found, caught.value.supported) == (LATEST + 1, LATEST)
    with pytest.raises(FormatTooNew):
        migrate(cluster.url_of(schema))


def test_what_is_printed_changes_nothing_until_it_is_run(cluster: Cluster) -> None:
    schema = new_schema()
    url = cluster.url_of(schema, migrate="off")
    printed = migrate(url, print_only=True)
    assert printed == script(schema)
    with pytest.raises(StoreError, match="not up to date"):
        PostgresStore(url)
    cluster.execute(printed.encode())
    store = PostgresStore(url)
    writer = Writer().begin(store, 2)
    assert store.read(writer.key) is not None
    store.close()


@pytest.mark.parametrize("schema", ['quo"ted', "semi;colon", "Größe", "{schema}", "%s", "select"])
def test_any_name_is_a_schema(cluster: Cluster, schema: str) -> None:
    store = PostgresStore(cluster.url_of(quote(schema)))
    writer = Writer().begin(store, 2)
    store.close()
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, "entries"))
    assert cluster.execute(query) == [(2,)]
    assert writer.head == 2


def test_a_failed_migration_leaves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = new_schema()
    broken = [(1, migrations()[0][1] + "SELECT 1 / 0;\n")]
    monkeypatch.setattr("milecastle.stores.postgres.migrating.migrations", lambda: broken)
    with pytest.raises(StoreError):
        migrate(cluster.url_of(schema))
    with cluster.connect() as connection:
        found = connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone()
    assert found == (None,)


VERSION_2 = """
CREATE TABLE {schema}.colours (colour text);
ALTER TABLE {schema}.threads ADD COLUMN colour text NOT NULL DEFAULT 'red';
"""
"""What a later version may do to the tables."""


def make_version_2_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [*migrations(), (2, VERSION_2)]
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    for module in (migrating, store_module):
        monkeypatch.setattr(module, "LATEST", 2)


def test_golden_rows_are_read_and_written(cluster: Cluster) -> None:
    """Fails if a value of the rows is read differently, or the store cannot write to them."""
    schema = new_schema()
    restore(cluster, schema)
    store = PostgresStore(cluster.url_of(schema))
    assert_golden(store)
    check_reads(store, Writer(a_key("new"), 9).begin(store, 3))
    store.close()


def assert_golden(store: PostgresStore) -> None:
    memory = MemoryStore()
    fill(memory)
    assert everything_in(store) == everything_in(memory)
    assert claims_in(store) == claims_in(memory)
    assert messages_in(store) == messages_in(memory)
    assert memory_in(store) == memory_in(memory)
    assert buckets_in(store) == buckets_in(memory)
    assert store.tags.of("tenant", [TAGGED.thread]) == memory.tags.of("tenant", [TAGGED.thread])
    assert store.recent_threads("tenant").items == memory.recent_threads("tenant").items
    assert store.recent_runs("tenant").items == memory.recent_runs("tenant").items


def test_golden_rows_have_every_column(cluster: Cluster) -> None:
    """Until the first release, a change of version 1 makes its golden file again."""
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    fill(store)
    store.close()
    golden = json.loads(PATH.read_text("utf-8"))
    found = rows_of(cluster, schema)
    assert golden.keys() == found.keys()
    for table, rows in found.items():
        assert {*map(frozenset, golden[table])} == {*map(frozenset, rows)}, table


def test_schema_of_version_1_is_migrated_when_opened(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a migration is not applied, or is applied a second time."""
    schema = new_schema()
    url = cluster.url_of(schema)
    restore(cluster, schema)
    make_version_2_the_newest(monkeypatch)
    with pytest.raises(StoreError, match="not up to date"):
        PostgresStore(f"{url}&migrate=off")
    printed = migrate(url, print_only=True)
    assert "colours" in printed
    assert "fillfactor" not in printed
    assert versions(cluster, schema) == [1]
    for _ in range(2):
        store = PostgresStore(url)
        assert_golden(store)
        store.close()
        assert versions(cluster, schema) == [1, 2]
    monkeypatch.undo()
    for call in (lambda: PostgresStore(url), PostgresServer(url).migrate):
        with pytest.raises(FormatTooNew):
            call()
    assert versions(cluster, schema) == [1, 2]


def test_schema_of_an_unreleased_version_is_refused_and_unchanged(cluster: Cluster) -> None:
    """Fails if its tables are taken for none, or for those of version 1.

    Such a schema had the table ``migrations`` where ``format`` is now.
    """
    schema = new_schema()
    url = cluster.url_of(schema)
    migrate(url)
    table = sql.Identifier(schema, "format")
    cluster.execute(sql.SQL("ALTER TABLE {} RENAME TO migrations").format(table))
    calls = (
        lambda: PostgresStore(url),
        lambda: migrate(url),
        PostgresServer(url).pending_migrations,
    )
    for call in calls:
        with pytest.raises(StoreError, match="before the first release") as caught:
            call()
        assert type(caught.value) is StoreError
        assert f"schema '{schema}'" in str(caught.value)
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
    with cluster.connect() as connection:
        found = {name for (name,) in connection.execute(tables, [schema])}
    assert "format" not in found
    assert "migrations" in found


def test_table_of_another_program_does_not_look_unreleased(cluster: Cluster) -> None:
    """Many programs have a table named ``migrations``. Fails if the log is not looked for."""
    schema = new_schema()
    cluster.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.migrations (id int)".encode())
    assert migrate(cluster.url_of(schema))
    assert versions(cluster, schema) == [1]


def test_a_schema_of_another_shape_is_named(cluster: Cluster) -> None:
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    cluster.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, "entries")))
    with pytest.raises(StoreError, match="migrate"):
        Writer().begin(store)
    store.close()
