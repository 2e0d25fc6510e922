"""Closing the runs of lost workers, and of inputs that were refused."""

from __future__ import annotations

import pytest

from milecastle import InvalidRequest, ThreadKey
from milecastle.app.runs.cancelling import count_lost, hold_lost, reject_input
from milecastle.app.threads.log import log_codec_for
from milecastle.ports.claims import waiting_inputs
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock
from tests.acceptance.fleet.working import line, note, start, work

KEY = ThreadKey("default", "t")


def test_run_that_ended_meanwhile_is_not_held() -> None:
    """Broken on purpose: the status is not compared; a completed run then failed."""
    store, clock = MemoryStore(), ManualClock()
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    info = store.thread(KEY)
    assert info is not None
    work(app)
    assert hold_lost(store, log_codec_for(app.graph), clock, info, 3) is None
    assert app.state("t").status == "completed"
    assert app.delete("t")
    assert hold_lost(store, log_codec_for(app.graph), clock, info, 3) is None


def test_no_worker_was_lost_with_a_thread_that_is_gone() -> None:
    """Broken on purpose: a thread without entries is an error; its worker would end."""
    assert count_lost(MemoryStore(), KEY) == 0


def test_run_that_did_not_wait_in_line_is_not_rejected() -> None:
    """Broken on purpose: ``True`` without a journal; the failure would be recorded nowhere."""
    refused = InvalidRequest("no")
    assert not reject_input(MemoryStore(), ManualClock(), None, refused)


@pytest.mark.parametrize("key", [None, "order-2"])
def test_input_for_a_free_thread_does_not_wait(key: str | None) -> None:
    """Broken on purpose: an input with a key is enqueued behind a run that has ended."""
    store = MemoryStore()
    app = line(store, ("a", note("a")))
    first = app.submit(start(), "t", key="order-1")
    work(app)
    second = app.submit({"n": 5}, "t", key=key, if_busy="queue")
    assert second.run_id != first.run_id
    assert not waiting_inputs(store, KEY)
    assert app.submit(start(), "t", key="order-1", if_busy="queue").run_id == first.run_id
    work(app)
    assert app.state("t").state["n"] == 6
