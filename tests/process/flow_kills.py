"""Kills workers while flows call steps, receive messages and join children; judges the results.

Parent and child are one flow, so that each worker serves both: ``flow_kills:family``. Each step
notes that it ran, in a file: a call whose result was recorded must never be among those that ran
again.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from milecastle import App, current, flow, gather, join, open_store, receive, sleep, spawn, step
from milecastle.app.runs.submission import require_shared
from tests.process.fleet_chaos import Fleet

RAN = "MILECASTLE_TEST_RAN"
MESSAGES = 4


def square(number: int) -> int:
    context = current()
    assert context.thread is not None
    with Path(os.environ[RAN]).open("a", encoding="utf-8") as ran:
        ran.write(f"{context.thread.thread}\t{context.call}\t{time.time_ns() // 1000}\n")
    time.sleep(0.01)  # a kill between the call and its record
    return number * number


@flow(name="family")
def family(number: int, children: int) -> list[int]:
    if not children:
        return [step(square, number)]
    names = [spawn("family", {"number": number + n, "children": 0}) for n in range(children)]
    found: list[int] = [step(square, receive("go")) for _ in range(MESSAGES)]
    sleep(0.05)
    found += gather(lambda: step(square, 10), lambda: step(square, 20))
    for name in reversed(names):
        while (ended := join(name)).status != "completed":
            continue  # it is held after five lost workers in a row; its retry ends as well
        found += ended.state["result"]
    return found


class Outcome(msgspec.Struct):
    """``repeated`` calls ran again, ``late`` ones after their results were recorded.

    ``skew`` is how many microseconds the workers' clock is before the store's.
    """

    kills: int = 0
    repeated: int = 0
    skew: float = 0.0
    late: list[str] = []
    wrong: list[str] = []


def killed(url: str, folder: Path, parents: int, kills: int, *, seed: int) -> Outcome:
    """Kill workers until all flows have ended, and judge."""
    chance, outcome, children, workers = random.Random(seed), Outcome(), 3, 2
    variables = {RAN: str(folder / "ran")}
    fleet = Fleet(
        url,
        workers,
        folder,
        app="tests.process.flow_kills:family",
        silent=1.0,
        variables=variables,
    )
    with closing(family.compile(store=open_store(url))) as app:
        names = [f"parent {number}" for number in range(parents)]
        try:
            left = {name: list(range(MESSAGES)) for name in names}
            app.submit_many({n: family.input(k * 100, children) for k, n in enumerate(names)})
            deadline = time.monotonic() + 60 + 3 * kills
            while any(row.worker or row.due_at is not None or left for row in app.threads()):
                assert time.monotonic() < deadline, fleet.logs()
                name = chance.choice(names)
                if numbers := left.get(name):
                    number = numbers.pop(0)
                    for _ in range(2):
                        app.send(name, number, "go", key=str(number))
                else:
                    left.pop(name, None)
                busy = {row.worker for row in app.threads() if row.worker}
                pids = {
                    worker.owner.pid
                    for worker in require_shared(app.store).workers()
                    if worker.id in busy
                }
                places = [n for n, one in enumerate(fleet.processes) if one.pid in pids]
                if outcome.kills < kills and places:
                    fleet.kill(chance.choice(places))
                    outcome.kills += 1
                outcome.wrong += fleet.supervise()
                time.sleep(chance.random() / 10)
                for row in app.threads(status="failed"):
                    if row.due_at is None:
                        app.retry(row.key.thread)
            for place, name in enumerate(names):
                squares = [(place * 100 + number) ** 2 for number in range(children)]
                wanted = [n * n for n in range(MESSAGES)] + [100, 400] + squares[::-1]
                if app.state(name).state.get("result") != wanted or app.mailbox(name):
                    outcome.wrong.append(name)
            _judge(app, folder, outcome)
        finally:
            fleet.end()
    if outcome.wrong:
        print(fleet.logs())
    return outcome


def _judge(app: App[Any], folder: Path, outcome: Outcome) -> None:
    """Compare when each step ran with the entry that recorded it.

    The entry has the store's time. How far that is from the workers' is seen in the steps that ran
    once: none of these ran after its entry. A held thread has an entry noted "5 workers in a row".
    """
    recorded: dict[tuple[str, str], float] = {}
    for row in app.threads():
        for entry in app.history(row.key.thread):
            call = entry.note.partition(" ")[0]
            if entry.source == "step":
                recorded[row.key.thread, call] = entry.timestamp.timestamp() * 1_000_000
    ran: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for line in (folder / "ran").read_text(encoding="utf-8").splitlines():
        thread, call, began = line.split("\t")
        ran[thread, call].append(float(began))
    after = {key: max(began) - recorded.get(key, float("inf")) for key, began in ran.items()}
    outcome.skew = max([0.0, *(after[key] for key in ran if len(ran[key]) == 1)])
    outcome.late = [" ".join(key) for key in ran if after[key] > outcome.skew]
    outcome.repeated = sum(len(began) - 1 for began in ran.values())
