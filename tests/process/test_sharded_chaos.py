"""Shards move under load while the mover, workers and databases are killed.

``MILECASTLE_MOVES`` is how many moves are made: 12 in CI, 1,000 in ``just proof-shards``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import psycopg
import pytest

from milecastle import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.statements import file_text
from milecastle.stores.sharded import ShardedStore, initialise, move_shard, read_map
from tests.postgres_cluster import Cluster, find_binaries, needs_postgres, wait_until
from tests.process.fleet_chaos import ROOT
from tests.process.shard_chaos import LIMIT, Movers, Pen, Wait, longest, places_of
from tests.process.sharded_graphs import STEPS, build
from tests.process.sharded_moves import execute, rows_of
from tests.sharded_cluster import new_databases, new_map, write_map

pytestmark = [needs_postgres]

MOVES = int(os.environ.get("MILECASTLE_MOVES", "12"))
WORKERS = 4
SHARDS = 8


@pytest.fixture
def servers() -> Iterator[dict[str, Cluster]]:
    """Those of the databases that are killed."""
    binaries = find_binaries()
    assert binaries
    clusters = {name: Cluster(binaries) for name in "ab"}
    yield clusters
    for cluster in clusters.values():
        cluster.remove()


@pytest.fixture
def path(tmp_path: Path, servers: dict[str, Cluster]) -> Path:
    own = {name: f"{cluster.url}?timeout=5" for name, cluster in servers.items()}
    path = write_map(tmp_path / "shards.toml", {**new_databases(3), **own})
    initialise(read_map(path))
    return path


class Workers:
    """Four workers, which are replaced when they were killed."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._log = (folder / "workers.log").open("wb")
        self._processes = [self._start() for _ in range(WORKERS)]
        self.killed = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "milecastle", "worker", "tests.process.sharded_graphs:app"]
        more = [
            "--store",
            str(self._path),
            "--poll",
            "0.2",
            "--silent-after",
            "3",
            "--concurrency",
            "4",
        ]
        return subprocess.Popen([*command, *more], cwd=ROOT, stderr=self._log)

    def kill(self) -> None:
        """Kill the oldest, and start another."""
        process = self._processes.pop(0)
        process.kill()
        process.wait()
        self.killed += 1
        self._processes.append(self._start())

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()


def is_over(store: ShardedStore, key: ThreadKey) -> bool:
    with suppress(StoreError):
        line = store.thread(key)
        return line is not None and line.status == "completed"
    return False


def test_shards_move_under_load_whatever_is_killed(
    path: Path, tmp_path: Path, servers: dict[str, Cluster]
) -> None:
    """Fails if a step is lost or doubled, a run ends wrong, or a thread waits for a move."""
    shards, unmoved = list(range(SHARDS)), list(range(SHARDS, SHARDS + 3))
    app = build().compile(store=str(path))
    store = app.store
    assert isinstance(store, ShardedStore)
    workers, movers = Workers(path, tmp_path), Movers(path, shards)
    pens = [Pen(path, shard, number) for number, shard in enumerate(shards, 1)]
    still = [Pen(path, shard, number) for number, shard in enumerate(unmoved, 50)]
    outages: list[Wait] = []
    runs: list[ThreadKey] = []
    try:
        with closing(app):
            while movers.made < MOVES:
                movers.move()
                if movers.made % 50 == 0:
                    print(movers.made, "moves", flush=True)
                key = _in(shards, len(runs))
                with suppress(StoreError):
                    app.submit({"n": 0, "log": []}, thread=key.thread)
                    runs.append(key)
                if movers.made % 25 == 7:
                    workers.kill()
                if movers.made % 50 == 11:
                    outages.append(_crash(servers["ab"[len(outages) % 2]]))
            movers.stop()
            for pen in (*pens, *still):
                pen.stop()
            wait_until(lambda: all(is_over(store, key) for key in runs), 240)
            wrong = [key for key in runs if app.state(key.thread)["log"] != list(range(STEPS))]
            torn = [key for pen in (*pens, *still) for key in pen.torn(store)]
            errors = [pen.error for pen in (*pens, *still) if pen.error]
            waits = [longest(pens, outages, still), longest(still, outages), longest(pens, outages)]
            _report(movers, workers, outages, runs, pens, waits)
            assert not errors, errors
            assert not torn, torn
            assert not wrong, wrong
            assert waits[0].seconds <= LIMIT, waits
            _check_places(path, shards)
            _check_deleted(path, [key.thread for pen in pens for key in pen.deleted])
    finally:
        workers.stop()
        movers.stop()
        for pen in (*pens, *still):
            pen.stop()


