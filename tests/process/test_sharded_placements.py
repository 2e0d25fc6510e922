"""Placements: what a database of a map refuses, and what it takes to join one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from milecastle import Conflict, InvalidRequest, StoreError
from milecastle.errors import ShardMoved
from milecastle.model.checkpoint import SNAPSHOT, TaskResult
from milecastle.model.keys import SHARDS, ThreadKey
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.mailbox import Marks
from milecastle.ports.store import Batch
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.placements import join
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.sharded import ShardedStore, initialise, read_map
from milecastle.testing.contract_claims import LANE, a_line, names, queued
from milecastle.testing.contract_inputs import enqueue
from milecastle.testing.entries import Writer, a_run
from tests.postgres_cluster import needs_postgres, new_schema, secured_url, the_cluster, wait_until
from tests.sharded_cluster import new_databases, new_map, write_map

pytestmark = needs_postgres


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_map(tmp_path, 2)


@pytest.fixture
def placed(path: Path) -> Iterator[ShardMember]:
    """Database a alone, which nothing routes around."""
    with closing(ShardMember(read_map(path).urls["a"], "a")) as store:
        yield store


def execute(path: Path, query: str, database: str = "a") -> list[tuple[object, ...]]:
    """Run SQL in a database of a map."""
    url = read_map(path).urls[database]
    with psycopg.connect(**parse(url).connect, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def key_in(path: Path, database: str, number: int = 0) -> ThreadKey:
    """A thread of a database."""
    shards = read_map(path).shards_of(database)
    keys = (ThreadKey("tenant", f"{database} {each}") for each in range(SHARDS))
    return [key for key in keys if key.shard in shards][number]


def move_away(path: Path, key: ThreadKey, *, leftovers: bool = True) -> None:
    """As the last statement of a move."""
    execute(
        path,
        "UPDATE milecastle.placements SET state = 'moved', destination = 'b', leftovers = "
        f"{leftovers} WHERE shard = {key.shard}",
    )


def test_a_thread_is_in_the_database_of_its_shard(store: ShardedStore, path: Path) -> None:
    """Fails if anything of a thread is written elsewhere, or its shard is not noted."""
    for database in ("a", "b"):
        key = key_in(path, database)
        Writer(key).begin(store, 3)
        for table in ("entries", "threads", "runs"):
            found = execute(path, f"SELECT DISTINCT shard FROM milecastle.{table}", database)
            assert found == [(key.shard,)], f"{database}, {table}"


def test_nothing_is_written_to_a_shard_that_is_not_here(placed: ShardMember, path: Path) -> None:
    """Fails for each call whose statement does not compare the placement."""
    key = key_in(path, "a")
    writer = queued(placed, key.thread, due_at=5)
    for kind in (SNAPSHOT, SNAPSHOT):
        writer.append(placed, kind)
    placed.claim("one", [LANE], limit=1)
    placed.mailbox.send(key, "topic", "first", b"x")
    before = [
        execute(path, f"SELECT * FROM milecastle.{table} ORDER BY 1")
        for table in ("entries", "threads", "runs", "results", "mailbox")
    ]
    move_away(path, key)
    step = writer.batch(writer.plan())
    result = TaskResult(seq=writer.head, task="task", payload=b"x")
    results = writer.batch(results=(result,))
    line = writer.batch(writer.plan(), thread=a_line(writer, waiting_topics=(("topic", 0),)))
    consuming = writer.batch(writer.plan(), consumes=(1,))
    ran: list[int] = []

    def work(connection: object) -> Batch:
        ran.append(1)
        return results

    for batch in (step, results, line, consuming):
        with pytest.raises(ShardMoved) as caught:
            placed.commit(batch)
        assert (caught.value.shard, caught.value.destination) == (key.shard, "b")
        (outcome,) = placed.commit_many([batch])
        assert isinstance(outcome, ShardMoved)
    other = Writer(key_in(path, "a", 1), 2).begin(placed)
    outcomes = placed.commit_many([step, other.batch(other.plan()), line])
    assert [type(one) for one in outcomes] == [ShardMoved, type(None), ShardMoved]
    placed.delete(other.key)
    with pytest.raises(ShardMoved):
        placed.transact(key, work)
    with pytest.raises(ShardMoved):
        placed.delete(key)
    with pytest.raises(ShardMoved):
        placed.prune(key, head=3, cut=2, rewritten=())
    with pytest.raises(ShardMoved):
        placed.give_back("one", key)
    with pytest.raises(ShardMoved):
        enqueue(placed, a_run(key, 7))
    for mark in ("first", "second"):
        with pytest.raises(ShardMoved):
            placed.mailbox.send(key, "topic", mark, b"x")
    with pytest.raises(ShardMoved):
        placed.mailbox.discard(key, 1)
    with pytest.raises(ShardMoved):
        placed.mailbox.restore(key, (), Marks(last=9))
    assert ran == [1]
    execute(path, f"DELETE FROM milecastle.threads WHERE thread = '{other.key.thread}'")
    execute(path, f"DELETE FROM milecastle.entries WHERE thread = '{other.key.thread}'")
    after = [
        execute(path, f"SELECT * FROM milecastle.{table} ORDER BY 1")
        for table in ("entries", "threads", "runs", "results", "mailbox")
    ]
    assert after == before


def test_nothing_is_read_of_a_shard_that_is_not_here(placed: ShardMember, path: Path) -> None:
    """Fails for each call that shows what a move has left behind."""
    key = key_in(path, "a")
    writer = queued(placed, key.thread, due_at=5)
    result = TaskResult(seq=writer.head, task="task", payload=b"x")
    placed.commit(writer.batch(results=(result,), manifest=("f" * 32, b"m")))
    placed.mailbox.send(key, "topic", "mark", b"x")
    head = writer.entries[1]
    calls: list[Callable[[], object]] = [
        lambda: placed.read(key),
        lambda: placed.read(key, 1),
        lambda: placed.read_state(key),
        lambda: placed.read_many([key]),
        lambda: placed.head(key),
        lambda: placed.results(key),
        lambda: placed.count_results(key, "task"),
        lambda: placed.locate(key, head.id),
        lambda: list(placed.history(key)),
        lambda: placed.entries(key),
        lambda: placed.runs(key),
        lambda: placed.run(key, writer.run.run_id),
        lambda: placed.failure(key, writer.run.run_id),
        lambda: placed.thread(key),
        lambda: placed.manifest(key, "f" * 32),
        lambda: waiting_inputs(placed, key),
        lambda: placed.mailbox.unread(key),
        lambda: placed.mailbox.unread(key, topic="topic"),
        lambda: placed.mailbox.marks(key).last,
    ]
    for number, call in enumerate(calls):
        assert call() or number in (12, 15), number
    move_away(path, key)
    for number, call in enumerate(calls):
        with pytest.raises(ShardMoved):
            print(number, call())


def test_a_shard_that_is_not_here_is_neither_claimed_nor_listed(
    placed: ShardMember, path: Path
) -> None:
    """Fails if claims or lists see what a move left behind, or if that hides other threads."""
    gone, here = key_in(path, "a"), key_in(path, "a", 1)
    queued(placed, gone.thread, 1, due_at=1)
    queued(placed, here.thread, 2, due_at=2)
    held = queued(placed, key_in(path, "a", 2).thread, 3, due_at=3, worker="one")
    move_away(path, gone)
    move_away(path, held.key)
    assert names(placed.threads("tenant")) == [here.thread]
    assert names(placed.recent_threads("tenant").items) == [here.thread]
    assert [run.key.thread for run in placed.recent_runs("tenant").items] == [here.thread]
    assert [depth.due for depth in placed.depths()] == [1]
    assert list(placed.claimed("one")) == []
    assert placed.retire("one") == 0
    assert placed.reclaim(0) == 0
    assert names(placed.tags.threads("tenant", "none")) == []
    assert names(placed.claim("two", [LANE], limit=1)) == [here.thread]
    assert placed.due_in([LANE]) is None
    assert list(placed.overdue(1)) == []


def test_a_claim_takes_nothing_of_a_shard_that_is_just_being_moved(
    store: ShardedStore, path: Path
) -> None:
    """It does not wait for the mover. Fails if a claim waits, or takes the thread."""
    moving, here = key_in(path, "a"), key_in(path, "a", 1)
    queued(store, moving.thread, 1, due_at=1)
    queued(store, here.thread, 2, due_at=2)
    url = read_map(path).urls["a"]
    with psycopg.connect(**parse(url).connect) as mover:
        mover.execute(_LOCK, [moving.shard])
        assert names(store.claim("one", [LANE], limit=9)) == [here.thread]
        mover.rollback()
    assert names(store.claim("one", [LANE], limit=9)) == [moving.thread]


_LOCK = b"SELECT FROM milecastle.placements WHERE shard = %s FOR UPDATE"
_SWITCH = b"UPDATE milecastle.placements SET state = 'moved' WHERE shard = %s"
_WAITING = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def _is_awaited() -> bool:
    """Whether somebody waits for a lock."""
    return the_cluster().execute(_WAITING) != [(0,)]


class Unfenced(ShardMember):
    """Writes as if no shard ever moved."""

    _is_placed = False


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("is_fenced", [True, False])
@pytest.mark.parametrize("steps", [True, False])
def test_a_commit_that_meets_the_switch_of_a_move_is_refused(
    path: Path, is_fenced: bool, steps: bool, level: str
) -> None:
    """The control writes to the old place: fails if the fence is not in the statement.

    The writer begins while the mover holds the placement, and looks at it again afterwards.
    """
    key, url = key_in(path, "a"), read_map(path).urls["a"]
    (database,) = execute(path, "SELECT current_database()")[0]
    execute(path, f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
    kind = ShardMember if is_fenced else Unfenced
    with closing(ShardMember(url, "a")) as first, closing(kind(url, "a")) as store:
        writer = Writer(key).begin(first)
        plan = writer.plan()
        batch = writer.batch(plan) if steps else writer.batch(plan, thread=a_line(writer))
        if not is_fenced and not steps:
            pytest.skip("without a shard the line is refused, too")
        with psycopg.connect(**parse(url).connect) as mover, ThreadPoolExecutor(1) as pool:
            mover.execute(_LOCK, [key.shard])
            commit = pool.submit(store.commit, batch)
            wait_until(lambda: commit.done() or _is_awaited())
            mover.execute(_SWITCH, [key.shard])
            mover.commit()
            error = commit.exception()
        assert isinstance(error, ShardMoved) == is_fenced
        written = execute(path, "SELECT max(seq) FROM milecastle.entries")
        assert written == [(1 if is_fenced else 2,)]


def test_a_move_that_was_taken_back_lets_the_writer_through(path: Path) -> None:
    """Fails if a writer that waited is refused though the shard stayed."""
    key, url = key_in(path, "a"), read_map(path).urls["a"]
    with closing(ShardMember(url, "a")) as store, ThreadPoolExecutor(1) as pool:
        writer = Writer(key).begin(store)
        with psycopg.connect(**parse(url).connect) as mover:
            mover.execute(_LOCK, [key.shard])
            commit = pool.submit(store.commit, writer.batch(writer.plan()))
            wait_until(lambda: _is_awaited())
            mover.execute(_SWITCH, [key.shard])
            mover.rollback()
        commit.result(30)


def test_a_real_conflict_is_one(store: ShardedStore, path: Path) -> None:
    """Fails if a refusal of a shard that is here is taken for a move."""
    writer = Writer(key_in(path, "a")).begin(store)
    late = Writer(writer.key, 2)
    with pytest.raises(Conflict):
        store.commit(late.batch(late.plan()))
    assert not store.give_back("nobody", writer.key)
    assert enqueue(store, a_run(writer.key, 7)).number == 0
    with pytest.raises(Conflict):
        store.delete(writer.key, head=7)


# ---- joining


def test_a_database_of_a_map_is_not_opened_alone(path: Path) -> None:
    """Fails if a store that knows nothing of shards may write them."""
    with pytest.raises(StoreError, match="is database 'a' of a map"):
        PostgresStore(read_map(path).urls["a"])


def test_a_store_that_was_open_is_refused_after_its_database_joined(tmp_path: Path) -> None:
    """Fails if it begins runs whose shard nobody knows."""
    urls = new_databases(1)
    path = write_map(tmp_path / "shards.toml", urls)
    with closing(PostgresStore(urls["a"])) as store:
        Writer(ThreadKey("t", "before")).begin(store)
        initialise(read_map(path))
        with pytest.raises(StoreError):
            Writer(ThreadKey("t", "after")).begin(store)
    with closing(ShardedStore(path)) as store:
        assert names(store.threads("t")) == ["before"]


def test_a_database_with_threads_joins_with_all_shards(tmp_path: Path) -> None:
    """Fails if its threads get no shard, or are listed as newer than what comes after."""
    urls = new_databases(2)
    keys = [ThreadKey("t", f"{number}") for number in range(5)]
    with closing(PostgresStore(urls["a"])) as store:
        for number, key in enumerate(keys, 1):
            Writer(key, number).begin(store)
    path = write_map(tmp_path / "shards.toml", urls)
    with pytest.raises(InvalidRequest, match="database 'a' has threads of shard"):
        initialise(read_map(path))
    whole = '[shards]\n"0-1023" = "a"\n'
    path.write_text(path.read_text("utf-8").partition("[shards]")[0] + whole, "utf-8")
    assert list(initialise(read_map(path))) == ["a", "b"]
    with closing(ShardedStore(path)) as store:
        Writer(ThreadKey("t", "new"), 9).begin(store)
        order = [line.key.thread for line in store.recent_threads("t").items]
        assert order == ["new", "4", "3", "2", "1", "0"]
        runs = [run.key.thread for run in store.recent_runs("t").items]
        assert runs == order
    found = execute(path, "SELECT thread, shard FROM milecastle.threads ORDER BY thread")
    assert found[:5] == [(key.thread, key.shard) for key in keys]


def test_initialising_again_completes_what_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if half of a map is opened, or the second half joins another map."""
    path = write_map(tmp_path / "shards.toml", new_databases(3))
    done: list[str] = []

    def dying(connection: psycopg.Connection, schema: str, *given: Any) -> None:
        if done:
            raise KeyboardInterrupt
        join(connection, schema, *given)
        done.append(schema)

    with monkeypatch.context() as patched:
        patched.setattr("milecastle.stores.sharded.joining.join", dying)
        with pytest.raises(KeyboardInterrupt):
            initialise(read_map(path))
    with pytest.raises(StoreError, match=r"shards init was not completed|belongs to no map"):
        ShardedStore(path)
    with monkeypatch.context() as patched:
        patched.setattr("milecastle.stores.sharded.joining.complete", dying)
        with pytest.raises(KeyboardInterrupt):
            initialise(read_map(path))
    with pytest.raises(StoreError, match="shards init was not completed"):
        ShardedStore(path)
    assert list(initialise(read_map(path))) == []
    with closing(ShardedStore(path)) as store:
        Writer().begin(store)


