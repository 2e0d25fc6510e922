"""What is between a store and its server: a pooler, and the limits of a role."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from milecastle.errors import Unavailable
from milecastle.stores.postgres import PostgresStore, migrate
from milecastle.stores.postgres.translating import Lost, judge
from milecastle.testing.contract_claims import LANE, a_worker, names, queued
from milecastle.testing.entries import Writer, a_key
from tests.postgres_cluster import Cluster, free_port, needs_postgres, new_schema, the_cluster

pytestmark = needs_postgres

BOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 1
"""


@pytest.fixture
def pooled() -> Iterator[str]:
    """The URL of a pooler in transaction mode, with one connection to the server."""
    if not Path(BOUNCER).exists():
        pytest.skip("pgbouncer is not installed")
    cluster, port = the_cluster(), free_port()
    file = cluster.folder / f"bouncer-{port}.ini"
    text = CONFIGURATION.format(server=cluster.port, port=port)
    if knows_statements():
        text += "max_prepared_statements = 0\n"
    file.write_text(text, encoding="utf-8")
    bouncer = subprocess.Popen(cluster.as_its_user(BOUNCER, "-q", file))
    schema = new_schema()
    migrate(cluster.url_of(schema))
    try:
        await_port(port)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={schema}&timeout=1"
    finally:
        bouncer.kill()
        bouncer.wait()


def knows_statements() -> bool:
    """Whether this version can follow prepared statements, which is turned off here."""
    said = subprocess.run([BOUNCER, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.split()[1].split(".")[:2]
    return (int(major), int(minor)) >= (1, 21)


def await_port(port: int) -> None:
    for _ in range(200):
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("pgbouncer does not answer")


def test_pooler_that_loses_prepared_statements_is_named_with_the_remedy(pooled: str) -> None:
    """Fails if the error is passed on as a lost connection, without what to do about it."""
    with closing(PostgresStore(pooled)) as first, closing(PostgresStore(pooled)) as second:
        Writer(a_key("first")).begin(first, 3)
        with pytest.raises(Unavailable, match="add prepare=off to the URL"):
            Writer(a_key("second")).begin(second, 3)


def test_pooler_works_without_prepared_statements(pooled: str) -> None:
    url = f"{pooled}&prepare=off"
    with closing(PostgresStore(url)) as first, closing(PostgresStore(url)) as second:
        Writer(a_key("first")).begin(first, 3)
        Writer(a_key("second")).begin(second, 3)


def test_workers_share_a_store_behind_a_pooler(pooled: str) -> None:
    """More often than psycopg waits before it would prepare a statement.

    Seen to fail with prepared statements: the pooler had lost them.
    """
    url = f"{pooled}&prepare=off"
    with closing(PostgresStore(url)) as first, closing(PostgresStore(url)) as second:
        for number in range(1, 8):
            writer = queued(first, f"{number}", number)
            for store in (first, second):
                store.beat(a_worker("one"))
                assert store.due_in([LANE]) is not None
                assert store.reclaim(3600) == 0
            assert names(first.claim("one", [LANE], limit=2)) == [f"{number}"]
            assert second.claim("two", [LANE], limit=2) == []
            assert second.give_back("one", writer.key)
            assert names(second.claim("one", [LANE], limit=1)) == [f"{number}"]
            assert len(first.claimed("one")) == len(second.workers()) == 1
            assert [depth.running for depth in first.depths()] == [1]
            assert second.retire("one") == 1
            first.delete(writer.key)


@pytest.mark.parametrize("statement", ["EXECUTE missing", "PREPARE known AS SELECT 2"])
def test_errors_of_prepared_statements_name_the_remedy(statement: str) -> None:
    """Fails if one of the two errors, "does not exist" or "already exists", is not known."""
    with the_cluster().connect() as connection:
        connection.execute("PREPARE known AS SELECT 1")
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(statement.encode())
        judged = judge(raised.value, connection)
    assert isinstance(judged, Lost)
    assert "prepare=off" in str(judged)


def test_statement_timeout_when_opening_is_unavailable(cluster: Cluster) -> None:
    """Fails if what is asked when a store is opened raises the driver's error."""
    schema = new_schema()
    migrate(cluster.url_of(schema))
    with cluster.connect() as holder, holder.transaction():
        holder.execute(f'LOCK TABLE "{schema}".format'.encode())
        with pytest.raises(Unavailable, match="raise statement_timeout"):
            PostgresStore(cluster.url_of(schema, options="-c%20statement_timeout%3D50"))


def test_statement_timeout_of_a_commit_and_a_read_is_unavailable(cluster: Cluster) -> None:
    """Seen to fail without the remedy in the message; it was ``Unavailable`` before."""
    schema = new_schema()
    url = cluster.url_of(schema)
    migrate(url)
    store = PostgresStore(f"{url}&options=-c%20statement_timeout%3D500")
    writer = Writer().begin(store)
    with cluster.connect() as holder, holder.transaction():
        holder.execute(f'LOCK TABLE "{schema}".entries'.encode())
        with pytest.raises(Unavailable, match="raise statement_timeout"):
            store.commit(writer.batch(writer.plan()))
        with pytest.raises(Unavailable, match="raise statement_timeout"):
            store.read(writer.key)
    writer.append(store)
    store.close()


@pytest.fixture
def cluster() -> Cluster:
    return the_cluster()
