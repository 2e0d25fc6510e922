"""Runs that have not moved for a long time are reported as long, and not as lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from milecastle import Context, InvalidRequest, Unavailable
from milecastle.fleet.long_nodes import LongNodes
from milecastle.fleet.worker import WorkerOptions
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import Trip, line, note, serving, start, until

KEYS = [ThreadKey("default", name) for name in "ab"]


def test_a_run_is_long_until_it_moves(caplog: pytest.LogCaptureFixture) -> None:
    """Reported once each time. Fails if a run that moves is counted, or one is reported twice."""
    pulses, now = dict.fromkeys(KEYS, 1), [0.0]
    found = LongNodes(MemoryStore(), 10.0, lambda: dict(pulses), lambda: now[0])
    for now[0] in (0.0, 5.0, 9.0):
        pulses[KEYS[1]] += 1
        found.look()
        assert found.count == 0
    for now[0] in (10.0, 11.0, 12.0):
        pulses[KEYS[1]] += 1
        found.look()
        assert found.count == 1
    assert caplog.text.count("thread 'a': long node (the first, or unknown)") == 1
    assert "thread 'b'" not in caplog.text
    pulses[KEYS[0]] += 1
    found.look()
    assert found.count == 0
    for now[0] in (22.0, 23.0):
        found.look()
    assert caplog.text.count("thread 'a': long node") == 2
    pulses.clear()
    found.look()
    assert found.count == 0


def test_a_store_that_is_away_does_not_hide_it(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryStore):
        def head(self, key: ThreadKey) -> Entry | None:
            raise Unavailable("on purpose")

    now = [0.0]
    found = LongNodes(Away(), 1.0, lambda: {KEYS[0]: 1}, lambda: now[0])
    for now[0] in (0.0, 1.0):
        found.look()
    assert "long node (the first, or unknown)" in caplog.text


@pytest.mark.requirement("F11")
def test_worker_reports_a_long_node_until_it_beats(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if ``ctx.heartbeat`` does not reach the host, and if the worker does not look."""
    caplog.set_level(logging.WARNING, "milecastle.fleet")
    options = WorkerOptions(poll=0.05, heartbeat=0.1, silent_after=30.0, grace=5.0, stuck_after=1.0)
    beat, over = threading.Event(), threading.Event()

    def wait(state: Trip, ctx: Context) -> dict[str, Any]:
        beat.wait(60)
        while not over.wait(0.01):
            ctx.heartbeat()
        return {}

    async def use() -> None:
        app = line(MemoryStore(), ("first", note("first")), ("wait", wait))
        async with serving(app, options=options) as worker:
            await app.asubmit(start(), "t")

            async def is_long() -> bool:
                return worker.long_nodes == 1

            async def is_not() -> bool:
                return worker.long_nodes == 0

            try:
                await until(is_long, 30)
                beat.set()
                await until(is_not, 30)
            finally:
                beat.set()
                over.set()
            await app.await_result("t")

    asyncio.run(use())
    assert "thread 't': long node (wait)" in caplog.text


def test_stuck_after_must_be_above_0() -> None:
    with pytest.raises(InvalidRequest, match="stuck_after"):
        WorkerOptions(stuck_after=0.0)