def changed(path: Path, name: str, url: str) -> Path:
    """The map with another URL for a database."""
    found = read_map(path).urls[name]
    path.write_text(path.read_text("utf-8").replace(found, url), "utf-8")
    return path


def test_an_empty_database_does_not_join_a_map_in_use(path: Path) -> None:
    """Fails if a changed URL joins when the store is opened, or when init is run again."""
    empty = new_databases(1)["a"]
    changed(path, "b", empty)
    with pytest.raises(StoreError, match="database 'b' belongs to no map"):
        ShardedStore(path)
    with pytest.raises(StoreError, match="the map is in use and gives it shards"):
        initialise(read_map(path))
    with pytest.raises(StoreError, match="database 'b' belongs to no map"):
        ShardedStore(path)  # its tables exist by now
    with closing(PostgresStore(empty)):
        """Nothing was written into it but tables."""


def test_a_database_without_shards_is_added(path: Path) -> None:
    """Fails if a map cannot grow."""
    text = path.read_text("utf-8")
    added = f'[databases]\nnew = "{new_databases(1)["a"]}"'
    path.write_text(text.replace("[databases]", added), "utf-8")
    with pytest.raises(StoreError, match="database 'new' belongs to no map"):
        ShardedStore(path)
    assert list(initialise(read_map(path))) == ["new"]
    with closing(ShardedStore(path)) as store:
        Writer().begin(store)


