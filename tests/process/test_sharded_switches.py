"""Moves that meet something else: readers, deletions, other movers, servers with other settings."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from milecastle import StoreError
from milecastle.errors import ShardMoved
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.model.tags import TagChange
from milecastle.ports.limits import Limit
from milecastle.ports.store import Batch
from milecastle.stores.offloading import SharedObjects, offload
from milecastle.stores.postgres import secure
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.sharded import (
    ShardedStore,
    initialise,
    move_shard,
    moving,
    plan_moves,
    read_map,
)
from milecastle.stores.sharded.moving import Superseded
from milecastle.testing.contract_claims import LANE, a_line, queued
from milecastle.testing.contract_inputs import enqueued, inputs_of
from milecastle.testing.entries import Writer, an_entry
from tests.postgres_cluster import needs_postgres, the_cluster, wait_until
from tests.process.postgres_pooler import needs_pooler, the_pooler
from tests.process.sharded_moves import (
    content,
    execute,
    full,
    interrupt,
    results,
    rows_of,
    same_shard,
    states,
)
from tests.sharded_cluster import new_databases, write_map

pytestmark = needs_postgres


def test_a_list_is_whole_though_another_reader_has_seen_the_move(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if what another reader noted after a move is taken for what was there before it."""
    (key,) = same_shard(1, "b", path)
    Writer(key).begin(store)
    assert len(store.threads("tenant")) == 1
    listing, passed = ShardMember.threads, list[str]()

    def passes(self: ShardMember, *given: Any, **named: Any) -> Any:
        found = listing(self, *given, **named)
        if self.name == "a" and not passed:
            passed.append(self.name)
            move_shard(read_map(path), key.shard, "a")
            assert len(store.threads("tenant")) == 1
        return found

    monkeypatch.setattr(ShardMember, "threads", passes)
    assert [line.key for line in store.threads("tenant")] == [key]


def test_moves_that_were_made_are_completed_for_a_list(store: ShardedStore, path: Path) -> None:
    """Several, by several movers. Fails if only one of them is."""
    keys = [*same_shard(1, "a", path), *same_shard(2, "b", path)]
    for number, key in enumerate(keys, 1):
        Writer(key, number).begin(store)
        if key is not keys[1]:
            with pytest.raises(KeyboardInterrupt):
                move_shard(read_map(path), key.shard, "c", interrupt("promote"))
    assert len(store.threads("tenant")) == len(keys)
    assert all(states(path, key.shard)["c"] == "here" for key in (keys[0], keys[2]))


