"""Durations in buckets, as a scrape has them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from milecastle import interrupt
from milecastle.fleet.histograms import LONG, QUICK, Histogram
from milecastle.fleet.prometheus import render
from milecastle.fleet.worker import Worker
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK as QUICKLY
from tests.acceptance.fleet.working import Trip, line, note, start
from tests.unit.fleet.test_probes import parsed


def test_each_bucket_has_all_that_took_no_longer() -> None:
    """Tried: buckets that are not cumulative; a bound that is not in its own bucket."""
    histogram = Histogram("x_seconds", "Help.", (1.0, 2.0), ("how",))
    for seconds in (0.5, 1.0, 1.5, 2.5, -1.0):
        histogram.observe(seconds, "well")
    assert render([histogram]) == (
        "# HELP milecastle_x_seconds Help.\n"
        "# TYPE milecastle_x_seconds histogram\n"
        'milecastle_x_seconds_bucket{how="well",le="1.0"} 3\n'
        'milecastle_x_seconds_bucket{how="well",le="2.0"} 4\n'
        'milecastle_x_seconds_bucket{how="well",le="+Inf"} 5\n'
        'milecastle_x_seconds_sum{how="well"} 5.5\n'
        'milecastle_x_seconds_count{how="well"} 5\n'
    )


def test_histogram_without_labels_is_there_from_the_start() -> None:
    """Fails if a rate begins with the first duration: then the first is never counted."""
    found = parsed(render([Histogram("x_seconds", "Help.", (1.0,))]))
    assert found["milecastle_x_seconds_count"] == 0
    assert render([Histogram("y_seconds", "Help.", (1.0,), ("how",))]).count("\n") == 2


def test_bounds_are_in_order() -> None:
    for bounds in (QUICK, LONG):
        assert list(bounds) == sorted(set(bounds))


def test_durations_of_many_threads_are_all_counted() -> None:
    """Fails without the lock only now and then; it is for the sum, which two threads may lose."""
    histogram = Histogram("x_seconds", "Help.", (1.0,))

    def add() -> None:
        for _ in range(500):
            histogram.observe(0.5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = parsed(render([histogram]))
    assert found["milecastle_x_seconds_count"] == 2000
    assert found["milecastle_x_seconds_sum"] == 1000.0


def fail(state: Trip) -> dict[str, Any]:
    raise RuntimeError("no ink")


def ask(state: Trip) -> dict[str, Any]:
    interrupt("sure?")
    return {}


def test_worker_measures_waits_segments_and_runs() -> None:
    """Tried: a run that only pauses counted as ended; a failed run not counted."""
    store = MemoryStore()
    fine = line(store, ("a", note("a")), name="fine")
    bad = line(store, ("b", fail), name="bad")
    asks = line(store, ("c", ask), name="asks")

    async def use() -> Worker:
        for app in (fine, bad, asks):
            await app.asubmit(start(), f"of-{app.graph.name}")
        worker = Worker([fine, bad, asks], QUICKLY)
        await worker.run_until_idle()
        return worker

    worker = asyncio.run(use())
    text = render(worker.durations)
    found = parsed(text)
    assert found["milecastle_queue_wait_seconds_count"] == 3
    assert found["milecastle_queue_wait_seconds_sum"] < 60
    assert found['milecastle_run_seconds_count{status="completed"}'] == 1
    assert found['milecastle_run_seconds_count{status="failed"}'] == 1
    assert 'milecastle_run_seconds_count{status="interrupted"}' not in found
    assert found['milecastle_segment_seconds_count{status="interrupted"}'] == 1
    assert "of-" not in text  # names of threads are not labels
