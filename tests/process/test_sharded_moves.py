"""Moving shards: everything of them, while threads are written, and whatever dies meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest

from milecastle import Conflict, InvalidRequest, StoreError, Unavailable
from milecastle.errors import ShardMoved
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import SHARDS, ThreadKey
from milecastle.model.tags import TagChange
from milecastle.ports.limits import Limit
from milecastle.ports.store import Batch
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.sharded import ShardedStore, initialise, move_shard, plan_moves, read_map
from milecastle.stores.sharded.moving import Superseded
from milecastle.testing.contract_claims import LANE, a_line, a_worker, names, queued
from milecastle.testing.contract_inputs import enqueue, enqueued, inputs_of, waiting_run
from milecastle.testing.entries import Writer
from tests.postgres_cluster import needs_postgres
from tests.process.fleet_chaos import ROOT
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
from tests.sharded_cluster import empty_map, new_databases

pytestmark = needs_postgres


def test_everything_of_a_shard_moves_and_nothing_else(store: ShardedStore, path: Path) -> None:
    """Fails if a table is left out, if something stays behind, or the order of inputs is lost."""
    keys = same_shard(3, "a", path)
    shard = keys[0].shard
    writers = full(store, keys)
    other = next(key for key in same_shard(9, "a", path) if key.shard != shard)
    Writer(other, 50).begin(store)
    before = [content(store, writer, number) for number, writer in enumerate(writers, 1)]
    rows = rows_of(path, "a")
    told: list[str] = []
    assert move_shard(read_map(path), shard, "b", told.append)
    assert states(path, shard) == {"a": "moved", "b": "here"}
    after = [content(store, writer, number) for number, writer in enumerate(writers, 1)]
    assert after == before
    assert rows_of(path, "a") + rows_of(path, "b") == rows
    for writer in writers:
        writer.append(store)
        later = enqueued(store, writer, 200)
        assert inputs_of(store, writer.key)[1:] == [later.run_id]
    assert not move_shard(read_map(path), shard, "b")
    with closing(ShardedStore(path)) as again:
        assert {line.key for line in again.threads("tenant")} >= set(keys)
        assert len(again.claim("one", [LANE], limit=99)) == len(keys)
    assert set(told) >= {"begin", "expect", "copy", "lock", "switch", "promote", "clean"}


def test_a_shard_moves_there_and_back(store: ShardedStore, path: Path) -> None:
    """Fails if leftovers of an earlier move come back, or a deleted thread does."""
    keys = same_shard(3, "a", path)
    writers = [Writer(key, number).begin(store, 2) for number, key in enumerate(keys, 1)]
    shards, shard = read_map(path), keys[0].shard
    for to in ("b", "c", "a", "b", "a"):
        assert move_shard(shards, shard, to)
        store.delete(writers[0].key)
        writers[0] = Writer(writers[0].key, writers[0].run.started_at + 10).begin(store)
        for writer in writers:
            writer.append(store)
    for writer in writers:
        assert [entry.id for entry in store.history(writer.key)] == [
            writer.entries[seq].id for seq in sorted(writer.entries, reverse=True)
        ]
    assert len(store.threads("tenant")) == 3
    assert rows_of(path, "b") == rows_of(path, "c") == 0


def test_a_process_with_an_old_map_finds_a_shard(store: ShardedStore, path: Path) -> None:
    """By every call. Fails if one is refused though the shard is served elsewhere."""
    keys = same_shard(2, "a", path)
    writers = full(store, keys)
    with closing(ShardedStore(path)) as old:
        listed = old.history(keys[1])
        first = next(listed)
        move_shard(read_map(path), keys[0].shard, "c")
        assert [first.seq, *(entry.seq for entry in listed)] == [2, 1]
        writers[0].append(old)
        assert list(old.commit_many([writers[1].batch(writers[1].plan())])) == [None]
    calls: list[Callable[[ShardedStore], object]] = [
        lambda store: store.read(keys[0]),
        lambda store: store.threads("tenant"),
        lambda store: store.recent_runs("tenant"),
        lambda store: store.transact(keys[0], lambda connection: results(writers[0])),
        lambda store: enqueue(store, waiting_run(writers[0], 7)),
        lambda store: store.read_many(keys)[keys[1]],
        lambda store: store.tags.of("tenant", [key.thread for key in keys])[keys[1].thread],
        lambda store: store.delete(keys[1]),
    ]
    for call in calls:
        to = "a" if states(path, keys[0].shard)["c"] == "here" else "c"
        with closing(ShardedStore(path)) as old:
            move_shard(read_map(path), keys[0].shard, to)
            assert call(old) is not False
    store.claim("one", [LANE], limit=9)
    move_shard(read_map(path), keys[0].shard, "b")
    assert store.give_back("one", keys[0])


def test_a_switch_that_was_made_is_completed_by_the_next_reader(
    store: ShardedStore, path: Path
) -> None:
    """Fails if anybody waits for a mover that died behind its switch."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)

    def die(name: str) -> None:
        if name == "promote":
            raise KeyboardInterrupt

    for call in (lambda: store.head(key), lambda: store.threads("tenant")):
        to = "b" if states(path, key.shard).get("b") != "here" else "c"
        with pytest.raises(KeyboardInterrupt):
            move_shard(read_map(path), key.shard, to, die)
        assert "here" not in states(path, key.shard).values()
        assert call()
        assert states(path, key.shard)[to] == "here"
    with closing(ShardedStore(path)) as again:
        assert again.head(key)


