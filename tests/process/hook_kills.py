"""Kills workers while runs end, ask and are delivered to hooks, and judges what arrived.

The graph is ``hook_kills:orders``. Its workers have short delays between attempts. The receiver
answers each delivery badly at first: with an error, a redirect, nothing, or by hanging.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from milecastle import END, START, App, Retry, StateGraph, interrupt, open_store
from milecastle.app import deliveries
from milecastle.app.runs.submission import require_shared
from milecastle.fleet import posting
from milecastle.model.notices import notices_of
from milecastle.model.run import ThreadInfo
from tests.process.fleet_chaos import Fleet
from tests.receiver import SECRET, Answer, Receiver, receiving

KINDS = ("completes", "fails", "flaky", "asks")
_INSIDE = "inside"


class Order(TypedDict):
    kind: str
    answer: str


def act(state: Order) -> dict[str, Any]:
    time.sleep(0.01)  # a kill between the start and the end
    if state["kind"] == "asks":
        return {"answer": interrupt("go on?")}
    if state["kind"] == "fails":
        raise TypeError("it is not retried")
    if state["kind"] == "flaky" and random.random() < 0.5:
        raise ValueError("it is retried")
    return {}


def build() -> StateGraph[Order]:
    graph: StateGraph[Order] = StateGraph(Order, name="orders")
    graph.add_node("act", act)
    graph.add_edges(START, "act", END)
    graph.on("completed", "failed", "question", url="env:HOOK_URL", secret="env:HOOK_SECRET")
    graph.on("failed", url="env:INSIDE_URL", secret="env:HOOK_SECRET", name=_INSIDE)
    return graph


def compiled(url: str) -> App[Order]:
    """The app, whose flaky runs are retried until they complete."""
    return build().compile(
        store=open_store(url),
        retry_runs=Retry(attempts=50, delay=0.05, factor=1.0, on=(ValueError,)),
    )


if "HOOK_URL" in os.environ:  # in a worker
    deliveries.DELAYS = (0.2,) * 5  # type: ignore[misc]
    posting.PATIENCE = 0.4  # type: ignore[misc]
    orders = compiled(os.environ["HOOK_STORE"])


class Size(msgspec.Struct, frozen=True):
    runs: int
    workers: int
    kills: int


class Outcome(msgspec.Struct):
    """Ids of deliveries that went wrong; ``wrong`` has everything else."""

    kills: int = 0
    requests: int = 0
    expected: int = 0
    lost: list[str] = []
    not_accepted: list[str] = []
    unexpected: list[str] = []
    wrong: list[str] = []

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.not_accepted or self.unexpected or self.wrong)


class _Moody(Receiver):
    """Answers each id badly once or twice."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.chance = random.Random(7)
        self._bad: dict[str, int] = {}

    def next_answer(self, id: str) -> Answer:
        left = self._bad.setdefault(id, self.chance.choice((0, 0, 1, 2)))
        self._bad[id] = left - 1
        if left > 0:
            return self.chance.choice((500, 302, 404, _hangs, _closes))
        return self.chance.choice((204, 200, 202, 410)) if left == 0 else 204


def _hangs(request: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)


def _closes(request: BaseHTTPRequestHandler) -> None:
    """Answer nothing."""


