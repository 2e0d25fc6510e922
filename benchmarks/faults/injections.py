"""The faults: each does something to a fresh world, and returns a cell of the table.

A cell says how many faults there were and how many of them *hit* work in flight: where none did,
the cell is no result. Timing is not compared: leases, polls and pauses are set by this harness.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Thread

from benchmarks.faults.oracle import Line, Verdict, judge
from benchmarks.faults.world import World, kill

PATIENCE = 60.0
RECENT = 300_000_000
"""Nanoseconds before a fault in which an effect counts as work in flight."""

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
FAKED = {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@dataclass(slots=True)
class Cell:
    """The outcome of one fault on one runtime."""

    verdict: Verdict
    faults: int
    hits: int
    recovery: list[float] = field(default_factory=list[float])
    said: Mapping[str, int] = field(default_factory=dict[str, int])


class NotApplicable(Exception):
    """Why a fault cannot be tried on a runtime."""


def kill_worker(world: World, faults: int, seed: int) -> Cell:
    """Kill -9 of the only worker, at random moments; a new one is started."""
    return _disturb(world, faults, seed, _restart_worker)


def restart_database(world: World, faults: int, seed: int) -> Cell:
    """The database server, or Temporal's development server, is killed and started again."""
    if world.cluster is None and world.server is None:
        raise NotApplicable("the store is a file: there is no server")

    def crash(world: World, worker: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        if world.server is not None:
            world.server.crash()
        else:
            assert world.cluster is not None
            world.cluster.stop("immediate")
            world.cluster.start()
        return worker if worker.poll() is None else world.spawn("work")

    return _disturb(world, faults, seed, crash)


def kill_caller(world: World, faults: int, seed: int) -> Cell:
    """Kill -9 of the process that runs an order itself; it is called again until it is done."""
    if world.runtime.peer == "temporal":
        raise NotApplicable("no caller runs a workflow: workers do")
    chance, kills, orders = random.Random(seed), list[float](), list[str]()
    approved = dict[str, list[str]]()
    world.statuses(["warm"])
    while len(kills) < faults:
        order = f"order{len(orders)}"
        orders.append(order)
        approved[order] = [f"ann-{order}"]
        for _ in range(30):
            said = world.statuses([order])[order].get("status")
            if said == "done":
                break
            verb = ["run", order]
            if said == "waiting" and world.runtime.peer == "dbos":
                world.insist("approve", order, approved[order][0])
            elif said == "waiting":
                verb = ["resume", order, approved[order][0]]
            process = world.spawn(*verb)
            _kill_at_random(world, process, chance, kills, faults)
            _ended(world, process, order)
    hits = _hits(world.lines(), kills)
    return _cell(world, orders, approved, len(kills), hits, has_crashes=True)


def fill_disk(world: World, faults: int, seed: int) -> Cell:
    """The disk of the store has no room for a while."""
    if world.disk is None:
        raise NotApplicable("the server of the database ends, as in restart-database")
    filler = world.disk / "filler"

    def fill(world: World, worker: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        time.sleep(1.5)
        filler.unlink()
        time.sleep(0.5)
        return worker if worker.poll() is None else world.spawn("work")

    return _disturb(world, faults, seed, fill)


def set_clock_back(world: World, faults: int, seed: int) -> Cell:
    """The clock that workers and clients see is set back by an hour, again and again.

    A database server keeps its own clock.
    """
    if not LIBRARY.exists():
        raise NotApplicable("libfaketime is not installed")
    file = world.folder / "clock"
    file.write_text("+0")
    world.set(LD_PRELOAD=str(LIBRARY), FAKETIME_TIMESTAMP_FILE=str(file), **FAKED)
    hours = count(1)

    def turn(world: World, worker: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        file.write_text(f"-{next(hours)}h")
        return worker

    return _disturb(world, faults, seed, turn)


def two_processes(world: World, faults: int, seed: int) -> Cell:
    """Two processes run one order at the same time: callers where they can, else workers."""
    orders, met = [f"order{number}" for number in range(faults)], 0
    approved = {order: [f"ann-{order}"] for order in orders}
    by_callers = world.runtime.peer in ("milecastle", "langgraph")
    if by_callers:
        world.statuses(["warm"])
        for order in orders:
            first = world.spawn("run", order, FAULTS_HOLD_AT="charge", FAULTS_HOLD="15")
            world.wait_for_line(_at(order, "charge"))
            _wait(world.spawn("run", order), PATIENCE)
            met += first.poll() is None  # the second was there while the first still charged
            _wait(first, PATIENCE)
    else:
        executors = ({"FAULTS_EXECUTOR": name} for name in ("one", "two"))
        for settings in executors:
            world.spawn("work", **settings)
        for order in orders:
            world.insist("start", order)
    world.wait(orders, ("waiting", "done"), PATIENCE)
    verb = "resume" if by_callers else "approve"
    for order in orders:
        world.insist(verb, order, approved[order][0], seconds=5)
    world.wait(orders, ("done",), PATIENCE)
    time.sleep(1)  # what a loser still does
    met = met if by_callers else len({line["order"] for line in world.lines()})
    return _cell(world, orders, approved, faults, met)


def stop_worker(world: World, faults: int, seed: int) -> Cell:
    """A process is stopped inside `charge` for longer than its lease, and continues.

    Every second order is finished before it continues; the others wait for their approval.
    """
    orders, approved = list[str](), dict[str, list[str]]()
    verb = "run" if world.runtime.peer == "langgraph" else "work"
    world.statuses(["warm"])
    for number in range(faults):
        order = f"order{number}"
        orders.append(order)
        approved[order] = [f"ann-{order}"]
        given = [order] if verb == "run" else []
        hold = {"FAULTS_HOLD_AT": "charge", "FAULTS_HOLD": "1.5"}
        first = world.spawn(verb, *given, **hold)
        if verb == "work":
            world.insist("start", order)
        world.wait_for_line(_at(order, "charge"))
        os.killpg(first.pid, signal.SIGSTOP)
        second = world.spawn(verb, *given)
        world.wait([order], ("waiting",), PATIENCE)
        finishes = "resume" if verb == "run" else "approve"
        if number % 2 == 0:
            world.insist(finishes, order, approved[order][0])
            world.wait([order], ("done",), PATIENCE)
        os.killpg(first.pid, signal.SIGCONT)
        time.sleep(4)
        if number % 2 == 1:
            world.insist(finishes, order, approved[order][0])
            world.wait([order], ("done",), PATIENCE)
        kill(first)
        kill(second)
    return _cell(world, orders, approved, faults, faults, has_crashes=True)


def change_code(code: str) -> Callable[[World, int, int], Cell]:
    """Runs wait for their approval, and are continued by changed code."""

    def change(world: World, faults: int, seed: int) -> Cell:
        if code == "rename-wait" and world.runtime.peer == "dbos":
            raise NotApplicable("a wait has a topic and no name of a step")
        orders = [f"order{number}" for number in range(faults)]
        approved = {order: [f"ann-{order}"] for order in orders}
        old = world.spawn("work")
        for order in orders:
            world.insist("start", order)
        world.wait(orders, ("waiting",), PATIENCE)
        kill(old)
        world.spawn("work", FAULTS_CODE=code)
        time.sleep(3)
        refused = [o for o in orders if world.ask("approve", o, approved[o][0], code=code) is None]
        taken = [order for order in orders if order not in refused]
        found = dict(world.wait(taken, ("done", "refused"), 20, code) if taken else {})
        found |= {order: {"status": "refused", "state": None} for order in refused}
        without = "ship" if code == "remove-ahead" else ""
        verdict = judge(world.lines(), found, approved, has_crashes=False, without=without)
        if code == "insert-after":
            made = {line["order"] for line in world.lines() if line["kind"] == "audit"}
            for order in orders:
                if found[order].get("status") == "done" and order not in made:
                    verdict.add("skipped", f"{order} ended without the inserted call")
        return Cell(verdict, faults, faults, said=_counted(world.errors))

    change.__doc__ = f"{change_code.__doc__} ({code})"
    return change


def approve_early(world: World, faults: int, seed: int) -> Cell:
    """The approval comes before the wait."""
    orders = [f"order{number}" for number in range(faults)]
    approved = {order: [f"ann-{order}"] for order in orders}
    is_library = world.runtime.peer == "langgraph"
    world.statuses(["warm"])
    if world.runtime.peer == "dbos":
        kill(_settled(world.spawn("work"), world))
    for order in orders:
        if is_library:
            world.spawn("run", order, FAULTS_HOLD_AT="charge", FAULTS_HOLD="2")
        else:
            world.insist("start", order)
    if is_library:
        for order in orders:
            world.wait_for_line(_at(order, "charge"))
    verb = "resume" if is_library else "approve"
    early = {order: world.ask(verb, order, approved[order][0]) is not None for order in orders}
    world.spawn("work")
    world.wait(orders, ("waiting", "done"), PATIENCE)
    time.sleep(2)
    for order in orders:  # one that was refused, or accepted and not used, is sent again
        if world.statuses([order])[order].get("status") == "waiting":
            world.ask(verb, order, approved[order][0])
    world.wait(orders, ("done",), PATIENCE)
    cell = _cell(world, orders, approved, faults, faults)
    cell.said = {**cell.said, "accepted early": sum(early.values())}
    return cell


def approve_twice(world: World, faults: int, seed: int) -> Cell:
    """Two processes send different approvals at the same moment; afterwards a third comes."""
    orders = [f"order{number}" for number in range(faults)]
    world.statuses(["warm"])
    worker = world.spawn("work")
    for order in orders:
        world.insist("start", order)
    world.wait(orders, ("waiting",), PATIENCE)
    is_library = world.runtime.peer == "langgraph"
    if is_library:
        kill(worker)  # a call of `resume` runs the rest itself
    verb = "resume" if is_library else "approve"
    approved: dict[str, list[str]] = {}
    accepted = 0
    for order in orders:
        names = [f"{who}-{order}" for who in ("ann", "bob")]
        pair = [world.spawn(verb, order, name) for name in names]
        codes = [_wait(process, PATIENCE) for process in pair]
        # a client that died may have been heard: whether it was acknowledged is unknown
        approved[order] = [name for name, code in zip(names, codes, strict=True) if code <= 0]
        accepted += sum(code == 0 for code in codes)
    world.wait(orders, ("done",), PATIENCE)
    for order in orders:
        world.ask(verb, order, f"eve-{order}")
    time.sleep(1)
    cell = _cell(world, orders, approved, faults, faults)
    cell.said = {**cell.said, "accepted of two": accepted}
    return cell


def start_at_once(world: World, faults: int, seed: int) -> Cell:
    """Twenty callers send the same start at the same moment, and one again after the end."""
    orders = [f"order{number}" for number in range(max(1, faults // 5))]
    approved = {order: [f"ann-{order}"] for order in orders}
    is_library = world.runtime.peer == "langgraph"
    worker = world.spawn("work")
    world.statuses(["warm"])
    if is_library:
        kill(worker)
    elif world.runtime.peer == "dbos":
        _settled(worker, world)
    verb = "run" if is_library else "start"
    for order in orders:
        callers = [world.spawn(verb, order) for _ in range(20)]
        for caller in callers:
            _wait(caller, PATIENCE)
    world.wait(orders, ("waiting",), PATIENCE)
    for order in orders:
        world.insist("resume" if is_library else "approve", order, approved[order][0], seconds=5)
    world.wait(orders, ("done",), PATIENCE)
    for order in orders:
        world.ask(verb, order) if not is_library else _wait(world.spawn("run", order), PATIENCE)
    time.sleep(1)
    return _cell(world, orders, approved, 20 * len(orders), 20 * len(orders))


FAULTS: Mapping[str, Callable[[World, int, int], Cell]] = {
    "kill-worker": kill_worker,
    "kill-caller": kill_caller,
    "two-processes": two_processes,
    "stop-worker": stop_worker,
    "restart-database": restart_database,
    "fill-disk": fill_disk,
    "set-clock-back": set_clock_back,
    "insert-after": change_code("insert-after"),
    "insert-before": change_code("insert-before"),
    "remove-ahead": change_code("remove-ahead"),
    "rename-ahead": change_code("rename-ahead"),
    "rename-wait": change_code("rename-wait"),
    "reorder": change_code("reorder"),
    "approve-early": approve_early,
    "approve-twice": approve_twice,
    "start-at-once": start_at_once,
}

Disturbance = Callable[[World, "subprocess.Popen[bytes]"], "subprocess.Popen[bytes]"]


def _disturb(world: World, faults: int, seed: int, fault: Disturbance) -> Cell:
    """Keep four orders open, approve those that wait, and disturb at random moments."""
    chance, orders, approved = random.Random(seed), list[str](), dict[str, list[str]]()
    moments, recovery = list[float](), list[float]()
    worker = world.spawn("work")
    if world.runtime.peer == "dbos":
        _settled(worker, world)
    with _approver(world, orders, approved):
        for _ in range(faults):
            _top_up(world, orders)
            _until_next_line(world)
            time.sleep(chance.uniform(0, 0.3))
            moments.append(time.monotonic())
            worker = fault(world, worker)
            if _hits(world.lines(), moments[-1:]):
                recovery += _recovery(world, orders, moments[-1])
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if worker.poll() is not None:
                worker = world.spawn("work")
            found = world.statuses(orders)
            if all(found[order].get("status") == "done" for order in orders):
                break
            time.sleep(0.2)
    hits = _hits(world.lines(), moments)
    cell = _cell(world, orders, approved, len(moments), hits, has_crashes=True)
    cell.recovery = recovery
    return cell


@contextmanager
def _approver(
    world: World, orders: Sequence[str], approved: dict[str, list[str]]
) -> Generator[None]:
    """Approve each order that waits, once its approval was not acknowledged before."""
    over = Event()

    def approve() -> None:
        while not over.is_set():
            left = [order for order in [*orders] if order not in approved]
            for order, said in (world.statuses(left) if left else {}).items():
                is_waiting = said.get("status") == "waiting"
                if is_waiting and world.ask("approve", order, f"ann-{order}") is not None:
                    approved[order] = [f"ann-{order}"]
            over.wait(0.1)

    thread = Thread(target=approve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _restart_worker(world: World, worker: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    kill(worker)
    return world.spawn("work")


def _top_up(world: World, orders: list[str]) -> None:
    found = world.statuses(orders) if orders else {}
    is_open = [order for order, said in found.items() if said.get("status") != "done"]
    for _ in range(4 - len(is_open)):
        order = f"order{len(orders)}"
        if world.insist("start", order):
            orders.append(order)


def _recovery(world: World, orders: Sequence[str], moment: float) -> list[float]:
    """Seconds until the next effect; nothing if every order had made its last."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        effects = (line["time"] for line in world.lines() if line["event"] == "effect")
        if later := [at for at in effects if at > moment * 1e9]:
            return [min(later) / 1e9 - moment]
        if all(said.get("status") == "done" for said in world.statuses(orders).values()):
            return []
        time.sleep(0.02)
    return [PATIENCE]


def _cell(
    world: World,
    orders: Sequence[str],
    approved: Mapping[str, Sequence[str]],
    faults: int,
    hits: int,
    *,
    has_crashes: bool = False,
) -> Cell:
    found = world.statuses(orders)
    verdict = judge(world.lines(), found, approved, has_crashes=has_crashes)
    return Cell(verdict, faults, hits, said=_counted(world.errors))


def _counted(errors: Sequence[str]) -> dict[str, int]:
    kinds = [": ".join(error.split(": ")[:2])[:80] for error in errors]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _hits(lines: Sequence[Line], moments: Sequence[float]) -> int:
    """How many faults came shortly after an effect, or while a call was on its way."""
    times = [line["time"] for line in lines]
    return sum(any(0 < at * 1e9 - time_ <= RECENT for time_ in times) for at in moments)


def _at(order: str, kind: str) -> Callable[[Line], bool]:
    return lambda line: line["order"] == order and line["kind"] == kind


def _settled(worker: subprocess.Popen[bytes], world: World) -> subprocess.Popen[bytes]:
    """A worker whose tables exist."""
    world.insist("status", "warm")
    time.sleep(3)
    return worker


def _until_next_line(world: World) -> None:
    before = len(world.lines())
    _until(lambda: len(world.lines()) > before, 15)


def _until(is_true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        return -1


def _kill_at_random(
    world: World,
    process: subprocess.Popen[bytes],
    chance: random.Random,
    kills: list[float],
    faults: int,
) -> None:
    """Kill a process most of the time, within half a second of its first request."""
    if len(kills) >= faults or chance.random() > 0.8:
        return
    before = len(world.lines())
    _until(lambda: len(world.lines()) > before or process.poll() is not None, 10)
    time.sleep(chance.uniform(0, 0.4))
    if process.poll() is None:
        kills.append(time.monotonic())
        kill(process)


def _ended(world: World, process: subprocess.Popen[bytes], order: str) -> None:
    """Wait for its end; a caller of DBOS lives until the approval, and is killed at the wait."""
    if world.runtime.peer == "dbos":
        world.wait([order], ("waiting", "done"), 0 if process.poll() is not None else PATIENCE)
        kill(process)
    else:
        _wait(process, PATIENCE)
