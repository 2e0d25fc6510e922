"""The loop in LangGraph on its durable savers, each step saved before the next one starts.

Savers are made as its documentation makes them. The asynchronous saver of version 3.2 takes its own
lock around every use of its pool, so that one connection is in use at a time whatever the pool's
size; that is read in its source, not measured.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.langgraph_loop import compile_loop
from benchmarks.loop import verify

POOL = 10
"""As many connections as our own store has by default."""

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


@contextmanager
def sqlite_saver(path: Path) -> Generator[Any]:
    """A saver in a file, with the tables in place."""
    savers = import_module("langgraph.checkpoint.sqlite")
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = savers.SqliteSaver(connection)
        saver.setup()
        yield saver


@contextmanager
def postgres_saver(url: str) -> Generator[Any]:
    """A saver on one connection, its tables in place and empty."""
    savers = import_module("langgraph.checkpoint.postgres")
    with savers.PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        for table in TABLES:
            saver.conn.execute(f"TRUNCATE {table}")
        yield saver


def sqlite_loop(path: Path, steps: int) -> float:
    """Return the seconds of the loop on an SQLite file."""
    with sqlite_saver(path) as saver:
        return _timed(compile_loop(steps, saver=saver), steps)


def postgres_loop(url: str, steps: int) -> float:
    """Return the seconds of the loop on PostgreSQL."""
    with postgres_saver(url) as saver:
        return _timed(compile_loop(steps, saver=saver), steps)


def postgres_group(url: str, runs: int, steps: int) -> float:
    """Return the seconds of many loops at once, in one process, over a pool."""
    with postgres_saver(url):
        return asyncio.run(_group(url, runs, steps))


async def _group(url: str, runs: int, steps: int) -> float:
    savers = import_module("langgraph.checkpoint.postgres.aio")
    pools = import_module("psycopg_pool")
    rows = import_module("psycopg.rows")
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": rows.dict_row}
    pool = pools.AsyncConnectionPool(
        url, min_size=POOL, max_size=POOL, kwargs=settings, open=False, timeout=300
    )
    async with pool:
        await pool.wait()
        app = compile_loop(steps, saver=savers.AsyncPostgresSaver(pool), is_async=True)
        began = perf_counter()
        states = await asyncio.gather(
            *(
                app.ainvoke(_input(), config(steps, f"loop-{number}"), durability="sync")
                for number in range(runs)
            )
        )
        seconds = perf_counter() - began
    _verify_all(states, steps)
    return seconds


def config(steps: int, thread: str = "loop") -> dict[str, object]:
    """What a call of LangGraph needs to know."""
    return {"recursion_limit": steps + 1, "configurable": {"thread_id": thread}}


def _timed(app: Any, steps: int) -> float:
    began = perf_counter()
    state = app.invoke(_input(), config(steps), durability="sync")
    seconds = perf_counter() - began
    verify(state, steps)
    return seconds


def _input() -> dict[str, object]:
    return {"n": 0, "items": []}


def _verify_all(states: Iterable[Any], steps: int) -> None:
    for state in states:
        verify(state, steps)
