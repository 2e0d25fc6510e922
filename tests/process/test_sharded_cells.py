"""Workers that serve some databases of a map, and not the others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from milecastle import App, InvalidRequest
from milecastle.app.with_store import with_store
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.model.keys import SHARDS, ThreadKey
from milecastle.ports.limits import Limit
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sharded import ShardedStore, databases, initialise, move_shard, read_map
from milecastle.testing.contract_claims import LANE, a_worker, names, queued
from milecastle.views.fleet import workers_document
from milecastle.views.reasons import fleet_troubles, why_document
from tests.postgres_cluster import needs_postgres
from tests.process.fleet_chaos import ROOT
from tests.process.sharded_graphs import STEPS, Walk, build
from tests.sharded_cluster import empty_map, new_databases, write_map

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_map(tmp_path_factory.mktemp("map") / "shards.toml", new_databases(3))
    initialise(read_map(path))
    return path


@pytest.fixture
def path(initialised: Path) -> Path:
    empty_map(initialised)
    return initialised


@pytest.fixture
def store(path: Path) -> Iterator[ShardedStore]:
    with closing(ShardedStore(path)) as store:
        yield store


def thread_in(store: ShardedStore, database: str, tenant: str = "tenant") -> str:
    each = (f"{database} {number}" for number in range(SHARDS))
    return next(one for one in each if store.cells.of(ThreadKey(tenant, one)) == database)


def walks(store: ShardedStore) -> tuple[App[Walk], dict[str, ThreadKey]]:
    """A submitted run in each database."""
    app = with_store(build().compile(), store)
    threads = {name: thread_in(store, name, "default") for name in "abc"}
    for thread in threads.values():
        app.submit({"n": 0, "log": []}, thread=thread)
    return app, {name: ThreadKey("default", thread) for name, thread in threads.items()}


def test_a_worker_serves_its_databases_only(store: ShardedStore) -> None:
    """Fails if it claims, beats, reclaims or is listed elsewhere."""
    keys = {
        name: queued(store, thread_in(store, name), n, due_at=n).key
        for n, name in enumerate("abc", 1)
    }
    view = store.cells.serving(["c", "a"])
    assert list(view.cells.names) == ["a", "c"]
    view.beat(a_worker("one"))
    assert [worker.databases for worker in store.workers()] == [("a", "c")]
    assert store.cells.serving(["b"]).workers() == []
    assert names(view.claim("one", [LANE], limit=9)) == [keys["a"].thread, keys["c"].thread]
    assert view.claimed("one") == sorted([keys["a"], keys["c"]])
    assert view.due_in([LANE]) is None
    assert store.due_in([LANE]) is not None
    assert view.overdue(1) == []
    assert store.overdue(1) == [LANE]
    assert view.depths() != store.depths()
    other = store.cells.serving(["b"])
    other.beat(a_worker("two"))
    assert names(other.claim("two", [LANE], limit=9)) == [keys["b"].thread]
    assert view.reclaim(0) == 2
    assert other.claimed("two") == [keys["b"]]
    assert other.retire("two") == 1


def test_limits_count_the_databases_a_worker_does_not_serve(store: ShardedStore) -> None:
    for number, name in enumerate("abc", 1):
        queued(store, thread_in(store, name), number, due_at=number)
    store.set_limit(Limit(graph="graph", concurrency=2))
    try:
        assert len(store.cells.serving(["a"]).claim("one", [LANE], limit=9)) == 1
        assert len(store.cells.serving(["b"]).claim("two", [LANE], limit=9)) == 1
        assert store.cells.serving(["c"]).claim("three", [LANE], limit=9) == []
    finally:
        store.set_limit(Limit(graph="graph"))


def test_unknown_databases_are_refused_with_those_there_are(store: ShardedStore) -> None:
    app = with_store(build().compile(), store)
    with pytest.raises(InvalidRequest, match="no database 'x', only 'a', 'b', 'c'"):
        Worker([app], WorkerOptions(databases=("a", "x")))
    single = with_store(build().compile(), MemoryStore())
    with pytest.raises(InvalidRequest, match="MemoryStore is one database"):
        Worker([single], WorkerOptions(databases=("a",)))


def test_a_worker_runs_the_threads_of_its_databases(store: ShardedStore) -> None:
    app, keys = walks(store)
    asyncio.run(Worker([app], WorkerOptions(databases=("b",))).run_until_idle())
    found = {name: store.thread(key) for name, key in keys.items()}
    assert {name: one and one.status for name, one in found.items()} == {
        "a": "queued",
        "b": "completed",
        "c": "queued",
    }
    asyncio.run(Worker([app], WorkerOptions(databases=("a", "c"))).run_until_idle())
    for key in keys.values():
        assert app.state(key.thread)["log"] == list(range(STEPS))


def test_a_database_without_a_worker_is_named(store: ShardedStore) -> None:
    """By ``why``, ``workers`` and ``doctor``. Fails if a worker elsewhere passes for one."""
    app, keys = walks(store)
    store.cells.serving(["a", "b"]).beat(a_worker("one", lanes=(app.runner.lane,)))
    (line,) = why_document(store, keys["c"]).reasons
    assert line.code == "no-worker"
    assert line.text == "no running worker serves database 'c', which has it"
    assert line.advice == "start one: milecastle worker --databases c"
    assert [one.code for one in why_document(store, keys["a"]).reasons] == ["due"]
    document = workers_document(store)
    assert (document.unserved, document.workers[0].databases) == (("c",), ("a", "b"))
    (trouble,) = [one for one in fleet_troubles(store) if one.code == "no-worker"]
    assert "1 due of graph 'walk' in database 'c'" in trouble.text
    store.cells.serving(["c"]).beat(a_worker("two", lanes=("other@1",)))
    (line,) = why_document(store, keys["c"]).reasons
    assert "no worker serves graph 'walk' in database 'c', which has it" in line.text
    store.cells.serving(["c"]).beat(a_worker("three", lanes=(app.runner.lane,)))
    assert [one.code for one in why_document(store, keys["c"]).reasons] == ["due"]
    assert workers_document(store).unserved == ()
    assert not [one for one in fleet_troubles(store) if one.code == "no-worker"]


def test_a_thread_whose_shard_leaves_is_taken_over_there(store: ShardedStore, path: Path) -> None:
    """Fails if it stays with a worker that does not look for it any longer."""
    writer = queued(store, thread_in(store, "a"), 1, due_at=1)
    view, other = store.cells.serving(["a"]), store.cells.serving(["b"])
    view.beat(a_worker("one", lanes=(LANE,)))
    assert names(view.claim("one", [LANE], limit=9)) == [writer.key.thread]
    move_shard(read_map(path), writer.key.shard, "b")
    try:
        assert view.claimed("one") == []
        assert store.head(writer.key) is not None
        assert [one.code for one in why_document(store, writer.key).reasons] == ["lost"]
        assert other.reclaim() == 1
        assert names(other.claim("two", [LANE], limit=9)) == [writer.key.thread]
    finally:
        move_shard(read_map(path), writer.key.shard, "a")


def test_databases_that_are_not_served_are_closed_after_a_while(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And opened again by a write. Fails if one stays open, or is closed while it is read."""
    monkeypatch.setattr(databases, "_RESTS_AFTER", 0.0)
    writer = queued(store, thread_in(store, "b"), 1, due_at=1)
    writer.append(store)
    writer.append(store)
    view = store.cells.serving(["a"])
    reading = store.history(writer.key)
    next(reading)
    view.beat(a_worker("one"))
    assert _open(store) == {"a", "b"}
    assert len(list(reading)) == 2
    view.beat(a_worker("one"))
    assert _open(store) == {"a"}
    writer.append(store)
    assert _open(store) == {"a", "b"}
    end = store.feed.subscribe(writer.key, lambda payload: None)
    view.beat(a_worker("one"))
    assert _open(store) == {"a", "b"}
    end()
    view.beat(a_worker("one"))
    assert _open(store) == {"a"}


