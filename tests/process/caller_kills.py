"""Kills callers in the middle of their own transaction, and judges what it has left.

Each caller is a process: it inserts a row of its own, submits a run, sends a message, inserts a
second row, and commits or rolls back. It is killed with SIGKILL at a random moment of that.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo

from milecastle import END, START, App, StateGraph, ThreadKey, append, open_store
from milecastle.stores.sqlite import SqliteStore

BOX = "box"
Cheat = Literal["", "submits outside", "sends outside"]
_ROWS = 2


class Order(TypedDict):
    log: Annotated[list[str], append]


class Outcome(msgspec.Struct):
    """Kills by what the caller was about to do, and transactions that were left in part."""

    kills: Counter[str] = msgspec.field(default_factory=Counter[str])
    left: Counter[str] = msgspec.field(default_factory=Counter[str])
    """Transactions found whole, by what the caller had said before it was killed."""
    wrong: list[str] = []

    @property
    def is_good(self) -> bool:
        return not self.wrong


def opened(url: str) -> App[Order]:
    graph: StateGraph[Order] = StateGraph(Order, name="orders")
    graph.add_node("take", lambda state: {"log": ["taken"]})
    graph.add_edges(START, "take", END)
    return graph.compile(store=open_store(url))


def connected(app: App[Order], name: str = "") -> Any:
    """The caller's own connection to the store's database."""
    store = app.store
    if isinstance(store, SqliteStore):
        return sqlite3.connect(store.path, timeout=60)
    known: dict[str, Any] = vars(store)
    place = make_conninfo(**known["_address"].connect)
    return psycopg.connect(place, application_name=name)


def call(url: str, name: str, ending: str, cheat: Cheat, said: Connection) -> None:
    """One transaction, then wait to be killed. ``ending`` is ``commit`` or ``rollback``."""
    app = opened(url)
    mine = connected(app, name)
    insert = f"INSERT INTO receipts VALUES ('{name}')"
    said.send("begun")
    if cheat == "submits outside":
        app.submit({"log": []}, name)
    if cheat == "sends outside":
        app.send(BOX, name, key=name)
    mine.execute(insert)
    if cheat != "submits outside":
        app.submit({"log": []}, name, connection=mine)
    if cheat != "sends outside":
        app.send(BOX, name, key=name, connection=mine)
    mine.execute(insert)
    getattr(mine, ending)()
    said.send("ended")
    time.sleep(600)


def killed(url: str, kills: int, *, seed: int, cheat: Cheat = "") -> Outcome:
    """Kill as many callers before or after their commit, and as many around their rollback.

    Those that cheat are killed when they have ended their transaction.
    """
    chance, outcome, longest = random.Random(seed), Outcome(), 0.0
    app = opened(url)
    with closing(app), closing(connected(app)) as mine:
        mine.execute("DROP TABLE IF EXISTS receipts")
        mine.execute("CREATE TABLE receipts (name text)")
        mine.commit()
        app.submit({"log": []}, BOX)
        for number in range(2 * kills):
            ending = ("commit", "rollback")[number % 2]
            name = f"{ending} {number}"
            # The first of both kinds show how long a transaction takes.
            delay = None if cheat or number < 2 else chance.uniform(0, 1.2 * longest)
            has_ended, took = _kill_one(url, name, ending, cheat, delay)
            longest = max(longest, took) if delay is None else longest
            outcome.kills[ending] += 1
            _judge(app, mine, name, has_ended, outcome)
    return outcome


def _kill_one(
    url: str, name: str, ending: str, cheat: Cheat, delay: float | None
) -> tuple[bool, float]:
    """Kill a caller some seconds after it has begun; return if it had ended, and when."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    hears, said = context.Pipe(duplex=False)
    process = context.Process(target=call, args=(url, name, ending, cheat, said), daemon=True)
    process.start()
    said.close()
    with closing(hears):
        assert hears.poll(120), "it did not begin"
        assert hears.recv() == "begun"
        began = time.monotonic()
        if delay is None:
            hears.poll(120)
        else:
            time.sleep(delay)
        took = time.monotonic() - began
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended by itself"
        return _has_said_more(hears), took


def _has_said_more(hears: Connection) -> bool:
    try:
        return bool(hears.recv() == "ended")
    except EOFError:
        return False


def _judge(app: App[Order], mine: Any, name: str, has_ended: bool, outcome: Outcome) -> None:
    if not isinstance(app.store, SqliteStore):
        _wait_for_server(mine, name)
    sql = f"SELECT count(*) FROM receipts WHERE name = '{name}'"
    rows = int(mine.execute(sql).fetchone()[0])
    mine.rollback()
    runs = len(app.store.runs(ThreadKey("default", name)))
    messages = sum(message.value == name for message in app.mailbox(BOX))
    said = "ended" if has_ended else "begun"
    found = f"{name}, which had {said}, has left {rows} rows, {runs} runs, {messages} messages"
    is_whole, is_none = (rows, runs, messages) == (_ROWS, 1, 1), not (rows or runs or messages)
    is_rollback = name.startswith("rollback")
    if not is_whole and not is_none:
        outcome.wrong.append(found)
    elif is_whole and is_rollback:
        outcome.wrong.append(f"{found}, though it never commits")
    elif is_none and has_ended and not is_rollback:
        outcome.wrong.append(f"{found}, though it had committed")
    outcome.left["all" if is_whole else "nothing" if is_none else "a part"] += 1
    outcome.left[f"{name.partition(' ')[0]} {said}"] += 1


def _wait_for_server(mine: Any, name: str) -> None:
    """The server may still execute what a killed caller has sent."""
    query = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
    until = time.monotonic() + 60
    while mine.execute(query, [name]).fetchone():
        mine.rollback()
        assert time.monotonic() < until, "its connection is still there"
        time.sleep(0.005)
    mine.rollback()
