"""The parts of a worker that runs in no process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from threading import Event
from typing import Any

import msgspec.structs
import pytest

from milecastle import InvalidRequest, Keyring, StoreError, ThreadKey, Unavailable, interrupt
from milecastle.fleet.heartbeat import Heartbeat
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.ports.limits import Limit
from milecastle.ports.store import Batch
from milecastle.ports.workers import WorkerInfo
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK, Trip, line, note, serving, start, until, work


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"losses": 0},
        {"poll": 0.0},
        {"heartbeat": 0.0},
        {"heartbeat": 5.0, "silent_after": 5.0},
        {"grace": -1.0},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"at least|above"):
        WorkerOptions(**options)


def test_a_worker_without_apps_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one app"):
        Worker([])


def test_calls_on_a_loop_do_what_the_others_do() -> None:
    def asks(state: Trip) -> dict[str, Any]:
        return {"log": [f"heard {interrupt('well?')}"]}

    app = line(MemoryStore(), ("asks", asks))

    async def use() -> list[str]:
        async with serving(app):
            await app.asubmit(start(), "t")
            assert (await app.await_result("t")).status == "interrupted"
            with pytest.raises(InvalidRequest, match="needs answer"):
                await app.aanswer("t")
            await app.aanswer("t", "yes")
            await app.await_result("t")
            await app.asubmit(start(), "other", delay=60)
            await app.acancel("other")
            await app.aretry("other", delay=0.01)
            assert (await app.await_result("other")).status == "interrupted"
            return list((await app.await_result("t")).state["log"])

    assert asyncio.run(use()) == ["heard yes"]


def test_a_thread_that_cannot_be_resumed_is_given_back_for_a_growing_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its line says that it is due, and its log that it has ended. Broken on purpose: no delay."""
    store = MemoryStore()
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t")
    work(app)
    info, head = store.thread(handle.thread), store.head(handle.thread)
    assert info is not None
    assert head is not None
    due = msgspec.structs.replace(info, due_at=0)
    store.commit(Batch(key=handle.thread, head=head.seq, thread=due))
    caplog.set_level(logging.WARNING, "milecastle.fleet")

    async def refused() -> bool:
        return "does not fit" in caplog.text

    async def serve() -> None:
        async with serving(app):
            await until(refused)
            await asyncio.sleep(0.2)

    asyncio.run(serve())
    assert caplog.text.count("does not fit") == 1
    later = store.thread(handle.thread)
    assert later is not None
    assert later.worker == ""


class Flaky(MemoryStore):
    """Cannot be reached for its first claims and heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 3

    def _fail(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise Unavailable("out for lunch")

    def claim(self, *given: Any, **named: Any) -> Any:
        self._fail()
        return super().claim(*given, **named)

    def due_in(self, lanes: Any) -> Any:
        self._fail()
        return super().due_in(lanes)


def test_a_store_that_cannot_be_reached_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    app = line(Flaky(), ("a", note("a")))

    async def serve() -> str:
        async with serving(app):
            handle = await app.asubmit(start(), "t")
            return (await handle.aresult()).status

    assert asyncio.run(serve()) == "completed"
    assert "cannot claim: out for lunch" in caplog.text


class Counting(MemoryStore):
    """Counts the claims, and notes when there were a dozen."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = 0
        self.dozen = Event()

    def claim(self, *given: Any, **named: Any) -> Any:
        self.claims += 1
        if self.claims == 12:
            self.dozen.set()
        return super().claim(*given, **named)


def test_a_worker_does_not_spin_on_what_is_paused() -> None:
    """Failed with a wait of 0.01 s after each claim, because something is due all the time."""
    store = Counting()
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    store.set_limit(Limit(paused=True))

    async def serve() -> float:
        begun = time.monotonic()
        async with serving(app, options=WorkerOptions(poll=0.2)):
            assert await asyncio.to_thread(store.dozen.wait, 30)
            return time.monotonic() - begun

    assert asyncio.run(serve()) > 1.0


def test_a_heartbeat_survives_errors_and_reports_a_blocked_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: ``_run`` without its second ``except``."""
    monkeypatch.setattr("milecastle.fleet.heartbeat._STUCK", 0.01)
    errors: list[Exception] = [Unavailable("gone"), ValueError("odd"), StoreError("gone")]
    beats: list[WorkerInfo] = []
    worker = Worker([line(MemoryStore(), ("a", note("a")))], QUICK)

    def check() -> None:
        beats.append(worker.describe())
        if errors:
            raise errors.pop(0)

    store = MemoryStore()
    heartbeat = Heartbeat(
        store,
        interval=0.01,
        describe=worker.describe,
        check=check,
        ask=lambda: None,
        wake=lambda: None,
        fail=lambda error: None,
    )
    heartbeat.start()
    asyncio.run(until(lambda: _said(caplog, "has been blocked")))
    heartbeat.answer()
    heartbeat.stop()
    assert not errors
    assert len(beats) > 3
    assert "no heartbeat: gone" in caplog.text
    assert "the heartbeat failed" in caplog.text
    assert "If it is an async node" in caplog.text  # what blocks it is not known
    assert "runs again" in caplog.text


def test_a_suspended_process_blames_no_node(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed: after SIGSTOP and SIGCONT a worker reported that a node had blocked its loop."""
    worker, clock = Worker([line(MemoryStore(), ("a", note("a")))], QUICK), [1000.0]
    monkeypatch.setattr("milecastle.fleet.heartbeat.monotonic", lambda: clock[0])
    heartbeat = Heartbeat(
        MemoryStore(),
        interval=1.0,
        describe=worker.describe,
        check=lambda: None,
        ask=lambda: None,
        wake=lambda: None,
        fail=lambda error: None,
    )
    heartbeat.beat()

    class Stopped:
        """The process is suspended while it waits."""

        def wait(self, seconds: float) -> bool:
            clock[0] += 60.0
            return clock[0] > 1100.0

    monkeypatch.setattr(heartbeat, "_stopped", Stopped())
    vars(type(heartbeat))["_run"](heartbeat)
    assert "has been blocked" not in caplog.text
    assert "did not run for 59 seconds" in caplog.text
    assert not heartbeat.is_stuck


