"""A switch compares threads, not entries: shards with long logs move, and nothing is missed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest

from milecastle.errors import ShardMoved
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.stores.sharded import ShardedStore, move_shard, read_map
from milecastle.testing.entries import Writer
from tests.postgres_cluster import needs_postgres
from tests.process.sharded_moves import execute, results, same_shard

pytestmark = needs_postgres

ENTRIES = int(os.environ.get("MILECASTLE_SHARD_ENTRIES", "20000"))
_THREADS = """
INSERT INTO milecastle.threads
SELECT (jsonb_populate_record(model, jsonb_build_object('thread', 'copy ' || number))).*
FROM milecastle.threads AS model, generate_series(1, {threads}) AS number
"""
_ENTRIES = """
INSERT INTO milecastle.entries
SELECT (jsonb_populate_record(
    model, jsonb_build_object('thread', 'copy ' || number, 'seq', seq.place)
)).*
FROM milecastle.entries AS model, generate_series(1, {threads}) AS number,
    generate_series(1, {entries}) AS seq (place)
"""
_NO_WAIT = """
DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %I SET lock_timeout = 1000', current_database());
END
$$
"""


@pytest.fixture
def place(path: Path) -> Iterator[ShardMember]:
    """The database that has the shard at first; who waits there for others is refused."""
    execute(path, "a", _NO_WAIT)
    with closing(ShardMember(read_map(path).urls["a"], "a")) as place:
        yield place


def test_what_is_pruned_after_it_was_copied_is_copied_again(
    store: ShardedStore, path: Path
) -> None:
    """The newest entry is as before. Fails if pruning does not write the line of its thread."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 5)
    writer.append(store, SNAPSHOT)

    def prune(name: str) -> None:
        if name == "lock" and len(writer.entries) > 1:
            writer.prune(store, writer.head)

    assert move_shard(read_map(path), key.shard, "b", prune)
    assert [entry.seq for entry in store.history(key)] == [writer.head]


