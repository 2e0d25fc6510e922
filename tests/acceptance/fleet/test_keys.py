"""F1: a key identifies one run of a thread, on every way in, however the thread went on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from milecastle import InvalidRequest, Retry, RunInProgress, Store, ThreadKey
from milecastle.app.runs.calls import IfBusy
from milecastle.ports.claims import waiting_inputs
from tests.acceptance.fleet.working import Trip, line, note, serving, work

KEY = ThreadKey("default", "t")
MODES: tuple[IfBusy, ...] = ("reject", "queue", "cancel")


def told(name: str) -> dict[str, Any]:
    """An input that can be recognized in the state."""
    return {"n": 0, "log": [name]}


@pytest.mark.requirement("F1", api="App.submit")
@pytest.mark.parametrize("if_busy", MODES)
def test_a_key_finds_its_run_after_later_runs(store: Store, if_busy: IfBusy) -> None:
    """Was broken: without ``if_busy``, a key was compared with the newest run only."""
    app = line(store, ("a", note("a")))
    first = app.submit(told("1"), "t", key="k1")
    work(app)
    app.submit(told("2"), "t", key="k2")
    work(app)
    for name in ("1", "other"):
        again = app.submit(told(name), "t", key="k1", if_busy=if_busy)
        assert (again.run_id, again.status, again.reused) == (first.run_id, "completed", True)
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_a_key_finds_its_run_while_another_input_waits(store: Store) -> None:
    """Was broken: the completed run was the thread's newest, and its key was enqueued again."""
    app = line(store, ("a", note("a")))
    first = app.submit(told("1"), "t", key="k1", if_busy="queue")
    app.submit(told("2"), "t", key="k2", if_busy="queue")
    app.resume("t", take_over=True)
    assert len(waiting_inputs(store, KEY)) == 1
    for if_busy in MODES:
        again = app.submit(told("1"), "t", key="k1", if_busy=if_busy)
        assert (again.run_id, again.reused) == (first.run_id, True)
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_a_key_finds_the_retry_of_its_run(store: Store) -> None:
    """Was broken: after an automatic retry, the key found the attempt that failed."""
    calls: list[int] = []

    def once(state: Trip) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return {"log": ["done"]}

    retry = Retry(attempts=3, delay=0.0, jitter=0)
    app = line(store, ("a", once), retry_runs=retry)
    app.submit(told("1"), "t", key="k", if_busy="queue")

    async def complete() -> None:
        async with serving(app):
            await app.await_result("t")

    asyncio.run(complete())
    newest, failed = store.runs(KEY)
    assert (newest.status, failed.status) == ("completed", "failed")
    for if_busy in MODES:
        again = app.submit(told("1"), "t", key="k", if_busy=if_busy)
        assert (again.run_id, again.status, again.reused) == (newest.run_id, "completed", True)
    assert len(calls) == 2


@pytest.mark.requirement("F1", api="App.invoke")
def test_the_result_of_an_older_run_is_returned_by_its_key(store: Store) -> None:
    """Was broken: ``invoke`` ran the input again, once another one had completed."""
    app = line(store, ("a", note("a")))
    first = app.invoke(told("1"), "t", key="k1")
    app.invoke(told("2"), "t", key="k2")
    again = app.invoke(told("1"), "t", key="k1")
    assert (again.run_id, again.reused) == (first.run_id, True)
    assert again.state["log"] == ["1", "a"]
    assert asyncio.run(app.ainvoke(told("1"), "t", key="k1")).state == again.state
    assert list(app.stream(told("1"), "t", key="k1")) == []
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]
    assert app.invoke(told("1"), "t", key="k1", again=True).state["log"][4:] == ["1", "a"]


@pytest.mark.requirement("F1", api="App.invoke")
def test_the_key_of_an_input_that_waits_is_not_started(store: Store) -> None:
    """Was broken: with ``discard`` it was started beside the input that waits."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t", key="k1")
    app.submit(told("2"), "t", key="k2", if_busy="queue")
    with pytest.raises(RunInProgress):
        app.invoke(told("2"), "t", key="k2", discard=True, take_over=True)
    assert app.submit(told("2"), "t", key="k2", if_busy="cancel").reused
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]


@pytest.mark.requirement("F1", api="App.invoke")
def test_a_key_of_a_run_that_the_thread_has_left_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names that run, which is not run again, and whose result was pruned or never came."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t", key="k1")
    app.invoke(told("2"), "t", key="k2", discard=True, take_over=True)
    with pytest.raises(InvalidRequest, match="another key"):
        app.invoke(told("1"), "t", key="k1")
    assert app.submit(told("1"), "t", key="k1").status == "superseded"
    app.invoke(told("3"), "t", key="k3")

    def pruned(*_: object, **__: object) -> Iterator[Any]:
        return iter(())

    monkeypatch.setattr(store, "history", pruned)
    with pytest.raises(InvalidRequest, match="pruned"):
        app.invoke(told("2"), "t", key="k2")
    assert app.submit(told("2"), "t", key="k2").status == "completed"
    assert app.state("t").state["log"] == ["2", "a", "3", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_one_key_submitted_in_many_ways_at_once_starts_one_run(store: Store) -> None:
    """Was broken: an input that was enqueued did not stop another call that started it."""
    app = line(store, ("a", note("a")))
    for number in range(10):
        thread = f"t{number}"
        app.submit(told("1"), thread)

        async def submit(thread: str = thread) -> None:
            calls = [
                asyncio.to_thread(app.submit, told("2"), thread, key="k", if_busy=if_busy)
                for if_busy in ("queue", "cancel", "queue", "cancel")
            ]
            handles = await asyncio.gather(*calls)
            assert len({handle.run_id for handle in handles}) == 1

        asyncio.run(submit())
    work(app)
    for number in range(10):
        assert app.state(f"t{number}").state["log"].count("2") == 1