def test_threads_of_a_silent_worker_are_taken_between_two_beats() -> None:
    """Its limit of silence passes long before the next beat, which is not waited for. Fails if
    silent workers are looked for only with a beat.
    """
    store, woken = MemoryStore(), Event()
    app = line(store, ("a", note("a")))
    worker = Worker([app], QUICK)
    dead = msgspec.structs.replace(worker.describe(), id="dead", silent_after=0.01)
    heartbeat = Heartbeat(
        store,
        interval=3600.0,
        describe=worker.describe,
        check=lambda: None,
        ask=lambda: None,
        wake=woken.set,
        fail=lambda error: None,
    )
    heartbeat.start()
    handle = app.submit(start(), "t")
    store.beat(dead)
    assert store.claim("dead", worker.lanes, limit=1)
    assert woken.wait(60)
    heartbeat.stop()
    info = store.thread(handle.thread)
    assert info is not None
    assert (info.worker, info.due_at is None) == ("", False)


def test_a_run_with_which_workers_are_lost_is_held(caplog: pytest.LogCaptureFixture) -> None:
    """The second time and later it starts alone. Broken on purpose: ``count_lost`` returns 0."""
    store, began = MemoryStore(), asyncio.Event()

    async def stuck(state: Trip) -> dict[str, Any]:
        began.set()
        await asyncio.sleep(60)
        return {}

    app = line(store, ("stuck", stuck))
    handle = app.submit(start(), "t")
    options = WorkerOptions(heartbeat=1.0, silent_after=5.0, losses=3)

    async def lose() -> None:
        worker: Any = Worker([app], options)
        for _ in range(4):
            store.claim("ghost", worker.lanes, limit=1)
            store.reclaim(3600)  # nobody knows that worker
            (info,) = store.claim(worker.id, worker.lanes, limit=1)
            segment = worker._segments.begin(info)
            if segment.planned is None:
                return
            running = asyncio.create_task(worker._segments._run(segment))
            await began.wait()
            began.clear()
            segment.is_lost = True
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            store.give_back(worker.id, handle.thread)

    asyncio.run(lose())
    assert "is held until it is retried" in caplog.text
    info = store.thread(handle.thread)
    assert info is not None
    assert (info.status, info.due_at, info.worker) == ("failed", None, "")
    failure = store.failure(handle.thread, info.run_id)
    assert failure is not None
    assert failure.error_type == "WorkersLost"


def test_a_signal_drains_the_worker() -> None:
    app = line(MemoryStore(), ("a", note("a")))
    worker = Worker([app], QUICK)

    async def serve() -> None:
        asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            await worker.run_until_signalled()

    asyncio.run(serve())
    assert not worker.is_ready


async def _said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


def test_a_thread_that_cannot_be_read_is_tried_after_a_growing_time() -> None:
    """A worker that lacks the key. Fails if only refusals by the code make it wait: then it claims
    the thread hundreds of times in a second.
    """
    store = MemoryStore()
    first, second = (Keyring({"k": os.urandom(32)}, store=MemoryStore()) for _ in range(2))
    line(store, ("a", note("a")), encryption=first).submit(start(), "t")
    stranger = line(store, ("a", note("a")), encryption=second)
    worker = Worker([stranger], QUICK)

    async def serve() -> None:
        await asyncio.wait_for(worker.run_until_idle(), 10.0)

    asyncio.run(serve())
    assert worker.counters.totals("threads_refused") == {"": 1.0}
    info = store.thread(ThreadKey("default", "t"))
    assert info is not None
    assert not info.worker


def test_a_segment_that_rests_is_not_lost() -> None:
    """The heartbeat looks when the last commit of a run is made, and its worker does not know yet.

    Fails if ``drop_lost`` does not ask whether it rests: then it is stopped, and counted as lost.
    """
    workers: list[Any] = []

    class Looked(MemoryStore):
        blocking = True

        def commit(self, batch: Batch) -> None:
            super().commit(batch)
            if workers and batch.thread is not None and not batch.thread.worker:
                workers[0]._claimer.check()
                time.sleep(0.2)  # until the loop has heard of it

    app = line(Looked(), ("a", note("a")))
    app.submit(start(), "t")
    workers.append(Worker([app], QUICK))
    asyncio.run(workers[0].run_until_idle())
    assert sum(workers[0].counters.totals("threads_lost").values()) == 0
    assert workers[0].counters.totals("segments_ended") == {"completed": 1.0}