def killed(url: str, folder: Path, size: Size, *, seed: int, cheat: str = "") -> Outcome:
    """Submit runs, kill workers that have threads, and judge when no thread is due."""
    chance, outcome, app = random.Random(seed), Outcome(), compiled(url)
    kinds = {f"order {number}": KINDS[number % len(KINDS)] for number in range(size.runs)}
    with receiving(_Moody) as receiver, receiving() as inside:
        port = inside.host.partition(":")[2]
        variables = {"HOOK_STORE": url, "HOOK_URL": receiver.url, "HOOK_SECRET": SECRET}
        variables["INSIDE_URL"] = f"https://localhost:{port}/"
        app.submit_many({name: {"kind": kinds[name], "answer": ""} for name in kinds})
        fleet = Fleet(
            url,
            size.workers,
            folder,
            cheat,
            "tests.process.hook_kills:orders",
            silent=1.0,
            variables=variables,
            words=["--deliver-to", receiver.host, "--concurrency", "8"],
        )
        try:
            while outcome.kills < size.kills:
                time.sleep(chance.random() * 0.2)
                fleet.kill(_find_victim(app, fleet, chance))
                outcome.kills += 1
            _finish(app, fleet, outcome)
        finally:
            fleet.end()
        _judge(app, receiver, inside, outcome)
    app.close()
    if not outcome.is_good:
        print(fleet.logs())
    return outcome


def _finish(app: App[Order], fleet: Fleet, outcome: Outcome) -> None:
    """Wait until nothing is due; deliveries five workers died with are retried."""
    while True:
        for _ in _until_idle(app):
            outcome.wrong += fleet.supervise()
        time.sleep(0.5)  # what a cheat does later
        held = [row for row in app.threads(status="failed") if _is_held_delivery(app, row)]
        if not held:
            return
        for row in held:
            app.retry(row.key)


def _is_held_delivery(app: App[Order], row: ThreadInfo) -> bool:
    failure = app.store.failure(row.key, row.run_id)
    is_held = failure is not None and failure.error_type == "WorkersLost"
    return is_held and row.key.thread.startswith("delivery@@orders@")


def _judge(app: App[Order], receiver: Receiver, inside: Receiver, outcome: Outcome) -> None:
    rows = [row for row in app.threads() if "@@" not in row.key.thread]
    expected: set[str] = set()
    for row in rows:
        outcome.wrong += [f"{row.key.thread} has {one}" for one in notices_of(row)]
        runs = app.store.runs(row.key)
        ended = [run.run_id for run in runs if run.status == "completed"]
        if row.status == "failed":  # the newest, and no other that was retried
            ended.append(row.run_id)
        if row.status == "interrupted":
            ended.append(f"{row.run_id}-")
        expected |= {f"delivery@@orders@{one}" for one in ended}
    found = [_without_question(one.id) for one in receiver.received]
    accepted = {
        id for id, one in zip(found, receiver.received, strict=True) if one.status in _ACCEPTS
    }
    outcome.requests, outcome.expected = len(found), len(expected)
    outcome.lost = sorted(expected - set(found))
    outcome.not_accepted = sorted(expected - accepted)
    outcome.unexpected = sorted(set(found) - expected)
    outcome.wrong += [one.id for one in receiver.received if not one.is_genuine]
    outcome.wrong += [one.path for one in receiver.received if one.path != "/hook?from=test"]
    outcome.wrong += [f"inside got {one.id}" for one in inside.received]


def _without_question(id: str) -> str:
    """A run's id has four hyphens; what follows a fifth is of its question."""
    return f"{id.rpartition('-')[0]}-" if id.count("-") > 4 else id


_ACCEPTS = (200, 202, 204, 410)


def _find_victim(app: App[Order], fleet: Fleet, chance: random.Random) -> int:
    """A worker with a thread; any, if all threads are idle."""
    for rows in _until_idle(app):
        pids = {worker.id: worker.owner.pid for worker in require_shared(app.store).workers()}
        busy = {pids.get(row.worker) for row in rows if row.worker}
        found = [place for place, one in enumerate(fleet.processes) if one.pid in busy]
        if found:
            return chance.choice(found)
    return chance.randrange(len(fleet.processes))


def _until_idle(app: App[Order]) -> Iterator[Sequence[ThreadInfo]]:
    deadline = time.monotonic() + 120
    while True:
        rows = list(app.threads())
        if not any(row.worker or row.due_at is not None for row in rows):
            return
        assert time.monotonic() < deadline, "threads are due, and no worker runs them"
        yield rows
        time.sleep(0.02)
