"""Kills workers while each customer may have one run at a time, and judges what ran when.

The graph is ``key_kills:served``. Its node notes its begin and its end in one file, and whoever
kills a worker notes that: so the order of the lines tells which runs overlapped.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from milecastle import END, START, App, StateGraph, ThreadKey, open_store
from milecastle.app.runs.submission import require_shared
from milecastle.ports.limits import Limit
from tests.process.fleet_chaos import Fleet

TENANTS = 10
GREEDY = 5
"""The first tenant queues so many times as much, before all others."""
_MANY = 20
"""With fewer runs of each tenant, which of them a kill delays decides too much."""


class Order(TypedDict):
    customer: str
    tenant: str


def note(path: Path, *words: object) -> None:
    """Append a line; those of all processes are in the order in which they were written."""
    line = " ".join(map(str, words)) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def serve(state: Order) -> None:
    path, name = Path(os.environ["KEY_NOTES"]), f"{state['tenant']}/{state['customer']}"
    note(path, "begin", name, os.getpid())
    time.sleep(0.03)
    note(path, "end", name, os.getpid())


def build() -> StateGraph[Order]:
    graph: StateGraph[Order] = StateGraph(Order, name="served")
    graph.add_node("serve", serve)
    graph.add_edges(START, "serve", END)
    return graph


def __getattr__(name: str) -> App[Order]:
    if name != "served":
        raise AttributeError(name)
    return build().compile(store=open_store(os.environ["KEY_STORE"]))


class Size(msgspec.Struct, frozen=True):
    customers: int
    runs: int
    workers: int
    kills: int


class Outcome(msgspec.Struct):
    """``together`` are customers of whom two ran at once; ``unfair`` has tenants."""

    kills: int = 0
    begun: int = 0
    seconds: float = 0.0
    greedy: int = 0
    together: list[str] = []
    starved: list[str] = []
    unfair: list[str] = []
    wrong: list[str] = []

    @property
    def is_good(self) -> bool:
        return not (self.together or self.starved or self.unfair or self.wrong)


def killed(url: str, folder: Path, size: Size, *, seed: int, cheat: str = "") -> Outcome:
    """Submit the runs of all customers, kill workers, and judge when everything has ended."""
    chance, outcome, notes = random.Random(seed), Outcome(), folder / "notes"
    notes.touch()
    app = build().compile(store=open_store(url))
    store = require_shared(app.store)
    store.set_limit(Limit(graph="served", key="customer", concurrency=1))
    keys = _submit(app, size)
    apart = 2 * len(keys) * size.runs // (size.kills + 1)  # over all of it
    variables = {"KEY_STORE": url, "KEY_NOTES": str(notes)}
    begun = time.monotonic()
    fleet = Fleet(
        url,
        size.workers,
        folder,
        cheat,
        "tests.process.key_kills:served",
        silent=1.0,
        variables=variables,
        words=["--concurrency", "16"],
    )
    try:
        while _left(app):
            if outcome.kills < size.kills and _lines(notes) > apart * (outcome.kills + 1):
                number = chance.randrange(len(fleet.processes))
                pid = fleet.processes[number].pid
                fleet.processes[number].kill()
                fleet.processes[number].wait()
                note(notes, "killed", "-", pid)
                fleet.processes[number] = fleet.start()
                outcome.kills += 1
            outcome.wrong += fleet.supervise()
            assert time.monotonic() - begun < 600, "runs are left"
            time.sleep(0.05)
    finally:
        fleet.end()
    outcome.seconds = round(time.monotonic() - begun, 1)
    _judge(notes, keys, size, outcome)
    app.close()
    if not outcome.is_good:
        print(fleet.logs())
    return outcome


def _submit(app: App[Order], size: Size) -> list[str]:
    """Queue the greedy tenant's runs first; the names of all customers."""
    names: list[str] = []
    for tenant in range(TENANTS):
        for number in range(size.customers // TENANTS):
            name = f"c{tenant}-{number}"
            names.append(f"t{tenant}/{name}")
            count = size.runs * (1 if tenant else GREEDY)
            inputs: Any = {
                ThreadKey(f"t{tenant}", f"{name} {run}"): {"customer": name, "tenant": f"t{tenant}"}
                for run in range(count)
            }
            app.submit_many(inputs, keys={"customer": name})
    return names


def _left(app: App[Order]) -> bool:
    depths = require_shared(app.store).depths()
    return any(depth.due or depth.later or depth.running for depth in depths)


def _lines(notes: Path) -> int:
    return notes.read_bytes().count(b"\n")


def _judge(notes: Path, names: list[str], size: Size, outcome: Outcome) -> None:
    running: dict[str, str] = {}
    ended: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    early: Counter[str] = Counter()
    others = (size.customers - size.customers // TENANTS) * size.runs
    for line in notes.read_text("utf-8").splitlines():
        what, name, pid = line.split()
        if what == "killed":
            running = {known: its for known, its in running.items() if its != pid}
        elif what == "begin":
            if name in running:
                outcome.together.append(name)
            running[name] = pid
            begun[name.partition("/")[0]] += 1
        else:
            running.pop(name, None)
            ended[name] += 1
            if sum(ended.values()) <= others // 2:
                early[name.partition("/")[0]] += 1
    outcome.begun = sum(begun.values())
    outcome.starved = [name for name in names if not ended[name]]
    outcome.greedy = early["t0"]
    share = sum(early.values()) / TENANTS
    least = share / 2 if share >= _MANY else 1  # a new process begins with the first tenant
    outcome.unfair = [
        f"{tenant}: {early[tenant]} of {share:.0f}"
        for tenant in (f"t{number}" for number in range(TENANTS))
        if not least <= early[tenant] <= share * 2
    ]
