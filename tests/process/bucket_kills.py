"""Kills workers while runs take from a bucket, and judges what was granted, by the store's times.

A run takes once and works for a moment, in which its worker may be killed. Workers import the graph
as ``bucket_kills:taking``.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from psycopg import sql

from milecastle import END, START, App, Context, StateGraph, ThreadKey, open_store
from milecastle.app.runs.submission import require_shared
from milecastle.ports.buckets import Bucket, marks_of, require_buckets
from milecastle.stores.postgres.address import parse
from tests.postgres_cluster import the_cluster
from tests.process.fleet_chaos import Fleet

NAME = "model"
_SECOND = 1_000_000


class Work(TypedDict):
    done: int


def take(state: Work, ctx: Context) -> dict[str, Any]:
    ctx.take(NAME)
    time.sleep(0.25)  # a kill between the grant and the commit
    return {"done": state["done"] + 1}


def build() -> StateGraph[Work]:
    graph: StateGraph[Work] = StateGraph(Work, name="taking")
    graph.add_node("take", take)
    graph.add_edges(START, "take", END)
    return graph


taking = build()


class Size(msgspec.Struct, frozen=True):
    """``rate`` is per ``period`` seconds."""

    runs: int
    workers: int
    kills: int
    rate: int
    burst: int
    period: float = 1.0

    @property
    def a_second(self) -> float:
        return self.rate / self.period

    @property
    def allowed(self) -> float:
        """The most that may be granted within any second."""
        return self.a_second + self.burst


class Outcome(msgspec.Struct):
    """``most`` was granted within a second; ``throughput`` is the share of the rate.

    ``again`` are threads that took more than once, ``never`` those that went on without a grant.
    """

    kills: int = 0
    most: int = 0
    throughput: float = 0.0
    again: list[str] = []
    never: list[str] = []
    wrong: list[str] = []

    def is_good(self, size: Size) -> bool:
        return self.most <= size.allowed and not (self.again or self.never or self.wrong)


def killed(url: str, folder: Path, size: Size, *, seed: int, cheat: str = "") -> Outcome:
    """Submit runs, kill workers that have threads, and judge when all runs have ended."""
    chance, outcome, app = random.Random(seed), Outcome(), taking.compile(store=open_store(url))
    bucket = Bucket(name=NAME, rate=size.rate, burst=size.burst, period=size.period)
    require_buckets(app.store.buckets).put(bucket)
    names = [f"thread {number}" for number in range(size.runs)]
    pause = 0.9 * size.runs / size.a_second / (size.kills + 1)
    words = ["--concurrency", "8"]
    graph = "tests.process.bucket_kills:taking"
    fleet = Fleet(url, size.workers, folder, cheat, graph, silent=1.0, words=words)
    try:
        until_served(app, size.workers)
        app.submit_many({name: {"done": 0} for name in names})
        began = time.monotonic()
        while outcome.kills < size.kills:
            time.sleep(max(0.0, began + pause * (outcome.kills + 1) - time.monotonic()))
            fleet.kill(_find_victim(app, fleet, chance))
            outcome.kills += 1
        for _ in _until_idle(app):
            outcome.wrong += fleet.supervise()
        _judge(app, url, names, size, outcome)
    finally:
        fleet.end()
        app.close()
    if not outcome.is_good(size):
        print(fleet.logs())
    return outcome


def until_served(app: App[Work], workers: int) -> None:
    deadline = time.monotonic() + 60
    while len(require_shared(app.store).workers()) < workers:
        assert time.monotonic() < deadline, "the workers do not start"
        time.sleep(0.05)


def _find_victim(app: App[Work], fleet: Fleet, chance: random.Random) -> int:
    """A worker with a thread; any, if none has one for a second."""
    store, deadline = require_shared(app.store), time.monotonic() + 1
    while time.monotonic() < deadline:
        busy = {worker.owner.pid for worker in store.workers() if store.claimed(worker.id)}
        found = [place for place, one in enumerate(fleet.processes) if one.pid in busy]
        if found:
            return chance.choice(found)
        time.sleep(0.02)
    return chance.randrange(len(fleet.processes))


def _until_idle(app: App[Work]) -> Iterator[None]:
    deadline = time.monotonic() + 300
    while any(row.worker or row.due_at is not None for row in app.threads()):
        assert time.monotonic() < deadline, "threads are due, and no worker runs them"
        yield
        time.sleep(0.2)


def _judge(app: App[Work], url: str, names: list[str], size: Size, outcome: Outcome) -> None:
    grants = _grants(url)
    threads = {marks_of(ThreadKey("default", name)): name for name in names}
    took = Counter(threads[f"{mark.partition('/')[0]}/"] for mark, _ in grants)
    outcome.again = [name for name, count in took.items() if count > 1]
    for row in app.threads():
        name = row.key.thread
        if row.status == "completed" and name not in took:
            outcome.never.append(name)
        if row.status != "completed":
            outcome.wrong.append(f"{name} is {row.status}")
    times = sorted(at for _, at in grants)
    outcome.most = max(sum(at <= one <= at + _SECOND for one in times) for at in times)
    needed = (len(times) - size.burst) / size.a_second
    outcome.throughput = round(needed * _SECOND / (times[-1] - times[0]), 3)


def _grants(url: str) -> list[tuple[str, int]]:
    """Each mark that was granted its amount, and when, by the store's clock."""
    query = "SELECT mark, granted_at FROM {} WHERE granted_at IS NOT NULL"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(query.format("bucket_takes")).fetchall()
    table = sql.Identifier(parse(url).schema, "bucket_takes")
    return [
        (str(mark), int(str(at)))
        for mark, at in the_cluster().execute(sql.SQL(query).format(table))
    ]