def test_a_function_that_was_committed_is_not_called_again(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction moved with its shard. Fails if it writes a second time, elsewhere."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store)
    honest: Any = ShardMember.transact
    called: list[str] = []

    def lost(self: ShardMember, key: ThreadKey, work: Any) -> None:
        honest.fget(self)(key, work)
        move_shard(read_map(path), key.shard, "b")
        raise ShardMoved(
            tenant=key.tenant, thread=key.thread, shard=0, database="a", version=1, destination="b"
        )

    def work(connection: Any) -> Batch:
        called.append("called")
        return results(writer)

    with monkeypatch.context() as patched:
        patched.setattr(ShardMember, "transact", property(lambda self: partial(lost, self)))
        store.transact(key, work)
    assert called == ["called"]
    assert [result.task for result in store.results(key)] == ["more"]


def test_a_deleted_thread_leaves_nothing_where_its_shard_went(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if its entries are deleted only where they were when the deletion began, or if what
    goes on elsewhere is taken for another deletion, whose head is gone."""
    (key,) = same_shard(1, "a", path)
    (writer,) = full(store, [key])
    writer.append(store, thread=a_line(writer), consumes=(1,))  # the input that waits
    bury = ShardMember.bury

    def moving(self: ShardMember, *given: Any) -> bool:
        found = bury(self, *given)
        move_shard(read_map(path), key.shard, "b")
        return found

    monkeypatch.setattr(ShardMember, "bury", moving)
    assert store.delete(key, head=writer.head)
    left = "SELECT count(*) FROM milecastle.entries WHERE kind < 3"
    assert [execute(path, name, left)[0][0] for name in "abc"] == [0, 0, 0]


def test_a_thread_is_pruned_where_its_shard_went(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the rest of what is below the cut is dropped only where it was."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 8)
    writer.append(store, SNAPSHOT)
    monkeypatch.setattr("milecastle.stores.postgres.store._BATCH", 2)
    prune_on, moved = vars(ShardMember)["_prune_on"], list[str]()

    def moving(self: ShardMember, *given: Any) -> Any:
        if not moved:
            moved.append(self.name)
            move_shard(read_map(path), key.shard, "b")
        return prune_on(self, *given)

    monkeypatch.setattr(ShardMember, "_prune_on", moving)
    writer.prune(store, writer.head)
    assert [entry.seq for entry in store.history(key)] == [writer.head]
    assert execute(path, "b", "SELECT count(*) FROM milecastle.entries") == [(1,)]


def test_a_shard_that_moved_is_no_fault_of_its_database(
    store: ShardedStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if a database is reported as failing because a shard has left it."""
    (key,) = same_shard(1, "a", path)
    queued(store, key.thread, 1, worker="one")
    move_shard(read_map(path), key.shard, "b")
    with caplog.at_level(logging.WARNING, "milecastle"):
        assert store.give_back("one", key)
    assert not caplog.records


def test_a_move_that_was_given_up_leaves_no_copy(store: ShardedStore, path: Path) -> None:
    """A thread that is deleted later must not be left there. Fails if only sources are cleaned."""
    (key,) = same_shard(1, "a", path)
    full(store, [key])
    with pytest.raises(KeyboardInterrupt):
        move_shard(read_map(path), key.shard, "b", interrupt("lock"))
    assert rows_of(path, "b") > 0
    assert move_shard(read_map(path), key.shard, "c")
    assert rows_of(path, "a") == rows_of(path, "b") == 0
    assert states(path, key.shard) == {"a": "moved", "b": "moved", "c": "here"}
    assert store.head(key) is not None
    assert move_shard(read_map(path), key.shard, "b")


def test_cleaning_up_does_not_end_a_move_under_way(store: ShardedStore, path: Path) -> None:
    """Fails if every copy that has not arrived is taken for one that was given up."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store)
    passed: list[str] = []

    def move_on(name: str) -> None:
        if name == "delete moved" and not passed:
            passed.append(name)
            with pytest.raises(KeyboardInterrupt):
                move_shard(read_map(path), key.shard, "c", interrupt("lock"))

    assert move_shard(read_map(path), key.shard, "b", move_on)
    writer.append(store)
    assert states(path, key.shard) == {"a": "moved", "b": "here", "c": "arriving"}


def test_a_shard_that_is_to_stay_ends_a_move_under_way(store: ShardedStore, path: Path) -> None:
    """The later command decides. Fails if the move is made, or if its copy stays."""
    (key,) = same_shard(1, "a", path)
    full(store, [key])

    def stay(name: str) -> None:
        if name == "lock":
            assert not move_shard(read_map(path), key.shard, "a")

    with pytest.raises(Superseded):
        move_shard(read_map(path), key.shard, "b", stay)
    assert states(path, key.shard) == {"a": "here", "b": "moved"}
    assert rows_of(path, "b") == 0

    def leave(name: str) -> None:
        assert name == "clean"

    assert not move_shard(read_map(path), key.shard, "a", leave)
    assert store.head(key) is not None


def test_a_shard_that_has_just_left_is_not_said_to_stay(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a command reports that a shard is where it was a moment ago."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    note, passed = vars(moving._Move)["_noted"], list[str]()  # pyright: ignore[reportPrivateUsage]

    def late(self: Any, source: Any) -> Any:
        if not passed:
            passed.append("passed")
            assert move_shard(read_map(path), key.shard, "b")
        return note(self, source)

    monkeypatch.setattr("milecastle.stores.sharded.moving._Move._noted", late)
    with pytest.raises(Superseded):
        move_shard(read_map(path), key.shard, "a")


def test_a_move_back_does_not_fail_the_move_that_was_made(store: ShardedStore, path: Path) -> None:
    """Fails if a mover that cleans up reports a move as not made, or deletes what came back."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store, 3)
    passed: list[str] = []

    def back(name: str) -> None:
        if name == "delete moved" and not passed:
            passed.append(name)
            assert move_shard(read_map(path), key.shard, "a")

    assert move_shard(read_map(path), key.shard, "b", back)
    writer.append(store)
    assert len(list(store.history(key))) == 4
    assert states(path, key.shard) == {"a": "here", "b": "moved"}


def test_a_switch_that_takes_long_is_undone_and_tried_again(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if writers wait for a mover that is slow, but answers from time to time."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    seen: list[str] = []

    def slow(name: str) -> None:
        seen.append(name)
        monkeypatch.setattr(moving, "_PATIENCE", 0.3 if seen.count("lock") > 1 else 0.1)
        if name == "locked" and seen.count(name) == 1:
            sleep(0.2)

    assert move_shard(read_map(path), key.shard, "b", slow)
    assert (seen.count("locked"), seen.count("switch")) == (2, 1)


def test_a_move_is_on_disk_though_commits_are_not(path: Path) -> None:
    """Fails if a crash of the source could take back a switch that the destination knows of."""
    text = path.read_text("utf-8")
    for url in read_map(path).urls.values():
        text = text.replace(f'"{url}"', f'"{url}?synchronous_commit=off"')
    path.write_text(text, "utf-8")
    for name, url in read_map(path).urls.items():
        database = parse(url).connect["dbname"]
        execute(path, name, f'ALTER DATABASE "{database}" SET synchronous_commit = off')
        execute(path, name, "CREATE TABLE seen (state text, setting text)")
        execute(
            path,
            name,
            "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO "
            "public.seen VALUES (new.state, current_setting('synchronous_commit')); RETURN new; "
            "END $$; CREATE TRIGGER see AFTER UPDATE ON milecastle.placements FOR EACH ROW "
            "EXECUTE FUNCTION see()",
        )
    (key,) = same_shard(1, "a", path)
    with closing(ShardedStore(path)) as store:
        Writer(key).begin(store)
    assert move_shard(read_map(path), key.shard, "b")
    assert execute(path, "a", "SHOW synchronous_commit") == [("off",)]
    switched = "SELECT setting FROM seen WHERE state = 'moved' LIMIT 1"
    assert execute(path, "a", switched) == [("on",)]


def test_a_database_of_another_map_is_not_moved_to(path: Path) -> None:
    """Fails if threads are written to a database that only has the right URL."""
    shard = same_shard(1, "a", path)[0].shard
    execute(path, "b", "UPDATE milecastle.membership SET id = id || '!'")
    with pytest.raises(StoreError, match="belong to different maps"):
        move_shard(read_map(path), shard, "b")
    execute(path, "b", "UPDATE milecastle.membership SET id = rtrim(id, '!'), name = 'z'")
    with pytest.raises(StoreError, match="database 'b' is 'z' of a map"):
        move_shard(read_map(path), shard, "b")
    execute(path, "b", "DELETE FROM milecastle.membership")
    with pytest.raises(StoreError, match="database 'b' belongs to no map"):
        move_shard(read_map(path), shard, "b")


def test_a_mover_that_is_shown_only_some_rows_is_refused(store: ShardedStore, path: Path) -> None:
    """Row-level security hides rows. Fails if a shard is moved without those."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    url = read_map(path).urls["a"]
    role = f"hidden_{parse(url).connect['dbname']}"
    execute(path, "a", f"CREATE ROLE {role} LOGIN")
    secure(url, role=role)
    granted = f"GRANT ALL ON ALL TABLES IN SCHEMA milecastle TO {role}"
    execute(path, "a", granted)
    hidden = url.replace("postgres@", f"{role}@")
    path.write_text(path.read_text("utf-8").replace(url, hidden), "utf-8")
    with pytest.raises(StoreError, match="row-level security is on"):
        move_shard(read_map(path), key.shard, "b")
    assert states(path, key.shard) == {"a": "here"}


def test_a_shard_in_two_databases_is_not_moved(store: ShardedStore, path: Path) -> None:
    """One was restored from a backup. Fails if either is taken for the only one."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    assert move_shard(read_map(path), key.shard, "b")
    execute(path, "a", f"UPDATE milecastle.placements SET state = 'here' WHERE shard = {key.shard}")
    with pytest.raises(StoreError, match="databases a and b both have shard"):
        move_shard(read_map(path), key.shard, "c")


def test_inputs_that_were_moved_come_first(store: ShardedStore, path: Path) -> None:
    """Fails if later ones are put before them, also one that comes just before the switch."""
    (key,) = same_shard(1, "a", path)
    writer = queued(store, key.thread, 1, worker="one")
    runs = [enqueued(store, writer, 2)]
    assert move_shard(read_map(path), key.shard, "b")
    runs += [enqueued(store, writer, 3)]

    def late(name: str) -> None:
        if name == "lock" and len(runs) == 2:
            runs.append(enqueued(store, writer, 4))

    assert move_shard(read_map(path), key.shard, "c", late)
    runs += [enqueued(store, writer, 5)]
    assert inputs_of(store, key) == [run.run_id for run in runs]


def test_a_plan_moves_what_is_written_to(store: ShardedStore, path: Path) -> None:
    """Fails if a plan looks at sizes alone, or takes what was moved meanwhile for busy."""
    writers = {name: Writer(same_shard(2, name, path)[1], n) for n, name in enumerate("abc", 1)}
    for writer in writers.values():
        writer.begin(store, 20)
    busy = [writers["a"], Writer(same_shard(3, "a", path)[2], 9)]
    assert busy[0].key.shard != busy[1].key.shard
    busy[1].begin(store, 20)
    shards = read_map(path)
    assert plan_moves(shards) == []

    def write(seconds: float) -> None:
        assert seconds == 0.01
        for writer in busy:
            writer.append(store)

    first, *_ = plan_moves(shards, seconds=0.01, wait=write)
    assert first.shard in [writer.key.shard for writer in busy]
    assert first.rate > 0
    assert (first.source, first.entries) == ("a", 21)
    moved = plan_moves(shards, seconds=0.01, wait=lambda _: move_shard(shards, first.shard, "b"))
    assert moved == []


def test_threads_can_be_claimed_as_soon_as_they_have_moved(store: ShardedStore, path: Path) -> None:
    """Fails if what was due before a move is not offered after it."""
    (key,) = same_shard(1, "a", path)
    queued(store, key.thread, 1, due_at=1)

    def claim(name: str) -> None:
        if name == "locked":
            assert store.claim("one", [LANE], limit=9) == []

    assert move_shard(read_map(path), key.shard, "b", claim)
    assert [line.key for line in store.claim("one", [LANE], limit=9)] == [key]


def test_limits_count_threads_between_two_databases(store: ShardedStore, path: Path) -> None:
    """The mover died behind its switch. Fails if what nobody has at that moment is not counted."""
    first, second = same_shard(1, "a", path)[0], same_shard(1, "b", path)[0]
    for number, key in enumerate((first, second), 1):
        queued(store, key.thread, number, due_at=number)
    store.set_limit(Limit(graph="graph", concurrency=1))
    assert [line.key for line in store.claim("one", [LANE], limit=1)] == [first]
    with pytest.raises(KeyboardInterrupt):
        move_shard(read_map(path), first.shard, "c", interrupt("promote"))
    assert store.claim("two", [LANE], limit=9) == []
    assert states(path, first.shard)["c"] == "here"


def test_emitted_values_are_heard_after_a_move(store: ShardedStore, path: Path) -> None:
    """Fails if a reader hears only what is published where the thread was when it began."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)
    heard: list[bytes] = []
    ends = [store.feed.subscribe(key, heard.append), store.feed.subscribe_soon(key, heard.append)]
    wait_until(lambda: heard == [b""])  # only its own database says that it hears now
    move_shard(read_map(path), key.shard, "b")

    with closing(ShardedStore(path)) as other:

        def is_heard() -> bool:
            other.feed.publish(key, b"after")
            return heard.count(b"after") >= 2

        wait_until(is_heard)
    for end in ends:
        end()


def test_tags_that_are_left_over_are_not_read(store: ShardedStore, path: Path) -> None:
    """Fails if a process that does not know of a move reads the tags of the copy."""
    (key,) = same_shard(1, "a", path)
    (writer,) = full(store, [key])
    with pytest.raises(KeyboardInterrupt):
        move_shard(read_map(path), key.shard, "b", interrupt("delete moved"))
    with closing(ShardedStore(path)) as other:
        other.commit(writer.batch(tags=TagChange(add=("green",), remove=("blue",))))
    assert store.tags.of("tenant", [key.thread]) == {key.thread: ("green",)}


def test_a_dashboard_does_not_count_copies(store: ShardedStore, path: Path) -> None:
    """Fails if threads are queued where their shard has not arrived, or that it has left."""
    (key,) = same_shard(1, "a", path)
    queued(store, key.thread, 1, due_at=1)
    query = "SELECT coalesce(sum(due), 0)::int FROM milecastle.queue"
    with pytest.raises(KeyboardInterrupt):
        move_shard(read_map(path), key.shard, "b", interrupt("lock"))
    assert [execute(path, name, query)[0][0] for name in "abc"] == [1, 0, 0]
    with pytest.raises(KeyboardInterrupt):
        move_shard(read_map(path), key.shard, "b", interrupt("delete moved"))
    assert [execute(path, name, query)[0][0] for name in "abc"] == [0, 1, 0]


@needs_pooler
def test_shards_move_through_a_pooler(tmp_path: Path) -> None:
    """In transaction mode. Fails if a move relies on its session, or leaves settings behind."""
    direct = f":{the_cluster().port}/"
    urls = {
        name: f"{url.replace(direct, f':{the_pooler()}/')}?prepare=off&max_size=4"
        for name, url in new_databases(2).items()
    }
    path = write_map(tmp_path / "shards.toml", urls)
    initialise(read_map(path))
    with closing(ShardedStore(path)) as store:
        (key,) = same_shard(1, "a", path)
        (writer,) = full(store, [key])
        before = content(store, writer, 1)
        with pytest.raises(KeyboardInterrupt):
            move_shard(read_map(path), key.shard, "b", interrupt("locked"))
        for to in "bab":
            assert move_shard(read_map(path), key.shard, to)
            assert content(store, writer, 1) == before
        for name in "ab":
            assert execute(path, name, "SHOW statement_timeout") == [("0",)]
            assert execute(path, name, "SHOW synchronous_commit") == [("on",)]


def test_a_store_whose_shards_move_is_the_store_that_its_objects_belong_to(
    path: Path, tmp_path: Path
) -> None:
    """Fails if a move leaves the manifests behind, of which one is the identity of the store."""
    objects = SharedObjects(f"file://{tmp_path}/objects", threshold=20)
    shards = read_map(path)
    for number in range(2):
        with closing(ShardedStore(path)) as store:
            key = ThreadKey("tenant", f"thread {number}")
            entry = an_entry(1, payload=b"large " * 10)
            offload(store, objects).commit(Batch(key=key, head=0, entries=(entry,)))
        identity = ThreadKey("tenant", "object storage")
        there = {name for name in shards.urls if identity.shard in shards.shards_of(name)}
        move_shard(shards, identity.shard, min(shards.urls.keys() - there))