STEPS = (
    *("begin", "expect", "noted", "delete arriving", "copy", "lock", "locked", "switch"),
    *("promote", "delete moved", "clean"),
)
DYING = """
import os, signal, sys
from milecastle.stores.sharded import move_shard, read_map

def step(name):
    if name == sys.argv[4]:
        os.kill(os.getpid(), signal.SIGKILL)

move_shard(read_map(sys.argv[1]), int(sys.argv[2]), sys.argv[3], step)
"""


@pytest.mark.parametrize("step", STEPS)
def test_a_mover_that_is_killed_leaves_one_place_that_serves(
    store: ShardedStore, path: Path, step: str
) -> None:
    """At every step. Fails if threads are lost, are in two places, or if moving again fails."""
    keys = same_shard(2, "a", path)
    shard = keys[0].shard
    writers = [Writer(key, number).begin(store, 3) for number, key in enumerate(keys, 1)]
    if step == "delete arriving":  # which needs leftovers of an earlier move
        with pytest.raises(KeyboardInterrupt):
            move_shard(read_map(path), shard, "b", interrupt("lock"))
    command = [sys.executable, "-c", DYING, str(path), str(shard), "b", step]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    for writer in writers:
        writer.append(store)
    assert names(store.threads("tenant")) == sorted(key.thread for key in keys)
    assert list(states(path, shard).values()).count("here") == 1
    move_shard(read_map(path), shard, "b")
    for writer in writers:
        writer.append(store)
        assert len(list(store.history(writer.key))) == 5
    assert states(path, shard)["b"] == "here"
    assert rows_of(path, "a") == 0


@pytest.mark.parametrize("step", ["copy", "lock"])
def test_of_two_movers_the_later_one_moves(store: ShardedStore, path: Path, step: str) -> None:
    """Also if both go to the same place. Fails if the earlier one writes there, or switches, or if
    its copy is left over."""
    keys = same_shard(2, "a", path)
    shard = keys[0].shard
    writers = [Writer(key, number).begin(store, 3) for number, key in enumerate(keys, 1)]
    for to in ("b", "c"):
        passed: list[str] = []

        def meet(name: str, to: str = to, passed: list[str] = passed) -> None:
            if name == step and not passed:
                passed.append(name)
                assert move_shard(read_map(path), shard, to)
                for writer in writers:
                    writer.append(store)

        with pytest.raises(Superseded):
            move_shard(read_map(path), shard, "b" if to == "b" else "a", meet)
        assert states(path, shard)[to] == "here"
        for writer in writers:
            assert len(list(store.history(writer.key))) == writer.head
        assert names(store.threads("tenant")) == sorted(key.thread for key in keys)
        assert sum(rows_of(path, name) > 0 for name in "abc") == 1


def is_whole(store: ShardedStore, writer: Writer) -> bool:
    """Whether a thread has every entry that its writer has, once."""
    try:
        return [entry.seq for entry in store.history(writer.key)] == list(range(writer.head, 0, -1))
    except StoreError:
        return False


