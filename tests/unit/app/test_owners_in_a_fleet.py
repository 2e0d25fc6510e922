"""Who has a run, if its process is on another host: the heartbeat of its worker tells."""

from __future__ import annotations

from pathlib import Path

import msgspec.structs
import pytest

from milecastle import RunInProgress
from milecastle.app.runs.ownership import refuse_busy, why_lost
from milecastle.model.run import Owner, RunRecord
from milecastle.ports.store import Batch
from milecastle.ports.workers import WorkerInfo
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.testing.entries import Writer, a_key
from tests.acceptance.fleet.working import line, note, start

ELSEWHERE = Owner(host="elsewhere", boot_id="another", pid=7, started="1")


def running_elsewhere(store: MemoryStore) -> RunRecord:
    """A run that a worker on another host has."""
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t")
    store.claim("one", [f"line@{app.fingerprint}"], limit=1)
    record, head = store.run(handle.thread, handle.run_id), store.head(handle.thread)
    info = store.thread(handle.thread)
    assert record
    assert head
    assert info
    running = msgspec.structs.replace(record, status="running", owner=ELSEWHERE)
    told = msgspec.structs.replace(info, status="running")
    store.commit(Batch(key=handle.thread, head=head.seq, runs=(running,), thread=told))
    return running


def test_run_of_a_live_worker_elsewhere_is_in_progress() -> None:
    """Broken on purpose: ``_live_worker`` returns nothing."""
    store = MemoryStore()
    record = running_elsewhere(store)
    store.beat(WorkerInfo(id="one", owner=ELSEWHERE, lanes=(), started_at=0))
    with pytest.raises(RunInProgress, match="worker one"):
        refuse_busy(store, record, 1)
    assert why_lost(store, record) == ""


def test_run_of_a_worker_that_nobody_knows_is_lost() -> None:
    store = MemoryStore()
    record = running_elsewhere(store)
    refuse_busy(store, record, 1)
    assert "another host" in why_lost(store, record)
    ended = msgspec.structs.replace(record, status="completed")
    refuse_busy(store, ended, 1)
    assert why_lost(store, ended) == ""


def test_run_elsewhere_that_no_worker_has_is_lost(tmp_path: Path) -> None:
    """Broken on purpose: a store without workers is asked for them, or a thread that is gone."""
    claims, files = MemoryStore(), JsonlStore(tmp_path)
    for store in (claims, files):
        writer = Writer()
        writer.run = msgspec.structs.replace(writer.run, owner=ELSEWHERE)
        writer.begin(store)
        refuse_busy(store, writer.run, 1)
        assert "another host" in why_lost(store, writer.run)
        unknown = msgspec.structs.replace(writer.run, key=a_key("gone"))
        refuse_busy(store, unknown, 1)
