"""Real ``milecastle worker`` processes on three databases, and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from milecastle import Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.sharded import ShardedStore, initialise, read_map
from tests.postgres_cluster import Cluster, find_binaries, needs_postgres, wait_until
from tests.process.fleet_chaos import ROOT
from tests.process.sharded_graphs import STEPS, build
from tests.sharded_cluster import new_databases, write_map

pytestmark = [needs_postgres]

RUNS = 24
Start = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def server() -> Iterator[Cluster]:
    """The server of database b; the others share one."""
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries)
    yield cluster
    cluster.remove()


@pytest.fixture
def path(tmp_path: Path, server: Cluster) -> Path:
    urls = {**new_databases(3), "b": f"{server.url}?timeout=5"}
    path = write_map(tmp_path / "shards.toml", urls)
    initialise(read_map(path))
    return path


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Starts a worker; those that are left afterwards are killed."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "milecastle", "worker", "tests.process.sharded_graphs:app"]
        more = ["--store", str(path), "--poll", "0.1", "--silent-after", "3", "--concurrency", "4"]
        process = subprocess.Popen([*command, *more], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_workers_serve_all_databases_and_survive_kill_9(path: Path, start: Start) -> None:
    """Fails if a worker leaves out a database, or if runs of one that was killed are lost."""
    shards = read_map(path)
    app = build().compile(store=str(path))
    store = app.store
    assert isinstance(store, ShardedStore)
    with closing(app):
        for number in range(RUNS):
            app.submit({"n": 0, "log": []}, thread=f"walk {number}")
        keys = [ThreadKey("default", f"walk {number}") for number in range(RUNS)]
        assert {shards.owners[key.shard] for key in keys} == set(shards.urls)
        first, second = start(), start()
        wait_until(lambda: len(store.threads("default", status="completed")) >= 3)
        wait_until(lambda: len({w.owner.pid for w in store.workers() if w.running}) == 2)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        third = start()
        wait_until(lambda: len(store.threads("default", status="completed")) == RUNS, 120)
        for key in keys:
            assert app.state(key.thread)["log"] == list(range(STEPS)), key
        wait_until(lambda: third.pid in {worker.owner.pid for worker in store.workers()})
        for worker in (second, third):
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        wait_until(lambda: store.reclaim(3) == 0 and not store.workers())


def test_workers_go_on_while_a_database_is_down(path: Path, server: Cluster, start: Start) -> None:
    """With runs of it in the middle. Fails if one database that is down stops the others' runs."""
    shards = read_map(path)
    app = build().compile(store=str(path))
    store = app.store
    assert isinstance(store, ShardedStore)
    with closing(app):
        keys = [ThreadKey("default", f"walk {number}") for number in range(RUNS)]
        away = [key for key in keys if shards.owners[key.shard] == "b"]
        others = [key for key in keys if key not in away]
        for key in (*away, *others[:6]):
            app.submit({"n": 0, "log": []}, thread=key.thread)
        start()
        wait_until(lambda: any(_steps(store, key) > 1 for key in away))
        server.stop("immediate")
        for key in others[6:]:
            app.submit({"n": 0, "log": []}, thread=key.thread)
        wait_until(lambda: all(_is_over(store, key) for key in others), 90)
        server.start()
        wait_until(lambda: all(_is_over(store, key) for key in keys), 120)
        for key in keys:
            assert app.state(key.thread)["log"] == list(range(STEPS)), key


def _steps(store: ShardedStore, key: ThreadKey) -> int:
    head = store.head(key)
    return head.seq if head else 0


def _is_over(store: ShardedStore, key: ThreadKey) -> bool:
    with suppress(Unavailable):
        line = store.thread(key)
        return line is not None and line.status == "completed"
    return False
