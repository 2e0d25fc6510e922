"""F8: a run has a limit key, and limits by key count the runs of each value by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milecastle import App, InvalidRequest, Store, ThreadKey, current, interrupt
from milecastle.app.runs.ownership import current_owner
from milecastle.app.runs.submission import require_shared
from milecastle.fleet.worker import Worker
from milecastle.ports.workers import WorkerInfo
from milecastle.stores import Limit
from milecastle.views.reasons import why_document
from tests.acceptance.fleet.working import QUICK, Trip, line, note, start, work


def key_of(app: App[Any], thread: str) -> str:
    info = app.store.thread(ThreadKey("default", thread))
    assert info is not None
    return info.limit_key


@pytest.mark.requirement("F8", api="App.submit")
def test_a_run_keeps_its_limit_key(store: Store) -> None:
    """Through a question, a failure, a retry, a fork and the next input.

    Failed without the key in the record of the next run, and in that of a fork.
    """
    fails = [True]

    def breaks(state: Trip) -> dict[str, Any]:
        interrupt("well?")
        if fails[0]:
            raise ValueError("once")
        return {}

    app = line(store, ("breaks", breaks))
    app.submit(start(), "t", keys={"customer": "c7"})
    work(app)
    assert key_of(app, "t") == "customer=c7"
    app.answer("t", "yes")
    assert key_of(app, "t") == "customer=c7"
    work(app)
    fails.clear()
    fails.append(False)
    app.retry("t")
    assert key_of(app, "t") == "customer=c7"
    work(app)
    app.fork("t", at=1, as_thread="fork")
    app.retry("fork")
    assert key_of(app, "fork") == "customer=c7"
    app.submit({"n": 1, "log": []}, "t")
    assert key_of(app, "t") == "customer=c7"


@pytest.mark.requirement("F8", api="App.submit")
def test_a_new_run_replaces_the_limit_key(store: Store) -> None:
    app = line(store, ("a", note("a")))
    for number, (keys, found) in enumerate(
        [({"customer": "c7"}, "customer=c7"), ({"region": "eu"}, "region=eu"), ({}, ""), (None, "")]
    ):
        app.submit({"n": number, "log": []}, "t", keys=keys)
        assert key_of(app, "t") == found
        work(app)
        assert key_of(app, "t") == found
    asyncio.run(app.asubmit(start(), "other", keys={"customer": "c=8 \U0001f3f0"}))
    assert key_of(app, "other") == "customer=c=8 \U0001f3f0"
    app.submit_many({"m1": start(), "m2": start()}, keys={"customer": "c9"})
    assert key_of(app, "m2") == "customer=c9"


@pytest.mark.requirement("F8", api="App.submit")
@pytest.mark.parametrize(
    "keys",
    [
        {"customer": "c7", "region": "eu"},
        {"a=b": "c"},
        {"": "c"},
        {"~": "c"},
        {"customer": ""},
        {"customer": 7},
        {"customer": "a\0"},
        {"customer": "x" * 300},
        "customer=c7",
    ],
    ids=str,
)
def test_wrong_limit_keys_are_refused(store: Store, keys: Any) -> None:
    """Failed with a second key that was dropped, and with names that stores sort elsewhere."""
    app = line(store, ("a", note("a")))
    with pytest.raises(InvalidRequest):
        app.submit(start(), "t", keys=keys)
    assert app.store.thread(ThreadKey("default", "t")) is None


@pytest.mark.requirement("F8", api="App.submit")
def test_an_input_that_waits_has_the_limit_key_of_its_thread(store: Store) -> None:
    """Failed: the waiting run started with its own key, which its claim had not counted."""
    app = line(store, ("a", note("a")))
    app.submit(start(), "t", keys={"customer": "c7"})
    app.submit({"n": 1, "log": []}, "t", if_busy="queue")
    app.submit({"n": 2, "log": []}, "t", if_busy="queue", keys={"customer": "c7"})
    with pytest.raises(InvalidRequest, match="limit key"):
        app.submit({"n": 3, "log": []}, "t", if_busy="queue", keys={"customer": "c8"})
    with pytest.raises(InvalidRequest, match="limit key"):
        app.submit({"n": 3, "log": []}, "t", if_busy="queue", keys={})
    work(app)
    assert key_of(app, "t") == "customer=c7"
    assert len(app.store.runs(ThreadKey("default", "t"))) == 3


@pytest.mark.requirement("F8", api="Worker")
def test_workers_keep_a_limit_by_key(store: Store) -> None:
    """Failed with claims that count no keys."""
    running: list[str] = []
    most: dict[str, int] = {}

    async def busy(state: Trip) -> None:
        thread = current().thread
        name = thread.thread[:2] if thread else ""
        running.append(name)
        most[name] = max(most.get(name, 0), running.count(name))
        await asyncio.sleep(0.02)
        running.remove(name)

    app = line(store, ("busy", busy))
    require_shared(store).set_limit(Limit(graph="line", key="customer", concurrency=1))
    for number in range(12):
        app.submit(start(), f"c{number % 3} {number}", keys={"customer": f"c{number % 3}"})
        app.submit(start(), f"free {number}")
    asyncio.run(Worker([app], QUICK).run_until_idle())
    assert {name: most[name] for name in ("c0", "c1", "c2")} == {"c0": 1, "c1": 1, "c2": 1}
    assert most["fr"] > 1
    assert {info.status for info in app.threads()} == {"completed"}


@pytest.mark.requirement("F8", api="App.submit")
def test_why_names_the_key_that_a_run_waits_for(store: Store) -> None:
    """Nothing said which limit holds a run back."""
    app = line(store, ("a", note("a")))
    shared = require_shared(store)
    for number in range(2):
        app.submit(start(), f"{number}", keys={"customer": "c7"})
    lane = app.runner.lane
    shared.beat(WorkerInfo(id="w", owner=current_owner(), lanes=(lane,), started_at=1, capacity=9))
    shared.set_limit(Limit(graph="line", key="customer", concurrency=1))
    shared.set_limit(Limit(key="region", concurrency=1))
    (claimed,) = shared.claim("w", [lane], limit=9)
    waiting = "1" if claimed.key.thread == "0" else "0"
    found = why_document(store, ThreadKey("default", waiting))
    assert [reason.text for reason in found.reasons] == [
        "graph 'line', tenant * with key 'customer=c7' is at its limit of 1 running threads"
    ]
    shared.set_limit(Limit(graph="line", key="customer", rate=1, period=3600.0))
    (reason,) = why_document(store, ThreadKey("default", waiting)).reasons
    assert "with key 'customer=c7' may start 1 threads in 3600 s" in reason.text
