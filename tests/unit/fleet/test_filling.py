"""A worker fills, whatever its nodes do, and ends if its store must be reopened."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from milecastle.fleet.worker import Worker
from milecastle.ports.store import WritesRefused
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.acceptance.fleet.working import QUICK, Trip, line, note, serving, start, until


def test_a_worker_takes_the_last_places_too() -> None:
    """Failed: it claimed only if a quarter was free, so long runs left it at 6 of 8."""
    release = asyncio.Event()

    async def waits(state: Trip) -> dict[str, Any]:
        await release.wait()
        return {"n": 1}

    app = line(MemoryStore(), ("waits", waits))

    async def fill() -> None:
        async with serving(app, options=QUICK.replaced(concurrency=8)) as worker:
            try:
                for number in range(8):
                    await app.asubmit(start(), f"{number}")

                    async def has_started(count: int = number + 1) -> bool:
                        return worker.running == count

                    await until(has_started, 20)
            finally:
                release.set()

    asyncio.run(fill())


def test_nodes_that_occupy_the_threads_of_asyncio_stop_no_claims(tmp_path: Path) -> None:
    """Failed: claims, submits and reads waited for a thread of asyncio's own executor."""
    release = Event()

    async def blocks(state: Trip) -> dict[str, Any]:
        if state["n"]:
            await asyncio.to_thread(release.wait, 60)
        return {"log": ["done"]}

    app = line(SqliteStore(tmp_path / "a.db"), ("blocks", blocks))

    async def occupy() -> None:
        async with serving(app, options=QUICK.replaced(concurrency=50)) as worker:
            try:
                await app.asubmit_many({f"{number}": {"n": 1, "log": []} for number in range(40)})

                async def all_run() -> bool:
                    return worker.running == 40

                await until(all_run, 30)
                await app.asubmit(start(), "short")
                async with asyncio.timeout(20):
                    assert (await app.await_result("short")).status == "completed"
            finally:
                release.set()

    asyncio.run(occupy())


def test_a_worker_whose_store_must_be_reopened_ends(tmp_path: Path) -> None:
    """Failed: after one I/O error it neither worked nor ended, and looked ready."""
    store = SqliteStore(tmp_path / "a.db")
    app = line(store, ("a", note("a")))

    async def run() -> None:
        worker = Worker([app], QUICK)
        running = asyncio.create_task(worker.run())
        await worker.entered.wait()
        vars(store)["_connections"]._poison_with(sqlite3.OperationalError("disk I/O error"))
        with pytest.raises(WritesRefused, match="reopen the store"):
            await asyncio.wait_for(running, 30)
        assert not worker.is_ready

    asyncio.run(run())
    store.close()
    again = SqliteStore(tmp_path / "a.db")
    assert list(again.workers()) != []
    again.close()


def test_a_worker_that_could_not_begin_is_not_ready() -> None:
    """Failed: a server's probe said that it was ready after its worker had ended."""
    store = MemoryStore()
    worker = Worker([line(store, ("a", note("a")))], QUICK)
    store.close()

    async def run() -> None:
        with pytest.raises(Exception, match="closed"):
            await worker.run()

    assert worker.is_ready
    asyncio.run(run())
    assert not worker.is_ready