def test_databases_that_do_not_fit_the_file_are_refused(path: Path, tmp_path: Path) -> None:
    """Fails for each difference that is not compared when the map is opened and initialised."""
    text, urls = path.read_text("utf-8"), read_map(path).urls
    wrong = {
        "it says that it is 'b'": text.replace(urls["a"], "X")
        .replace(urls["b"], urls["a"])
        .replace("X", urls["b"]),
        "it has other shards": text.replace('\n0 = "a"', '\n0 = "b"'),
    }
    for message, changed_text in wrong.items():
        path.write_text(changed_text, "utf-8")
        with pytest.raises(StoreError, match=message):
            ShardedStore(path)
        with pytest.raises(StoreError, match=r"check its URL|take the file"):
            initialise(read_map(path))
    path.write_text(text, "utf-8")
    (tmp_path / "other").mkdir()
    other = read_map(new_map(tmp_path / "other", 2)).urls["b"]
    changed(path, "b", other)
    with pytest.raises(StoreError, match="belongs to another map"):
        ShardedStore(path)
    with pytest.raises(StoreError, match="belong to 2 different maps"):
        initialise(read_map(path))


def test_row_level_security_is_refused(path: Path) -> None:
    """Fails if a map is opened in which every list would be empty."""
    changed(path, "b", secured_url())
    with pytest.raises(InvalidRequest, match="database 'b' has rls=on"):
        ShardedStore(path)


def test_schemas_of_one_database_may_be_a_map(tmp_path: Path) -> None:
    """Fails if a name of a schema gets lost on the way."""
    urls = {name: the_cluster().url_of(new_schema()) for name in ("a", "b")}
    path = write_map(tmp_path / "shards.toml", urls)
    initialise(read_map(path))
    with closing(ShardedStore(path)) as store:
        assert Writer().begin(store).head == 1
