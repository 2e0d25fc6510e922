"""Answers questions around their deadlines, and judges what callers and nodes were told.

Workers in threads time the questions out, while callers answer within 50 ms of the deadline: one
half by ``answer``, the other by ``resume``. Whoever wins, caller, node and log must agree.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Annotated, Any, TypedDict

import msgspec

from milecastle import END, START, App, StateGraph, append, interrupt
from milecastle.errors import AlreadyAnswered, Conflict
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.model.run import ThreadInfo

AROUND = 0.05
"""How far from its deadline an answer is given, in seconds."""
_OPTIONS = WorkerOptions(concurrency=20, poll=0.02, heartbeat=0.5, silent_after=60.0, grace=60.0)


class Asked(TypedDict):
    """The question's deadline, in seconds, and what the node was told."""

    within: float
    log: Annotated[list[str], append]


class Size(msgspec.Struct, frozen=True):
    """Rounds are played until there are enough ``close`` answers, at most ``rounds``.

    ``at_once`` are the threads of a round: their deadlines follow each other.
    """

    close: int
    rounds: int
    at_once: int
    workers: int = 2
    callers: int = 24


class Outcome(msgspec.Struct):
    """``close`` are the answers whose call began within 50 ms of the deadline."""

    close: int = 0
    accepted: int = 0
    refused: int = 0
    both: list[str] = []
    wrong: list[str] = []

    @property
    def is_good(self) -> bool:
        return not (self.both or self.wrong)


Node = Callable[[Asked], dict[str, Any]]
Answer = Callable[[App[Asked], str], list[str]]
"""Answers a thread's question, and returns what the run has then."""


def honest_node(state: Asked) -> dict[str, Any]:
    return {"log": [interrupt("ok?", answer=str, within=state["within"], otherwise="nobody")]}


def node_with_a_clock(state: Asked) -> dict[str, Any]:
    """Judges the deadline itself, by a clock that is a day ahead."""
    began = time.time()
    found = interrupt("ok?", answer=str, within=state["within"], otherwise="nobody")
    return {"log": ["nobody" if time.time() + 86_400 > began + state["within"] else found]}


def honest_answer(app: App[Asked], name: str) -> list[str]:
    """A ``resume`` whose run a worker took over asks again with its key: was it accepted?"""
    if int(name.rpartition("-")[2]) % 2 == 0:
        return app.answer(name, "yes").result(timeout=60).state["log"]
    for _ in _patiently():
        with suppress(Conflict):
            return app.resume(name, "yes", key=name).state["log"]
    raise AssertionError


def answer_without_commit(app: App[Asked], name: str) -> list[str]:
    """Says that the answer was accepted, and stores nothing."""
    return ["yes"]


def build(node: Node, url: str) -> App[Asked]:
    graph: StateGraph[Asked] = StateGraph(Asked, name="racing")
    graph.add_node("ask", node)
    graph.add_edges(START, "ask", END)
    return graph.compile(store=url)


def raced(
    url: str,
    size: Size,
    *,
    seed: int,
    within: float = 0.6,
    node: Node = honest_node,
    answer: Answer = honest_answer,
) -> Outcome:
    """Ask, answer around the deadlines and judge. With a ``within`` of an hour, answer at once."""
    chance, outcome = random.Random(seed), Outcome()
    with ExitStack() as stack:
        app = stack.enter_context(closing(build(node, url)))
        pool = stack.enter_context(ThreadPoolExecutor(size.callers))
        for _ in range(size.workers):
            stack.enter_context(_serving(node, url))
        for turn in range(size.rounds):
            names = [f"{turn}-{number}" for number in range(size.at_once)]
            inputs = {
                name: Asked(within=within + 0.02 * place, log=[])
                for place, name in enumerate(names)
            }
            app.submit_many(inputs)
            moments = _deadlines(app, names)
            lags = [chance.uniform(-AROUND, AROUND) for _ in names]
            callers = [
                pool.submit(_call, app, answer, name, moments[name] + lag if within < 60 else 0)
                for name, lag in zip(names, lags, strict=True)
            ]
            for name, caller in zip(names, callers, strict=True):
                called = caller.result()
                outcome.close += abs(called.began - moments[name]) <= AROUND
                _judge(app, name, called, outcome)
            if outcome.close >= size.close:
                break
    return outcome


@contextmanager
def _serving(node: Node, url: str) -> Generator[None]:
    """A worker in a thread, with a store of its own."""
    with closing(build(node, url)) as app, ThreadPoolExecutor(1) as pool:
        worker = Worker([app], _OPTIONS)
        running = pool.submit(asyncio.run, worker.run())
        try:
            yield
        finally:
            worker.stop()
            running.result()


def _deadlines(app: App[Asked], names: list[str]) -> dict[str, float]:
    """The deadline of each thread; now, if it has passed."""
    found: dict[str, float] = {}

    def is_asked(row: ThreadInfo) -> bool:
        return row.wake_at is not None or row.status == "completed"

    for _ in _patiently():
        rows = {row.key.thread: row for row in app.threads() if is_asked(row)}
        for name in set(names).intersection(rows).difference(found):
            wake_at = rows[name].wake_at
            found[name] = time.time() if wake_at is None else wake_at / 1e6
        if len(found) == len(names):
            break
    return found


class _Called(msgspec.Struct):
    """A caller's view: when it called, and what the run had if it was not refused."""

    began: float
    is_refused: bool = False
    got: list[str] = []


def _call(app: App[Asked], answer: Answer, name: str, moment: float) -> _Called:
    time.sleep(max(0.0, moment - time.time()))
    called = _Called(time.time())
    try:
        called.got = answer(app, name)
    except AlreadyAnswered:
        called.is_refused = True
    return called


def _judge(app: App[Asked], name: str, called: _Called, outcome: Outcome) -> None:
    for _ in _patiently():
        if app.state(name).status == "completed":
            break
    log = app.state(name).state["log"]
    ends = ["timeout" if one.timed_out else "answer" for one in app.answers(name)]
    if {"timeout", "answer"} <= {*ends}:
        outcome.both.append(name)
    if called.is_refused:
        outcome.refused += 1
        is_right = log == ["nobody"] and ends == ["timeout"]
    else:
        outcome.accepted += 1
        is_right = log == called.got == ["yes"] and ends == ["answer"]
    if not is_right:
        outcome.wrong.append(f"{name}: {called}, the node has {log}, the log {ends}")


def _patiently() -> Iterator[None]:
    until = time.monotonic() + 120
    while True:
        yield
        assert time.monotonic() < until, "a thread is due, and no worker runs it"
        time.sleep(0.02)
