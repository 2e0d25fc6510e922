"""Migrations of the PostgreSQL schema: once each, by one at a time, never backwards."""

from __future__ import annotations

from urllib.parse import quote

import msgspec.structs
import pytest
from psycopg import sql

from milecastle.errors import FormatTooNew, StoreError
from milecastle.ports.claims import waiting_inputs
from milecastle.stores.postgres import PostgresStore, migrate
from milecastle.stores.postgres.migrating import LATEST, script
from milecastle.stores.postgres.statements import migrations
from milecastle.testing.contract_claims import LANE, a_line, names, queued
from milecastle.testing.contract_inputs import enqueued, inputs_of
from milecastle.testing.contract_mailbox import mailbox_of
from milecastle.testing.contract_tags import change
from milecastle.testing.entries import Writer, a_key, a_run, make_id
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


TO_VERSION_9 = """
CREATE TABLE {schema}.inputs (
    number bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    mark text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (tenant, thread, number),
    UNIQUE (tenant, thread, mark)
);
INSERT INTO {schema}.inputs (tenant, thread, mark, run_id, payload)
SELECT tenant, thread, 'mark of ' || mark, mark, payload
FROM {schema}.mailbox WHERE topic = '__input' AND consumed IS NULL ORDER BY number;
DELETE FROM {schema}.mailbox WHERE topic = '__input';
DELETE FROM {schema}.migrations WHERE version = 10;
"""
"""Back to the tables of version 9, in which waiting inputs have a table."""

TO_VERSION_8 = (
    TO_VERSION_9
    + """
DROP TABLE {schema}.mailbox;
ALTER TABLE {schema}.threads
    DROP COLUMN waiting_topics, DROP COLUMN last_message, DROP COLUMN unread;
DELETE FROM {schema}.migrations WHERE version = 9;
"""
)
"""Back to the tables of version 8, in which threads have no mailbox."""

TO_VERSION_7 = (
    TO_VERSION_8
    + """
DROP INDEX {schema}.runs_by_input;
DELETE FROM {schema}.migrations WHERE version = 8;
"""
)
"""Back to the tables of version 7, which did not find a run by its input."""

TO_VERSION_5 = (
    TO_VERSION_7
    + """
ALTER TABLE {schema}.workers DROP COLUMN silent;
DELETE FROM {schema}.migrations WHERE version = 7;
DROP TABLE {schema}.membership, {schema}.placements;
ALTER TABLE {schema}.threads DROP COLUMN shard;
DELETE FROM {schema}.migrations WHERE version = 6;
"""
)
"""Back to the tables of version 5, which belonged to no map."""

TO_VERSION_4 = (
    TO_VERSION_5
    + """
DROP TABLE {schema}.tags;
DELETE FROM {schema}.migrations WHERE version = 5;
"""
)
"""Back to the tables of version 4, in which threads have no tags."""

TO_VERSION_3 = (
    TO_VERSION_4
    + """
DROP VIEW {schema}.queue;
ALTER TABLE {schema}.threads
    DROP COLUMN lane, DROP COLUMN due_at, DROP COLUMN worker, DROP COLUMN inputs,
    DROP COLUMN rank;
DROP TABLE {schema}.workers, {schema}.inputs, {schema}.limits;
DELETE FROM {schema}.migrations WHERE version = 4;
"""
)
"""Back to the tables of version 3, which no workers shared."""

TO_VERSION_2 = (
    TO_VERSION_3
    + """
ALTER TABLE {schema}.threads DROP COLUMN changed;
ALTER TABLE {schema}.runs DROP COLUMN place;
DROP INDEX {schema}.threads_by_wake;
DELETE FROM {schema}.migrations WHERE version = 3;
"""
)
"""Back to the tables of version 2, which had no order across threads."""

TO_VERSION_1 = (
    TO_VERSION_2
    + """
ALTER TABLE {schema}.threads
    DROP COLUMN wake_at, DROP COLUMN runs, DROP COLUMN questions, DROP COLUMN told;
ALTER TABLE {schema}.runs DROP COLUMN owner, DROP COLUMN number;
DELETE FROM {schema}.migrations WHERE version = 2;
UPDATE {schema}.threads AS known
SET run_id = newest.run_id, status = newest.status
FROM (
    SELECT DISTINCT ON (tenant, thread) tenant, thread, run_id, status FROM {schema}.runs
    ORDER BY tenant, thread, started_at DESC
) AS newest
WHERE known.tenant = newest.tenant AND known.thread = newest.thread;
"""
)
"""Back to the tables of version 1, whose index had the newest run by its start."""