@pytest.mark.parametrize("is_fenced", [True, False])
def test_writers_lose_nothing_while_their_shard_moves(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """Every acknowledged step is there once. The control has no fence, and loses some."""
    keys = same_shard(4, "a", path)
    shard = keys[0].shard
    if not is_fenced:
        monkeypatch.setattr("milecastle.stores.postgres.shard_member.ShardMember._is_placed", False)
        for database in "abc":
            execute(path, database, "ALTER TABLE milecastle.threads ALTER shard DROP NOT NULL")
    stopped, failures = threading.Event(), list[BaseException]()
    writers = [Writer(key, number) for number, key in enumerate(keys, 1)]

    def write(writer: Writer) -> None:
        try:
            with closing(ShardedStore(path)) as store:
                writer.begin(store)
                while not stopped.is_set():
                    writer.append(store)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    with closing(ShardedStore(path)) as store:
        while not all(writer.head > 2 for writer in writers):
            assert not failures, failures
        if not is_fenced:
            execute(path, "a", f"UPDATE milecastle.threads SET shard = {shard}")
        for to in ("b", "c", "a", "b"):
            move_shard(read_map(path), shard, to)
        stopped.set()
        for thread in threads:
            thread.join()
        lost = sum(not is_whole(store, writer) for writer in writers)
    assert (lost == 0 and not failures) == is_fenced, (lost, failures)


def test_a_claim_moves_with_its_thread(store: ShardedStore, path: Path) -> None:
    """Fails if a worker loses its threads, or another gets them, because of a move."""
    keys = same_shard(2, "a", path)
    for number, key in enumerate(keys, 1):
        queued(store, key.thread, number, due_at=number)
    store.beat(a_worker("one"))
    assert len(store.claim("one", [LANE], limit=1)) == 1
    move_shard(read_map(path), keys[0].shard, "c")
    assert store.reclaim(60) == 0
    assert list(store.claimed("one")) == [keys[0]]
    assert names(store.claim("two", [LANE], limit=9)) == [keys[1].thread]


def test_a_database_that_is_added_takes_shards_and_limits(path: Path) -> None:
    """Fails if limits do not hold in it, or the file of before cannot be opened any more."""
    with closing(ShardedStore(path)) as store:
        store.set_limit(Limit(graph="graph", concurrency=1))
        keys = same_shard(3, "a", path)
        for number, key in enumerate(keys, 1):
            queued(store, key.thread, number, due_at=number)
    text = path.read_text("utf-8")
    added = f'[databases]\nnew = "{new_databases(1)["a"]}"'
    path.write_text(text.replace("[databases]", added), "utf-8")
    initialise(read_map(path))
    move_shard(read_map(path), keys[0].shard, "new")
    with closing(ShardedStore(path)) as store:
        assert len(store.claim("one", [LANE], limit=9)) == 1
        assert store.claim("two", [LANE], limit=9) == []
        assert len(store.threads("tenant")) == 3
    assert list(initialise(read_map(path))) == []


def test_a_plan_evens_out_databases(store: ShardedStore, path: Path) -> None:
    """Fails if a plan makes it worse, or forgets what it has planned."""
    empty_map(path)
    shards = read_map(path)
    keys = [ThreadKey("tenant", f"{number}") for number in range(40)]
    own = [key for key in keys if shards.owners[key.shard] == "a"]
    for number, key in enumerate(own, 1):
        Writer(key, number).begin(store, 2)
    moves = plan_moves(shards)
    assert moves[:1] == plan_moves(shards, most=1)
    assert {move.source for move in moves} == {"a"}
    for move in moves:
        assert move_shard(shards, move.shard, move.to)
    assert plan_moves(shards) == []


def test_a_move_that_cannot_be_is_refused(path: Path) -> None:
    """Fails if a name or a number is taken for another."""
    shards = read_map(path)
    with pytest.raises(InvalidRequest, match="is not a database"):
        move_shard(shards, 1, "nowhere")
    with pytest.raises(InvalidRequest, match="there is no shard 1024"):
        move_shard(shards, SHARDS, "a")
    key = next(k for k in (ThreadKey("t", f"{n}") for n in range(99_999)) if k.shard == 0)
    with closing(ShardedStore(path)) as store:
        execute(path, "a", "DELETE FROM milecastle.placements WHERE shard = 0")
        with pytest.raises(ShardMoved):
            store.head(key)
        with pytest.raises(Unavailable, match="being moved all the time"):
            store.threads("t")
    with pytest.raises(StoreError, match="no database of the map has shard 0"):
        move_shard(shards, 0, "b")


def test_a_transaction_that_holds_a_thread_for_long_delays_a_move(
    store: ShardedStore, path: Path
) -> None:
    """Fails if the mover waits for it forever, and with it all writers of the shard."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store)
    url = read_map(path).urls["a"]
    with psycopg.connect(**parse(url).connect) as slow:
        slow.execute(
            b"SELECT FROM milecastle.placements WHERE shard = %s FOR KEY SHARE", [key.shard]
        )
        with pytest.raises(StoreError, match="could not be moved"):
            move_shard(read_map(path), key.shard, "b")
        writer.append(store)
    assert move_shard(read_map(path), key.shard, "b")


def test_a_switch_that_was_made_is_completed_by_the_next_mover(
    store: ShardedStore, path: Path
) -> None:
    """Fails if a move elsewhere begins at a place that does not have the shard."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store)
    with pytest.raises(KeyboardInterrupt):
        move_shard(read_map(path), key.shard, "b", interrupt("promote"))
    assert move_shard(read_map(path), key.shard, "c")
    assert states(path, key.shard) == {"a": "moved", "b": "moved", "c": "here"}
    writer.append(store)
    assert rows_of(path, "a") == rows_of(path, "b") == 0


def test_a_destination_that_was_taken_meanwhile_is_left_alone(
    store: ShardedStore, path: Path
) -> None:
    """Fails if a late mover takes the place of another, whose copy would be deleted."""
    (key,) = same_shard(1, "a", path)
    Writer(key).begin(store)

    def taken(name: str) -> None:
        if name == "expect":
            execute(
                path,
                "b",
                "INSERT INTO milecastle.placements (shard, state, move, version) VALUES "
                f"({key.shard}, 'arriving', 7, 1)",
            )

    with pytest.raises(Superseded):
        move_shard(read_map(path), key.shard, "b", taken)
    assert states(path, key.shard) == {"a": "here", "b": "arriving"}
    assert execute(path, "a", "SELECT max(move) FROM milecastle.placements") == [(None,)]

    def stolen(name: str) -> None:
        if name == "locked":
            execute(path, "b", "UPDATE milecastle.placements SET move = 8")

    with pytest.raises(Superseded):
        move_shard(read_map(path), key.shard, "b", stolen)
    assert states(path, key.shard)["a"] == "here"


def test_what_changes_while_it_is_copied_is_copied_again(store: ShardedStore, path: Path) -> None:
    """Also what was deleted. Fails if a thread is left as it was when it was first read."""
    keys = same_shard(30, "a", path)
    writers = [Writer(key, number).begin(store, 3) for number, key in enumerate(keys, 1)]
    seen: list[str] = []

    def change(name: str) -> None:
        seen.append(name)
        if name == "lock" and seen.count("lock") == 1:
            for writer in writers[:25]:
                writer.append(store, SNAPSHOT)
            writers[25].append(store, SNAPSHOT)
            writers[25].prune(store, 4)
            store.delete(writers[26].key)
            store.commit(writers[27].batch(thread=a_line(writers[27], questions=7)))
            store.commit(results(writers[28]))

    assert move_shard(read_map(path), keys[0].shard, "b", change)
    assert seen.count("lock") == 2
    line = store.thread(keys[27])
    assert line is not None
    assert (line.questions, len(store.results(keys[28]))) == (7, 1)
    for number, writer in enumerate(writers):
        found = [entry.seq for entry in store.history(writer.key)]
        expected = [] if number == 26 else sorted(writer.entries, reverse=True)
        assert found == expected, number


def test_a_tag_that_takes_the_place_of_another_moves(store: ShardedStore, path: Path) -> None:
    """There are as many as before. Fails if tags are read where the shard was."""
    (key,) = same_shard(1, "a", path)
    (writer,) = full(store, [key])

    def swap(name: str) -> None:
        if name == "lock":
            change = TagChange(add=("green",), remove=("blue",))
            store.commit(writer.batch(tags=change))

    move_shard(read_map(path), key.shard, "b", swap)
    assert store.tags.of("tenant", [key.thread]) == {key.thread: ("green",)}


def test_a_shard_that_changes_too_fast_is_not_moved(store: ShardedStore, path: Path) -> None:
    """Fails if a mover holds up writers for as long as it takes to copy many threads."""
    keys = same_shard(25, "a", path)
    writers = [Writer(key, number).begin(store) for number, key in enumerate(keys, 1)]

    def change(name: str) -> None:
        if name == "lock":
            for writer in writers:
                writer.append(store)

    with pytest.raises(Unavailable, match="could not be moved"):
        move_shard(read_map(path), keys[0].shard, "b", change)
    assert move_shard(read_map(path), keys[0].shard, "b")


def test_a_commit_without_an_answer_that_moved_with_its_shard_is_written(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if it is reported as a conflict with itself, or a real conflict as written."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store)
    commit, lost = ShardMember.commit, list[Batch]()

    def losing(self: ShardMember, batch: Batch) -> None:
        commit(self, batch)
        if batch not in lost:
            lost.append(batch)
            raise ShardMoved(
                tenant="t", thread="t", shard=1, database="a", version=1, destination=None
            )

    entry = writer.plan()
    batch = writer.batch(entry)
    monkeypatch.setattr(ShardMember, "commit", losing)
    store.commit(batch)
    writer.keep(entry)
    assert len(lost) == 1

    def moved(self: ShardMember, batches: list[Batch]) -> list[StoreError]:
        error = ShardMoved(tenant="t", thread="t", shard=1, database="", version=1, destination="")
        return [error] * len(batches)

    monkeypatch.setattr(ShardMember, "_commit_many", moved)
    (again,) = store.commit_many([batch])
    assert again is None
    stale = Writer(key, 9)
    (refused,) = store.part_of(key).commit_many([stale.batch(stale.plan())])
    assert isinstance(refused, Conflict)


def test_a_database_that_cannot_be_reached_is_named(path: Path) -> None:
    """Fails if nobody can tell which of the databases it is."""
    url = read_map(path).urls["b"]
    text = path.read_text("utf-8").replace(url, "postgresql://postgres@127.0.0.1:1/none")
    path.write_text(text, "utf-8")
    for call in (lambda: move_shard(read_map(path), 1, "c"), lambda: plan_moves(read_map(path))):
        with pytest.raises(Unavailable, match="database 'b' of the map"):
            call()
    path.write_text(text.replace("127.0.0.1:1/none", url.rpartition("@")[2]), "utf-8")
    added = path.read_text("utf-8").replace(
        "[databases]", f'[databases]\nnew = "{new_databases(1)["a"]}"'
    )
    path.write_text(added, "utf-8")
    with pytest.raises(StoreError, match="database 'new' belongs to no map"):
        plan_moves(read_map(path))


def test_a_list_has_each_thread_once_while_shards_move(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a shard passes the reader. Fails if a list is not read again then."""
    keys = same_shard(2, "a", path)
    for number, key in enumerate(keys, 1):
        queued(store, key.thread, number, worker="one")
    calls: list[tuple[str, str, Callable[[], Iterable[ThreadKey]]]] = [
        ("b", "a", lambda: [line.key for line in store.threads("tenant")]),
        ("a", "a", lambda: store.claimed("one")),
        ("c", "a", lambda: [line.key for line in store.recent_threads("tenant").items]),
        ("a", "b", lambda: [one.key for one in store.recent_runs("tenant").items]),
    ]
    for to, when, call in calls:
        moved: list[str] = []
        for name in ("threads", "claimed", "recent_lines", "recent_records"):
            listing = getattr(ShardMember, name)

            def then_moves(
                self: ShardMember,
                *given: Any,
                listing: Any = listing,
                to: str = to,
                when: str = when,
                moved: list[str] = moved,
                **named: Any,
            ) -> Any:
                found = listing(self, *given, **named)
                if self.name == when and not moved:
                    moved.append(to)
                    move_shard(read_map(path), keys[0].shard, to)
                return found

            monkeypatch.setattr(ShardMember, name, then_moves)
        assert sorted(call()) == sorted(keys), to
        assert moved == [to]
        monkeypatch.undo()


def test_a_mover_that_hangs_is_ended_by_the_server(store: ShardedStore, path: Path) -> None:
    """Fails if writers wait for it for as long as it hangs."""
    (key,) = same_shard(1, "a", path)
    writer = Writer(key).begin(store)
    waited: list[float] = []

    def hang(name: str) -> None:
        if name == "locked":
            began = monotonic()
            writer.append(store)
            waited.append(monotonic() - began)

    with pytest.raises(Unavailable):
        move_shard(read_map(path), key.shard, "b", hang)
    assert 0.3 < waited[0] < 10
    assert states(path, key.shard)["a"] == "here"
    assert move_shard(read_map(path), key.shard, "b")