def test_what_is_pruned_further_after_it_was_copied_is_copied_again(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if only the first page of what is dropped writes the line of its thread."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 8)
    writer.append(store, SNAPSHOT)
    monkeypatch.setattr("milecastle.stores.postgres.store._BATCH", 4)
    prune_on = vars(ShardMember)["_prune_on"]

    def moving(self: ShardMember, *given: object) -> object:
        dropped: list[object] = []

        def drop(name: str) -> None:
            if name == "lock" and not dropped:
                dropped.append(prune_on(self, *given))

        monkeypatch.setattr(ShardMember, "_prune_on", prune_on)
        move_shard(read_map(path), key.shard, "b", drop)
        return dropped[0]

    monkeypatch.setattr(ShardMember, "_prune_on", moving)
    writer.prune(store, writer.head)
    assert execute(path, "b", "SELECT count(*) FROM milecastle.entries") == [(1,)]


def swept_while_it_moves(place: ShardMember, path: Path, key: ThreadKey) -> None:
    """Move the shard of a deleted thread, which is swept after it was copied."""

    def sweep(name: str) -> None:
        if name == "lock":
            place.sweep(key)

    assert move_shard(read_map(path), key.shard, "b", sweep)


def test_entries_that_are_swept_after_they_were_copied_are_gone(
    store: ShardedStore, place: ShardMember, path: Path
) -> None:
    """Fails if sweeping entries does not write the line of their thread."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 5)
    assert place.bury(key, writer.head, None)
    swept_while_it_moves(place, path, key)
    assert execute(path, "b", "SELECT 1 FROM milecastle.entries WHERE kind < 3") == []


def test_results_that_are_swept_after_they_were_copied_are_gone(
    store: ShardedStore, place: ShardMember, path: Path
) -> None:
    """One came late. Fails if sweeping results does not write the line of their thread."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 5)
    store.commit(results(writer))
    execute(path, "a", "CREATE TABLE late AS SELECT * FROM milecastle.results")
    store.delete(key)
    execute(path, "a", "INSERT INTO milecastle.results SELECT * FROM late")
    swept_while_it_moves(place, path, key)
    assert execute(path, "b", "SELECT 1 FROM milecastle.results") == []


def multiply(path: Path, key: ThreadKey, threads: int, entries: int) -> None:
    """Let the shard of a thread, which has one entry, have so many more with so many each."""
    for query in (_THREADS, _ENTRIES):
        execute(path, "a", query.format(threads=threads, entries=entries))
    execute(path, "a", "VACUUM ANALYZE milecastle.entries, milecastle.threads")


def blocks_read(path: Path, shard: int) -> int:
    """How many blocks the comparison of a shard looks at."""
    address = parse(read_map(path).urls["a"])
    query = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    query += compose(file_text("move_changed"), schema=address.schema)
    with psycopg.connect(**address.connect) as connection:
        row = connection.execute(query, {"shard": shard, "since": "0"}).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_switch_does_not_look_at_every_entry(store: ShardedStore, path: Path) -> None:
    """Fails if the comparison counts the entries of each thread."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    multiply(path, key, 20, 5)
    few = blocks_read(path, key.shard)
    copies = "FROM milecastle.{} WHERE thread <> '" + key.thread + "'"
    for table in ("entries", "threads"):
        execute(path, "a", "DELETE " + copies.format(table))
    multiply(path, key, 20, 500)
    assert blocks_read(path, key.shard) < 2 * few


def test_a_shard_with_long_logs_is_switched_in_time(store: ShardedStore, path: Path) -> None:
    """Fails if writers wait for longer than a switch may take."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    multiply(path, key, ENTRIES // 100, 100)
    times: dict[str, float] = {}

    def note(name: str) -> None:
        times[name] = monotonic()

    began = monotonic()
    assert move_shard(read_map(path), key.shard, "b", note)
    took = times["switch"] - times["locked"]
    moved = monotonic() - began
    print(f"{ENTRIES} entries: moved in {moved:.1f} s, switched in {took:.3f} s")
    assert took < max(0.6, moved / 4)
    copied = execute(path, "b", "SELECT count(*) FROM milecastle.entries")
    assert copied == [(ENTRIES + 1,)]


def test_of_a_thread_that_goes_on_only_what_is_new_is_copied(
    store: ShardedStore, path: Path
) -> None:
    """Fails if entries that have arrived are written again: a long thread that is written all the
    time could not be moved."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 5)
    written = "SELECT seq, xmin::text FROM milecastle.entries ORDER BY seq"
    before: list[tuple[object, ...]] = []

    def go_on(name: str) -> None:
        if name == "lock":
            before.extend(execute(path, "b", written))
            writer.append(store)

    assert move_shard(read_map(path), key.shard, "b", go_on)
    after = execute(path, "b", written)
    assert (after[:-1], len(after)) == (before, writer.head)
    assert [entry.seq for entry in store.history(key)] == list(range(writer.head, 0, -1))


def test_what_is_pruned_while_new_entries_are_copied_is_copied_again(
    store: ShardedStore, path: Path
) -> None:
    """Fails if the moment since which changes are looked for is after the look before."""
    keys = same_shard(25, "a", path)
    writers = [Writer(key, number).begin(store, 5) for number, key in enumerate(keys, 1)]
    steps: list[str] = []

    def change(name: str) -> None:
        if name == "lock" and "lock" not in steps:
            for writer in writers:
                writer.append(store, SNAPSHOT)
        if name == "copy" and "lock" in steps and len(writers[0].entries) > 1:
            writers[0].prune(store, writers[0].head)
        steps.append(name)

    assert move_shard(read_map(path), keys[0].shard, "b", change)
    assert [entry.seq for entry in store.history(keys[0])] == [writers[0].head]


@pytest.mark.parametrize("work", ["sweep", "prune"])
def test_nobody_waits_for_a_mover_that_cleans_up(
    store: ShardedStore, place: ShardMember, path: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a shard that has moved is the mover's. Fails if a deletion, or pruning, goes
    on there: it waits for the mover, or both for each other."""
    monkeypatch.setattr("milecastle.stores.postgres.store._BATCH", 4)
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 12)
    head = writer.append(store, SNAPSHOT).seq
    prune_on: Any = vars(ShardMember)["_prune_on"]
    calls: dict[str, Callable[[], object]] = {
        "sweep": lambda: place.sweep(key),
        "prune": lambda: prune_on(place, key, 4, {"cut": head, "limit": 4}),
    }
    if work == "sweep":
        assert place.bury(key, head, None)
    done: list[str] = []

    def meanwhile(name: str) -> None:
        if name == "delete moved" and not done:
            done.append(name)
            with psycopg.connect(**parse(read_map(path).urls["a"]).connect) as mover:
                mover.execute(b"DELETE FROM milecastle.entries")
                mover.execute(b"DELETE FROM milecastle.threads")
                with pytest.raises(ShardMoved):
                    calls[work]()
                mover.rollback()

    assert move_shard(read_map(path), key.shard, "b", meanwhile)
    assert done