def _in(shards: list[int], number: int) -> ThreadKey:
    """A new thread of one of the shards that move."""
    names = (f"walk {number}/{other}" for other in range(100_000))
    return next(k for k in (ThreadKey("default", name) for name in names) if k.shard in shards)


def _crash(server: Cluster) -> Wait:
    """Kill a database server, and start it again."""
    began = monotonic()
    server.stop("immediate")
    sleep(0.5)
    server.start()
    return Wait(began, monotonic())


def _check_places(path: Path, shards: list[int]) -> None:
    """Each shard is in one database, and after cleaning up only there."""
    known = read_map(path)
    for shard in shards:
        if not places_of(path, [shard])[shard]:  # the last mover was killed behind its switch
            move_shard(known, shard, "c")
        (place,) = places_of(path, [shard])[shard]
        assert not move_shard(known, shard, place)
        query = f"SELECT count(*) FROM milecastle.entries WHERE shard = {shard}"
        found = [name for name in known.urls if execute(path, name, query) != [(0,)]]
        assert found == [place], shard


def _check_deleted(path: Path, threads: list[str]) -> None:
    """Nothing of them is left in any database, but what says that they are deleted."""
    assert threads
    for name, url in read_map(path).urls.items():
        with psycopg.connect(**parse(url).connect) as connection:
            found = connection.execute(
                b"SELECT thread FROM milecastle.entries WHERE kind < 3 AND thread = ANY (%s)",
                (threads,),
            ).fetchall()
        assert not found, (name, found)


def _seconds(wait: Wait) -> str:
    return f"{wait.seconds:.3f} ({wait.call})"


def _report(
    movers: Movers,
    workers: Workers,
    outages: list[Wait],
    runs: list[ThreadKey],
    pens: list[Pen],
    waits: Sequence[Wait],
) -> None:
    figures = {
        "moves": movers.made,
        "movers killed": movers.killed,
        "moves that failed": len(movers.failed),
        "workers killed": workers.killed,
        "databases killed": len(outages),
        "runs": len(runs),
        "steps acknowledged in shards that move": sum(pen.steps for pen in pens),
        "longest wait in shards that move, s": _seconds(waits[0]),
        "longest wait in shards that do not, s": _seconds(waits[1]),
        "longest wait in shards that move, because of the machine too, s": _seconds(waits[2]),
        "median move, s": round(median(movers.seconds), 3),
        "longest move, s": round(max(movers.seconds), 3),
    }
    print(json.dumps(figures, indent=1))
    print(*sorted({one.strip() for one in movers.failed}), sep="\n")


def test_a_move_without_the_fence_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: writers are not waited for, and the same judge finds what is lost."""
    path = new_map(tmp_path)

    def unfenced(name: str) -> str:
        return file_text(name).replace("FOR UPDATE", "")

    monkeypatch.setattr("milecastle.stores.sharded.moving.file_text", unfenced)
    pen = Pen(path, 7, 1)
    wait_until(lambda: pen.steps > 3)

    def write_meanwhile(name: str) -> None:
        if name == "switch":
            steps = pen.steps
            wait_until(lambda: pen.steps > steps + 2 or pen.error is not None)

    for to in "abc":
        move_shard(read_map(path), pen.shard, to, write_meanwhile)
    wait_until(lambda: pen.error is not None or pen.steps > 30)
    pen.stop()
    with closing(ShardedStore(path)) as store:
        assert pen.error is not None or pen.torn(store)
    assert rows_of(path, "c") > 0
