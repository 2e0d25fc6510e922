"""Migrations of the PostgreSQL schema: once each, by one at a time, never backwards."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from psycopg import sql

from milecastle.errors import FormatTooNew, StoreError
from milecastle.stores.postgres import PostgresStore, migrate
from milecastle.stores.postgres.migrating import LATEST, script
from milecastle.stores.postgres.statements import migrations
from milecastle.testing.entries import Writer
from tests.postgres_cluster import Cluster, needs_postgres, new_schema, the_cluster
from tests.process.postgres_workers import start

pytestmark = needs_postgres


@pytest.fixture
def cluster() -> Cluster:
    return the_cluster()


def versions(cluster: Cluster, schema: str) -> list[int]:
    query = sql.SQL("SELECT version FROM {} ORDER BY 1").format(
        sql.Identifier(schema, "migrations")
    )
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
    table = sql.Identifier(schema, "migrations")
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


def test_a_schema_of_another_shape_is_named(cluster: Cluster) -> None:
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    cluster.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, "entries")))
    with pytest.raises(StoreError, match="migrate"):
        Writer().begin(store)
    store.close()
