"""A map whose second database has its own server, which is stopped, started and slowed down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from milecastle import InvalidRequest, StoreError, Unavailable
from milecastle.model.keys import SHARDS, ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.fairness import Group
from milecastle.ports.limits import Limit
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.sharded import ShardedStore, databases, initialise, move_shard, read_map
from milecastle.testing.contract_claims import LANE, a_worker, names, queued
from milecastle.testing.entries import Writer
from tests.postgres_cluster import (
    Cluster,
    emptied,
    find_binaries,
    needs_postgres,
    wait_until,
)
from tests.sharded_cluster import new_databases, write_map

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """The server of database b."""
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries)
    yield cluster
    cluster.remove()


@pytest.fixture(scope="module")
def initialised(server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    urls = new_databases(3)
    urls["b"] = f"{server.url}?timeout=1&connect_timeout=2"
    path = write_map(tmp_path_factory.mktemp("map") / "shards.toml", urls)
    initialise(read_map(path))
    return path


@pytest.fixture
def path(initialised: Path, server: Cluster) -> Iterator[Path]:
    for url in read_map(initialised).urls.values():
        emptied(url)
    yield initialised
    with suppress(AssertionError):  # it runs
        server.start()


@pytest.fixture
def store(path: Path) -> Iterator[ShardedStore]:
    with closing(ShardedStore(path)) as store:
        yield store


def thread_in(path: Path, database: str, number: int = 0) -> str:
    """The name of a thread of a database."""
    shards = read_map(path).shards_of(database)
    names = (f"{database} {each}" for each in range(SHARDS))
    return [name for name in names if ThreadKey("tenant", name).shard in shards][number]


def test_a_claim_whose_answer_is_lost_is_unavailable(
    store: ShardedStore, path: Path, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: it raised an internal error, which ended its worker."""
    queued(store, thread_in(path, "b"))
    honest = ShardMember.take

    def cut_off(self: ShardMember, *given: Any) -> list[ThreadInfo]:
        server.execute(
            b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            b"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return honest(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(ShardMember, "take", cut_off)
        with pytest.raises(Unavailable, match=r"claimed\(\) says"):
            store.claim("one", [LANE], limit=1)
    assert len(store.claim("one", [LANE], limit=1)) == 1


def test_a_database_that_is_down_takes_no_other_with_it(
    store: ShardedStore, path: Path, server: Cluster
) -> None:
    """Fails if a call for another database, a claim or a heartbeat fails, or waits for long."""
    writers = {
        name: queued(store, thread_in(path, name), number, due_at=number)
        for number, name in enumerate("abc", 1)
    }
    store.beat(a_worker("one"))
    server.stop()
    for name in "ac":
        writers[name].append(store)
        assert store.read(writers[name].key) is not None
    with pytest.raises(Unavailable, match="database 'b' of the map"):
        writers["b"].append(store)
    with pytest.raises(Unavailable, match="database 'b' of the map"):
        list(store.history(writers["b"].key))
    listings: list[Callable[[], object]] = [
        lambda: store.threads("tenant"),
        lambda: store.recent_threads("tenant"),
        lambda: store.recent_runs("tenant"),
        lambda: store.waking_threads("tenant"),
        lambda: list(store.verify("tenant")),
        lambda: store.claimed("one"),
        store.depths,
        lambda: store.set_limit(Limit(graph="x", concurrency=1)),
    ]
    for listing in listings:
        with pytest.raises(Unavailable, match="database 'b' of the map"):
            listing()
    outcomes = store.commit_many([each.batch(each.plan()) for each in writers.values()])
    assert [type(one) for one in outcomes] == [type(None), Unavailable, type(None)]
    began = monotonic()
    store.beat(a_worker("one"))
    assert names(store.claim("one", [LANE], limit=9)) == [writers[name].key.thread for name in "ac"]
    assert [worker.id for worker in store.workers()] == ["one"]
    assert store.reclaim(60) == 0
    assert store.due_in([LANE]) is None
    assert list(store.overdue(60)) == []
    assert store.now() > 0
    assert monotonic() - began < 30
    server.start()
    wait_until(lambda: _is_back(store, writers["b"]))
    wait_until(lambda: [w.running for w in store.workers()] == [2])
    wait_until(lambda: names(store.claim("one", [LANE], limit=9)) == [writers["b"].key.thread])
    assert store.retire("one") == 3


def _is_back(store: ShardedStore, writer: Writer) -> bool:
    with suppress(Unavailable):
        return store.head(writer.key) is not None
    return False


def test_a_map_is_opened_without_a_database_that_is_down(path: Path, server: Cluster) -> None:
    """Fails if the others cannot be used, or the missing one is not opened when it is back."""
    server.stop()
    with closing(ShardedStore(path)) as store:
        Writer(ThreadKey("tenant", thread_in(path, "a"))).begin(store)
        missing = ThreadKey("tenant", thread_in(path, "b"))
        for _ in range(2):
            with pytest.raises(Unavailable, match="database 'b' of the map"):
                store.head(missing)
        store.feed.publish(missing, b"lost")
        with pytest.raises(Unavailable):
            store.feed.subscribe_soon(missing, lambda payload: None)
        assert store.writers == 12
        server.start()
        wait_until(lambda: _is_answered(lambda: store.head(missing)))
        Writer(missing).begin(store)
    with pytest.raises(Unavailable, match="closed"):
        store.head(missing)
    with pytest.raises(Unavailable, match="closed"):
        store.commit_many([])
    with pytest.raises(Unavailable, match="closed"):
        store.claim("one", [LANE], limit=0)


def _is_answered(call: Callable[[], object]) -> bool:
    with suppress(Unavailable):
        call()
        return True
    return False


def test_a_store_that_was_closed_before_it_reached_a_database_stays_closed(
    path: Path, server: Cluster
) -> None:
    """Fails if a closed store opens connections."""
    server.stop()
    store = ShardedStore(path)
    store.close()
    server.start()
    with pytest.raises(Unavailable, match="closed"):
        store.head(ThreadKey("tenant", thread_in(path, "b")))


def test_limits_are_counted_by_the_first_database(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is away, only lanes without a limit are claimed. Fails if a limit is exceeded then."""
    for number, name in enumerate("abc", 1):
        queued(store, thread_in(path, name), number, due_at=number)
        queued(store, thread_in(path, name, 1), number + 3, lane="free@1", due_at=number)
    store.set_limit(Limit(graph="graph", concurrency=2))
    assert list(store.limits()) == [Limit(graph="graph", concurrency=2)]
    assert len(store.claim("one", [LANE], limit=9)) == 2

    def away(*given: object) -> None:
        raise Unavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(ShardMember, "within_limits", away)
        with pytest.raises(Unavailable, match="it is away"):
            store.claim("one", [LANE], limit=9)
        free = store.claim("one", [LANE, "free@1"], limit=9)
        assert {line.lane for line in free} == {"free@1"}
        store.set_limit(Limit(tenant="tenant", paused=True))
        with pytest.raises(Unavailable, match="it is away"):
            store.claim("one", [LANE, "free@1"], limit=9)
    store.set_limit(Limit(tenant="tenant"))
    assert store.claim("one", [LANE], limit=9) == []
    store.set_limit(Limit(graph="graph"))
    assert len(store.claim("one", [LANE], limit=9)) == 1


def test_what_a_database_claims_too_late_is_given_back(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is not asked meanwhile. Fails if a thread stays with a worker that does not know."""
    for number, name in enumerate("abc", 1):
        queued(store, thread_in(path, name), number, due_at=number)
    slow, take, asked = threading.Event(), ShardMember.take, list[str]()

    def late(
        self: ShardMember, worker: str, groups: Sequence[Group], until: int | None = None
    ) -> list[ThreadInfo]:
        asked.append(self.name)
        if self.name == "b":
            slow.wait(30)
        return take(self, worker, groups, until)

    monkeypatch.setattr(ShardMember, "take", late)
    defaults = databases.Databases.ask_each.__kwdefaults__
    assert defaults
    monkeypatch.setitem(defaults, "patience", 0.5)
    assert len(store.claim("one", [LANE], limit=9)) == 2
    assert store.claim("one", [LANE], limit=9) == []
    assert asked.count("b") == 1
    slow.set()
    wait_until(lambda: len(store.claim("two", [LANE], limit=9)) == 1)
    assert len(store.claimed("one")) == 2


def test_an_error_that_is_not_the_databases_is_raised(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a mistake of the caller is taken for a database that is down."""
    with pytest.raises(InvalidRequest):
        store.beat(a_worker(""))
    writers = [Writer(ThreadKey("tenant", thread_in(path, name))).begin(store) for name in "ab"]

    def broken(self: ShardMember, batches: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ShardMember, "_commit_many", broken)
    with pytest.raises(ZeroDivisionError):
        store.commit_many([writer.batch(writer.plan()) for writer in writers])


def test_if_no_database_answers_the_error_names_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a map of which nothing can be reached is opened."""

    def away(*given: object) -> None:
        raise Unavailable("it is away")

    monkeypatch.setattr(ShardMember, "__init__", away)
    with pytest.raises(Unavailable, match=r"database '[abc]' of the map: it is away"):
        ShardedStore(path)


def test_a_wrong_database_that_comes_back_is_refused(path: Path, server: Cluster) -> None:
    """Fails if a database is compared with the map only when the store is opened."""
    server.stop()
    with closing(ShardedStore(path)) as store:
        server.start()
        server.execute(b"UPDATE milecastle.membership SET id = id || '!'")
        missing = ThreadKey("tenant", thread_in(path, "b"))
        try:
            wait_until(lambda: _is_refused(lambda: store.head(missing)))
        finally:
            server.execute(b"UPDATE milecastle.membership SET id = rtrim(id, '!')")


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unavailable:
        return False
    except StoreError as error:
        return "belongs to another map" in str(error)
    raise AssertionError("it was accepted")


def test_a_shard_that_left_a_database_is_served_while_that_one_is_down(
    store: ShardedStore, path: Path, server: Cluster
) -> None:
    """To processes that know nothing of the move. Fails if they ask only the one that had it."""
    keys = [ThreadKey("tenant", thread_in(path, "b", number)) for number in range(6)]
    writers = [queued(store, key.thread, n, worker="one") for n, key in enumerate(keys, 1)]
    shards = read_map(path)
    for key in keys:
        move_shard(shards, key.shard, "c")
    server.stop()
    try:
        assert store.head(keys[0]) is not None
        writers[1].append(store)
        assert list(store.commit_many([writers[2].batch(writers[2].plan())])) == [None]
        assert list(store.part_of(keys[3]).commit_many([writers[3].batch(writers[3].plan())])) == [
            None
        ]
        assert len(store.read_many(keys[4:5])) == 1
        assert store.give_back("one", keys[5])
        still = ThreadKey("tenant", thread_in(path, "b", 6))
        with pytest.raises(Unavailable, match="database 'b' of the map"):
            Writer(still).begin(store)
    finally:
        server.start()
        for key in keys:
            move_shard(shards, key.shard, "b")