def test_the_index_of_version_1_is_made_of_heads(cluster: Cluster) -> None:
    """A thread is what its head and the head's run say, not what the newest run was.

    Fails if the migration leaves the newest run of version 1 in the index.
    """
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    waits, over, branched, empty = (Writer(a_key(name), 5) for name in "wobe")
    for writer, status in ((waits, "sleeping"), (over, "running"), (branched, "completed")):
        writer.begin(store, 3)
        turned = msgspec.structs.replace(writer.run, status=status, wake_at=8)
        store.commit(writer.batch(runs=(turned,)))
        store.commit(writer.batch(runs=(a_run(writer.key, 9, status="failed"),)))
    over.append(store, next=())
    store.commit(empty.batch(runs=(a_run(empty.key, 2, status="failed"),)))
    gone = Writer(a_key("gone"), 7).begin(store, 2)
    store.delete(gone.key)
    store.close()
    cluster.execute(sql.SQL(TO_VERSION_1).format(schema=sql.Identifier(schema)))
    store = PostgresStore(cluster.url_of(schema))
    listed = store.threads("tenant")
    assert [(info.key.thread, info.status, info.run_id, info.wake_at) for info in listed] == [
        ("b", "interrupted", branched.run.run_id, 8),
        ("e", "failed", make_id(2), None),
        ("o", "completed", over.run.run_id, None),
        ("w", "sleeping", waits.run.run_id, 8),
    ]
    assert [run.run_id for run in store.runs(waits.key)] == [make_id(9), make_id(5)]
    later = a_run(waits.key, 1)
    store.commit(waits.batch(runs=(later,)))
    assert store.runs(waits.key)[0].run_id == later.run_id
    store.close()


def test_threads_of_version_2_are_listed_behind_newer_ones(cluster: Cluster) -> None:
    """Fails if the migration gives older rows numbers that new ones have to share."""
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    for number, name in enumerate("cab", 1):
        Writer(a_key(name), number).begin(store)
    store.close()
    cluster.execute(sql.SQL(TO_VERSION_2).format(schema=sql.Identifier(schema)))
    store = PostgresStore(cluster.url_of(schema))
    Writer(a_key("b2"), 9).begin(store)
    for page in (store.recent_threads("tenant"), store.recent_runs("tenant")):
        assert [item.key.thread for item in page.items] == ["b2", "c", "b", "a"]
    store.close()


def test_threads_of_version_3_are_in_no_lane(cluster: Cluster) -> None:
    """Fails if the migration leaves a line that cannot be read, or that a worker would claim."""
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    older = Writer(a_key("older"), 1).begin(store)
    before = store.thread(older.key)
    store.close()
    cluster.execute(sql.SQL(TO_VERSION_3).format(schema=sql.Identifier(schema)))
    store = PostgresStore(cluster.url_of(schema))
    assert store.thread(older.key) == before
    assert store.claim("one", ["", LANE], limit=9) == []
    older.append(store, thread=a_line(older))
    assert names(store.claim("one", [LANE], limit=9)) == ["older"]
    store.close()


def test_threads_of_version_4_can_be_tagged(cluster: Cluster) -> None:
    """Fails without the fifth migration."""
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    older = Writer(a_key("older"), 1).begin(store)
    store.close()
    cluster.execute(sql.SQL(TO_VERSION_4).format(schema=sql.Identifier(schema)))
    store = PostgresStore(cluster.url_of(schema))
    assert store.tags.of("tenant", ["older"]) == {}
    change(store, older, ["blue"])
    assert [info.key for info in store.tags.threads("tenant", "blue")] == [older.key]
    store.close()


def test_a_schema_of_another_shape_is_named(cluster: Cluster) -> None:
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    cluster.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, "entries")))
    with pytest.raises(StoreError, match="migrate"):
        Writer().begin(store)
    store.close()


def test_the_inputs_of_version_9_wait_as_messages(cluster: Cluster) -> None:
    """Behind the messages that a thread has, in their order. Fails without the tenth migration."""
    schema = new_schema()
    store = PostgresStore(cluster.url_of(schema))
    writer = queued(store, "a", worker="one", status="running")
    runs = [enqueued(store, writer, number).run_id for number in (5, 3)]
    assert mailbox_of(store).discard(writer.key, 1)
    store.close()
    cluster.execute(sql.SQL(TO_VERSION_9).format(schema=sql.Identifier(schema)))
    store = PostgresStore(cluster.url_of(schema))
    assert inputs_of(store, writer.key) == runs[1:]
    (waiting,) = waiting_inputs(store, writer.key)
    assert (waiting.number, waiting.payload) == (3, b"input 3")
    ended = a_line(writer, status="completed", due_at=None)
    writer.append(store, thread=ended)
    assert names(store.claim("two", [LANE], limit=9)) == ["a"]
    writer.append(store, thread=ended, consumes=(3,))
    assert store.claim("two", [LANE], limit=9) == []
    store.close()
