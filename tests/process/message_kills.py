"""Kills workers while messages come, and judges how each message was applied.

Senders run beside the workers and send each message twice, with its key; the second time when the
first has perhaps been consumed. A step receives two messages: if the second has not come, the run
stops, and receives the first again later. Workers import the graph as ``message_kills:collecting``.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Annotated, Any, TypedDict

import msgspec

from milecastle import END, START, App, Context, ExecutionConfig, StateGraph, append, open_store
from milecastle.app.runs.submission import require_shared
from milecastle.model.run import ThreadInfo
from tests.process.fleet_chaos import Fleet

TOPICS = ("even", "odd")
SENDERS = 4
_LAG = 8


class Collected(TypedDict):
    """Messages to come, and those applied: each its sender and its number."""

    left: int
    log: Annotated[list[tuple[int, int]], append]


def collect(state: Collected, ctx: Context) -> dict[str, Any]:
    found: list[Any] = []
    for _ in range(min(2, state["left"])):
        found.append(ctx.receive(TOPICS).value)
        time.sleep(0.01)  # a kill between receipt and commit
    return {"left": state["left"] - len(found), "log": found}


def build() -> StateGraph[Collected]:
    graph: StateGraph[Collected] = StateGraph(Collected, name="collecting")
    graph.with_default_config(ExecutionConfig(max_steps=None))
    graph.add_node("collect", collect)
    graph.add_edge(START, "collect")
    graph.add_edge("collect", END, when=lambda state: state["left"] == 0)
    graph.add_edge("collect", "collect")
    return graph


collecting = build()


class Size(msgspec.Struct, frozen=True):
    """``messages`` must be a multiple of ``threads`` times ``SENDERS``."""

    messages: int
    threads: int
    workers: int
    kills: int


class Outcome(msgspec.Struct):
    """Differences from each message applied once, in its sender's order.

    Threads with which five workers in a row were killed are ``held``, and retried in the end.
    """

    kills: int = 0
    held: list[str] = []
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    unread: int = 0
    wrong: list[str] = []

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.reordered or self.unread or self.wrong)


class _Sender:
    """Sends its share of the messages, as fast as ``allowed`` says, each a second time later."""

    def __init__(self, app: App[Collected], number: int, size: Size, allowed: Semaphore) -> None:
        self._app, self._number, self._allowed = app, number, allowed
        self._threads, self._count = size.threads, size.messages // SENDERS

    def send_all(self) -> list[str]:
        """Send; return what the mailboxes answered wrongly."""
        wrong: list[str] = []
        for number in range(self._count + _LAG):
            if number < self._count:
                self._allowed.acquire()
                if self._is_reused(number):
                    wrong.append(f"message {number} of sender {self._number} was there before")
            if number >= _LAG and not self._is_reused(number - _LAG):
                wrong.append(f"message {number - _LAG} of sender {self._number} was stored twice")
        return wrong

    def _is_reused(self, number: int) -> bool:
        turn, thread = divmod(number, self._threads)
        sent = self._app.send(
            _name(thread),
            (self._number, number),
            TOPICS[turn % 2],
            key=f"{self._number}/{number}",
        )
        return sent.reused


def killed(url: str, folder: Path, size: Size, *, seed: int, cheat: str = "") -> Outcome:
    """Send, kill workers that have threads, and judge when no thread is due."""
    chance, outcome = random.Random(seed), Outcome()
    app, allowed = collecting.compile(store=open_store(url)), Semaphore(0)
    each, rest = divmod(size.messages, size.kills + 1)
    names = [_name(number) for number in range(size.threads)]
    share = size.messages // size.threads
    app.submit_many({name: {"left": share, "log": []} for name in names})
    graph = "tests.process.message_kills:collecting"
    fleet = Fleet(url, size.workers, folder, cheat, graph, silent=1.0)
    try:
        with ThreadPoolExecutor(SENDERS) as pool:
            senders = [_Sender(app, number, size, allowed) for number in range(SENDERS)]
            sending = [pool.submit(sender.send_all) for sender in senders]
            try:
                for _ in range(size.kills):
                    allowed.release(each)
                    fleet.kill(_find_victim(app, fleet, chance))
                    outcome.kills += 1
            finally:
                allowed.release(each + rest + size.messages)
            for found in sending:
                outcome.wrong += found.result()
        _finish(app, fleet, outcome)
        outcome.held = [row.key.thread for row in app.threads(status="failed")]
        for name in outcome.held:
            app.retry(name)
        _finish(app, fleet, outcome)
        _judge(app, names, size, outcome)
    finally:
        fleet.end()
        app.close()
    if not outcome.is_good:
        print(fleet.logs())
    return outcome


def _finish(app: App[Collected], fleet: Fleet, outcome: Outcome) -> None:
    for _ in _until_idle(app):
        outcome.wrong += fleet.supervise()


def _name(thread: int) -> str:
    return f"thread {thread}"


def _find_victim(app: App[Collected], fleet: Fleet, chance: random.Random) -> int:
    """A worker with a thread that has applied a message since; any, if all threads are idle."""
    before = {row.key: _left(app, row) for row in app.threads()}
    for rows in _until_idle(app):
        pids = {worker.id: worker.owner.pid for worker in require_shared(app.store).workers()}
        busy = {
            pids.get(row.worker)
            for row in rows
            if row.worker and _left(app, row) != before[row.key]
        }
        found = [place for place, one in enumerate(fleet.processes) if one.pid in busy]
        if found:
            return chance.choice(found)
    return chance.randrange(len(fleet.processes))


def _left(app: App[Collected], row: ThreadInfo) -> int:
    return app.state(row.key.thread).state["left"]


def _until_idle(app: App[Collected]) -> Iterator[Sequence[ThreadInfo]]:
    """The rows of the index, again and again until no thread is due and no worker has one."""
    deadline = time.monotonic() + 120
    while True:
        rows = list(app.threads())
        if not any(row.worker or row.due_at is not None for row in rows):
            return
        assert time.monotonic() < deadline, "threads are due, and no worker runs them"
        yield rows
        time.sleep(0.02)


def _judge(app: App[Collected], names: Sequence[str], size: Size, outcome: Outcome) -> None:
    sent = Counter(
        (sender, number) for sender in range(SENDERS) for number in range(size.messages // SENDERS)
    )
    applied: Counter[tuple[int, int]] = Counter()
    for place, name in enumerate(names):
        snapshot = app.state(name)
        log = [(sender, number) for sender, number in snapshot.state["log"]]
        applied.update(log)
        for sender in range(SENDERS):
            own = [number for one, number in log if one == sender]
            outcome.reordered += own != sorted(own)
        if any(number % size.threads != place for _, number in log):
            outcome.wrong.append(f"{name} has a message of another thread")
        if snapshot.status != "completed":
            outcome.wrong.append(f"{name} is {snapshot.status}")
        outcome.unread += len(app.mailbox(name))
        for run in app.store.runs(snapshot.key):
            if run.status not in ("completed", "superseded") and name not in outcome.held:
                outcome.wrong.append(f"{name}: a run was left as '{run.status}'")
    outcome.lost = (sent - applied).total()
    outcome.doubled = (applied - sent).total()