def test_a_shard_moved_between_closed_databases_is_found(
    store: ShardedStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if what a closed database said before the move is compared with what is so now."""
    monkeypatch.setattr(databases, "_RESTS_AFTER", 0.0)
    writer = queued(store, thread_in(store, "a"), 1, due_at=1)
    there = queued(store, thread_in(store, "b"), 2, due_at=1)
    move_shard(read_map(path), writer.key.shard, "b")
    try:
        store.cells.serving(["c"]).beat(a_worker("one"))
        assert _open(store) == {"c"}
        there.append(store)
        assert _open(store) == {"b", "c"}
        writer.append(store)
        assert store.cells.of(writer.key) == "b"
    finally:
        move_shard(read_map(path), writer.key.shard, "a")


def _open(store: ShardedStore) -> set[str]:
    return {one.name for one in store._databases if one.opened is not None}  # pyright: ignore[reportPrivateUsage]


def test_a_lane_is_adopted_where_no_worker_serves_it(store: ShardedStore) -> None:
    """A worker of that version elsewhere does not help. Fails if such threads wait for it."""
    app, _ = walks(store)
    old = f"walk@{'0' * 16}"
    store.cells.serving(["a"]).beat(a_worker("old", lanes=(old,)))
    queued(store, thread_in(store, "a"), 1, lane=old, due_at=1)
    worker = Worker([app], WorkerOptions(databases=("a", "b")))
    assert worker._claimer._stranded(1.0) == []  # pyright: ignore[reportPrivateUsage]
    queued(store, thread_in(store, "b"), 2, lane=old, due_at=1)
    assert worker._claimer._stranded(1.0) == [old]  # pyright: ignore[reportPrivateUsage]


def test_the_command_line_takes_databases(store: ShardedStore, path: Path) -> None:
    _, keys = walks(store)
    command = [sys.executable, "-m", "milecastle", "worker", "tests.process.sharded_graphs:app"]
    command += ["--store", str(path), "--until-idle"]
    environment = {**os.environ, "WALK_STEP": "0"}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = run("--databases", "a,z")
    assert refused.returncode == 2
    assert "has no database 'z', only 'a', 'b', 'c'" in refused.stderr
    done = run("--databases", "a,c")
    assert done.returncode == 0, done.stderr
    lines = {name: store.thread(key) for name, key in keys.items()}
    assert {name for name, line in lines.items() if line and line.status == "completed"} == {
        "a",
        "c",
    }
