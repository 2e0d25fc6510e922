"""A database that was restored from a backup older than a move is refused by its name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from milecastle import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres.address import parse
from milecastle.stores.sharded import ShardedStore, move_shard, read_map
from milecastle.testing.entries import Writer
from tests.postgres_cluster import needs_postgres
from tests.sharded_cluster import new_map

pytestmark = needs_postgres

TABLES = ("entries", "threads", "runs", "placements", "membership")


class Backup:
    """A copy of what database ``name`` has, and its restore."""

    def __init__(self, path: Path, name: str) -> None:
        self._address = parse(read_map(path).urls[name])
        self._run("CREATE TABLE {0}.copy_{1} AS SELECT * FROM {0}.{1}")

    def restore(self) -> None:
        self._run(
            "DELETE FROM {0}.{1};"
            "INSERT INTO {0}.{1} OVERRIDING SYSTEM VALUE SELECT * FROM {0}.copy_{1}"
        )

    def give_up(self, shard: int, destination: str) -> None:
        """What the how-to page says."""
        self._run(
            f"UPDATE {{0}}.{{1}} SET state = 'moved', leftovers = true, "
            f"destination = '{destination}' WHERE shard = {shard}",
            ("placements",),
        )
        self._run("UPDATE {0}.{1} SET version = version + 1", ("membership",))

    def _run(self, statement: str, tables: tuple[str, ...] = TABLES) -> None:
        with psycopg.connect(**self._address.connect, autocommit=True) as connection:
            for table in tables:
                connection.execute(statement.format(self._address.schema, table).encode())


@pytest.mark.parametrize("there_and_back", [False, True])
def test_a_database_restored_from_before_a_move_is_refused(
    tmp_path: Path, there_and_back: bool
) -> None:
    """Failed: which copy was read and written depended on which database answered first."""
    path = new_map(tmp_path, 2)
    shards = read_map(path)
    key = next(
        key
        for key in (ThreadKey("tenant", f"{number}") for number in range(99))
        if key.shard in shards.shards_of("a")
    )
    source, other = ("b", "a") if there_and_back else ("a", "b")
    with closing(ShardedStore(path)) as running:
        writer = Writer(key, 1).begin(running)
        if there_and_back:
            move_shard(shards, key.shard, "b")
        backup = Backup(path, source)
        move_shard(shards, key.shard, other)
        writer.append(running)
        head = running.head(key)
        backup.restore()
        with pytest.raises(StoreError, match=rf"'{source}'.* too old.*shard {key.shard} "):
            ShardedStore(path)
        with pytest.raises(StoreError, match=rf"'{source}'.* too old"):
            running.threads("tenant")
        assert running.head(key) == head
        backup.give_up(key.shard, other)
        assert [info.key for info in running.threads("tenant")] == [key]
    with closing(ShardedStore(path)) as again:
        assert again.head(key) == head
