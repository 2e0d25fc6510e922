"""Kills workers while a schedule fires fast, and judges what was fired.

The clocks of the workers differ by hours. What must hold: every tick from the first on was fired,
by one input of one thread that completed; none before its time; each began after the one before it
had ended.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from milecastle import App, MilecastleError, Schedules, ThreadKey, open_store
from milecastle.app.runs.submission import require_shared
from milecastle.model.run import ThreadInfo
from tests.process.fleet_chaos import Fleet
from tests.process.schedule_graphs import LEDGER, PERIOD, build

THREAD = "schedule@@fast"


class Firings(msgspec.Struct):
    """What was fired, and what was wrong with it."""

    fired: int = 0
    kills: int = 0
    seconds: float = 0.0
    median_late: float = 0.0
    most_late: float = 0.0
    missing: list[str] = []
    doubled: list[str] = []
    unfinished: list[str] = []
    early: list[int] = []
    disordered: list[int] = []

    @property
    def is_good(self) -> bool:
        found = (self.missing, self.doubled, self.unfinished, self.early, self.disordered)
        return not any(found)


def fired_fast(
    url: str,
    folder: Path,
    *,
    seed: int,
    firings: int,
    period: int,
    cheat: str = "skewed",
    kills: bool = True,
    patience: float = 60.0,
) -> Firings:
    """Let three workers fire so many ticks, a kill about every second, and judge the ledger."""
    ledger = folder / "ledger.txt"
    ledger.touch()
    os.environ.update({LEDGER: str(ledger), PERIOD: str(period)})
    app: App[Any] = build(period).compile(store=open_store(url))
    outcome, chance = Firings(), random.Random(seed)
    fleet = Fleet(url, 3, folder, cheat, "tests.process.schedule_graphs:app")
    began = time.monotonic()
    try:
        since = _eventually(lambda: _first_since(app), patience)
        wanted, next_kill = time.monotonic() + patience + firings, 1
        while (fired := _fired(app)) < firings and time.monotonic() < wanted:
            if kills and fired >= next_kill:
                next_kill = fired + chance.randrange(5, 30)
                is_busy = chance.random() < 0.5
                fleet.kill(_holder(app, fleet) if is_busy else chance.randrange(3))
                outcome.kills += 1
            time.sleep(chance.uniform(0.0, 0.1))
        Schedules(app).pause("fast")
        quiet = time.monotonic() + patience
        while _unfinished(lines := _lines(app)) and time.monotonic() < quiet:
            time.sleep(0.1)
        outcome.seconds = round(time.monotonic() - began, 1)
        _judge(app, since, lines, outcome)
        _read_ledger(ledger, outcome)
    finally:
        fleet.end()
        app.close()
    if not outcome.is_good:
        print(fleet.logs())
    return outcome


def _holder(app: App[Any], fleet: Fleet) -> int:
    """The worker that handles a tick just now."""
    store = require_shared(app.store)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        line = store.thread(ThreadKey("default", THREAD))
        pids = {known.id: known.owner.pid for known in store.workers()}
        for number, process in enumerate(fleet.processes):
            if line is not None and pids.get(line.worker) == process.pid:
                return number
    return 0


def _first_since(app: App[Any]) -> int:
    """From when on ticks count: what the schedule noted when it was first seen."""
    for seq in range(1, 10):
        since = _memory(app, seq)["since"]
        if since:
            return int(since)
    raise LookupError


def _memory(app: App[Any], at: int | None = None) -> dict[str, Any]:
    """The state of the schedule. Its values are plain, so no type of it is needed."""
    (run,) = Schedules(app).runs.values()
    return dict(App(run.runner).state(THREAD, at=at).state)


def _fired(app: App[Any]) -> int:
    return int(_eventually(lambda: _memory(app)["fired"], 30.0))


def _eventually(function: Callable[[], int], patience: float) -> int:
    deadline = time.monotonic() + patience
    while True:
        try:
            return function()
        except (MilecastleError, LookupError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _lines(app: App[Any]) -> list[ThreadInfo]:
    return [info for info in app.threads() if info.key.thread != THREAD]


def _unfinished(lines: list[ThreadInfo]) -> list[str]:
    return [info.key.thread for info in lines if info.status != "completed"]


def _judge(app: App[Any], since: int, lines: list[ThreadInfo], outcome: Firings) -> None:
    """``lines`` are the firings as of one moment: a worker may still submit what was decided."""
    (run,) = Schedules(app).runs.values()
    memory, names = _memory(app), [info.key.thread for info in lines]
    last = max(int(memory["since"]), int(memory["tick"]))
    due: list[str] = []
    for tick in run.schedule.ticks(since):
        if tick > last:
            break
        due.append(run.schedule.thread(tick))
    if due and due[-1] not in names and memory["verdict"] == "fires":
        due.pop()  # it was paused between the decision and the firing
    outcome.fired = len(names)
    outcome.missing = sorted(set(due) ^ set(names))
    outcome.unfinished = _unfinished(lines)
    for name in names:
        entries = app.store.history(ThreadKey("default", name))
        if sum(entry.source == "input" for entry in entries) != 1:
            outcome.doubled.append(name)


def _read_ledger(ledger: Path, outcome: Firings) -> None:
    """What began in which order. A run whose worker was killed begins again."""
    late: dict[int, float] = {}
    newest = ended = 0
    for line in ledger.read_text("ascii").splitlines():
        word, tick, at = line.split()[0], int(line.split()[1]), int(line.split()[2])
        if word == "ends":
            ended = max(ended, tick)
            continue
        if tick < newest or (tick > newest > ended):
            outcome.disordered.append(tick)
        newest = max(newest, tick)
        if at < tick:
            outcome.early.append(tick)
        late.setdefault(tick, (at - tick) / 1_000_000)
    times = sorted(late.values())
    if times:
        outcome.median_late = round(times[len(times) // 2], 3)
        outcome.most_late = round(times[-1], 3)
