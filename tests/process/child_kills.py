"""Kills workers while parents spawn and join children, and judges each result.

Parent and child are one graph, so that each worker serves both: ``child_kills:family``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from milecastle import END, START, App, Context, StateGraph, open_store
from milecastle.app.runs.submission import require_shared
from milecastle.model.children import OUTSTANDING
from milecastle.model.run import ThreadInfo
from tests.process.fleet_chaos import Fleet


class Member(TypedDict):
    """``number`` is a child's; a parent has ``children`` of them, and their ``results``."""

    number: int
    children: int
    results: list[int]


def live(state: Member, ctx: Context) -> dict[str, Any]:
    if not state["children"]:
        time.sleep(0.01)  # a kill between the start and the end
        return {"results": [state["number"] ** 2]}
    numbers = [state["number"] + place for place in range(state["children"])]
    inputs = [Member(number=number, children=0, results=[]) for number in numbers]
    names = ctx.spawn_many("family", inputs)
    ended = [ctx.join(name) for name in reversed(names)][::-1]
    return {"results": [one.state["results"][0] if one.state else -1 for one in ended]}


def build() -> StateGraph[Member]:
    graph: StateGraph[Member] = StateGraph(Member, name="family")
    graph.add_node("live", live)
    graph.add_edges(START, "live", END)
    return graph


family = build()


class Size(msgspec.Struct, frozen=True):
    """``children`` are those of each parent."""

    parents: int
    children: int
    workers: int
    kills: int


class Outcome(msgspec.Struct):
    """``wrong`` are results that are not exact; threads five workers died with are ``held``."""

    kills: int = 0
    held: int = 0
    wrong: list[str] = []
    outstanding: list[str] = []
    unread: int = 0

    @property
    def is_good(self) -> bool:
        return not (self.wrong or self.outstanding or self.unread)


def killed(url: str, folder: Path, size: Size, *, seed: int) -> Outcome:
    """Submit parents, kill workers that have threads, and judge when no thread is due."""
    chance, outcome = random.Random(seed), Outcome()
    app = family.compile(store=open_store(url))
    parents = {f"parent {number}": number * size.children for number in range(size.parents)}
    app.submit_many(
        {
            name: {"number": first, "children": size.children, "results": []}
            for name, first in parents.items()
        }
    )
    fleet = Fleet(url, size.workers, folder, "", "tests.process.child_kills:family", silent=1.0)
    try:
        for _ in range(size.kills):
            fleet.kill(_find_victim(app, fleet, chance))
            outcome.kills += 1
        _finish(app, fleet, outcome)
        while held := [row.key.thread for row in app.threads(status="failed")]:
            outcome.held += len(held)
            for name in held:
                app.retry(name)
            _finish(app, fleet, outcome)
        for name, first in parents.items():
            found = app.state(name)
            expected = [number**2 for number in range(first, first + size.children)]
            if found.status != "completed" or found.state["results"] != expected:
                outcome.wrong.append(f"{name} is {found.status}: {found.state['results']}")
            outcome.unread += len(app.mailbox(name))
        rows = list(app.threads())
        outcome.outstanding = [row.key.thread for row in rows if OUTSTANDING in row.waiting_topics]
        if len(rows) != size.parents * (size.children + 1):
            outcome.wrong.append(f"there are {len(rows)} threads")
    finally:
        fleet.end()
        app.close()
    if not outcome.is_good:
        print(fleet.logs())
    return outcome


def _finish(app: App[Member], fleet: Fleet, outcome: Outcome) -> None:
    for _ in _until_idle(app):
        outcome.wrong += fleet.supervise()


def _find_victim(app: App[Member], fleet: Fleet, chance: random.Random) -> int:
    """A worker with a thread; any, if all threads are idle."""
    for rows in _until_idle(app):
        pids = {worker.id: worker.owner.pid for worker in require_shared(app.store).workers()}
        busy = {pids.get(row.worker) for row in rows if row.worker}
        found = [place for place, one in enumerate(fleet.processes) if one.pid in busy]
        if found:
            return chance.choice(found)
    return chance.randrange(len(fleet.processes))


def _until_idle(app: App[Member]) -> Iterator[Sequence[ThreadInfo]]:
    deadline = time.monotonic() + 120
    while True:
        rows = list(app.threads())
        if not any(row.worker or row.due_at is not None for row in rows):
            return
        assert time.monotonic() < deadline, "threads are due, and no worker runs them"
        yield rows
        time.sleep(0.02)
