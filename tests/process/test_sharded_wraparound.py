"""Moves in a database whose transaction ids have begun again, as they do after 2^32."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from milecastle.stores.sharded import ShardedStore, initialise, move_shard, read_map
from milecastle.testing.entries import Writer
from tests.postgres_cluster import Cluster, find_binaries, needs_postgres
from tests.process.sharded_moves import same_shard
from tests.sharded_cluster import write_map

pytestmark = needs_postgres

_SEGMENT = 32 * 8192 * 4
"""How many transactions a file of the commit log has."""


@pytest.fixture
def server() -> Iterator[Cluster]:
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries, settings={"autovacuum": "off"})
    yield cluster
    cluster.remove()


def advance(server: Cluster, by: int) -> None:
    """Let so many transactions have passed; every row is frozen before."""
    server.execute(b"ALTER DATABASE template0 ALLOW_CONNECTIONS true")
    names = [str(row[0]) for row in server.execute(b"SELECT datname FROM pg_database")]
    for name in names:
        url = server.url.rpartition("/")[0] + f"/{name}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(b"VACUUM FREEZE")
    ((oldest, now),) = server.execute(
        b"SELECT (SELECT min(datfrozenxid::text::bigint) FROM pg_database), "
        b"(txid_current() % 4294967296)"
    )
    assert isinstance(now, int)
    server.stop()
    following = (now + by) // _SEGMENT * _SEGMENT % 2**32
    server.run("pg_resetwal", "-D", server.data, "-f", "-x", following, "-u", oldest)
    page = server.data / "pg_xact" / f"{following // _SEGMENT:04X}"
    page.write_bytes(bytes(256 * 1024))
    if os.geteuid() == 0:
        shutil.chown(page, "postgres", "postgres")
    server.start()


def test_old_rows_are_not_taken_for_new_ones(server: Cluster, tmp_path: Path) -> None:
    """Fails if a frozen row whose id seems to lie ahead is copied again and again."""
    urls: dict[str, str] = {}
    for name in ("a", "b"):
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"mc_{name}")))
        urls[name] = server.url.rpartition("/")[0] + f"/mc_{name}"
    path = write_map(tmp_path / "shards.toml", urls)
    initialise(read_map(path))
    keys = same_shard(30, "a", path)
    with closing(ShardedStore(path)) as store:
        writers = [Writer(key, number).begin(store, 2) for number, key in enumerate(keys, 1)]
    for _ in range(2):
        advance(server, 3 * 2**29)
    with closing(ShardedStore(path)) as store:
        seen: list[str] = []

        def write(name: str) -> None:
            seen.append(name)
            if name == "lock":
                writers[0].append(store)

        assert move_shard(read_map(path), keys[0].shard, "b", write)
        assert seen.count("lock") == 1
        for writer in writers:
            assert len(list(store.history(writer.key))) == writer.head
