"""F1: cancelling a thread, whatever it does now and whatever was done to it."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import (
    App,
    CheckpointStore,
    Conflict,
    Context,
    InvalidRequest,
    RunInProgress,
    Store,
    ThreadKey,
    interrupt,
)
from milecastle.ports.claims import waiting_inputs
from tests.acceptance.fleet.working import Trip, line, note, work

KEY = ThreadKey("default", "t")


def told(name: str) -> dict[str, Any]:
    """An input that can be recognized in the state."""
    return {"n": 0, "log": [name]}


def asks(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


def naps(state: Trip, ctx: Context) -> dict[str, Any]:
    ctx.sleep(3600.0)
    return {}


def asking(store: Store) -> App[Trip]:
    return line(store, ("a", note("a")), ("b", note("b")), ("ask", asks))


def log_of(app: App[Trip], thread: str = "t") -> list[str]:
    return app.state(thread).state["log"]


def refuses_workers(app: App[Trip], store: Store) -> None:
    """A thread that was cancelled is cancelled once, and no worker runs it."""
    assert app.state("t").status == "cancelled"
    line = store.thread(KEY)
    assert line is not None
    assert (line.due_at, line.worker) == (None, "")
    before = app.state("t").seq
    work(app)
    assert app.state("t").seq == before
    assert not app.cancel("t")


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_thread_is_cancelled_in_each_state(store: Store) -> None:
    """Queued, asleep and asking. One that ended has no run to cancel, and continues as before."""
    app = line(store, ("naps", naps), name="naps")
    app.submit(told("1"), "t")
    assert app.cancel("t")
    refuses_workers(app, store)
    app.retry("t")
    work(app)
    assert app.state("t").status == "sleeping"
    assert app.cancel("t")
    refuses_workers(app, store)
    app.delete("t")
    other = asking(store)
    other.submit(told("1"), "t")
    work(other)
    assert other.cancel("t")
    refuses_workers(other, store)
    other.answer("t", "yes")
    work(other)
    assert log_of(other) == ["1", "a", "b", "heard yes"]
    assert not other.cancel("t")
    assert other.state("t").status == "completed"


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_thread_that_was_taken_back_to_its_question_is_cancelled(store: Store) -> None:
    """Its run completed, and it waits again. Fails if only the record of that run is looked at:
    then the thread stays ``interrupted``, and inputs behind it wait forever.
    """
    app = asking(store)
    app.submit(told("1"), "t")
    work(app)
    asked = app.state("t").seq
    app.answer("t", "yes")
    work(app)
    app.fork("t", asked)
    assert app.state("t").status == "interrupted"
    assert app.cancel("t")
    refuses_workers(app, store)
    assert [run.status for run in store.runs(KEY)] == ["cancelled", "completed"]
    app.answer("t", "no")
    work(app)
    assert log_of(app) == ["1", "a", "b", "heard no"]


@pytest.mark.requirement("F1", api="App.cancel")
def test_cancelling_a_thread_that_was_taken_back_makes_room(store: Store) -> None:
    """Fails as the one before: the run that was queued is superseded by the fork."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    app.fork("t", app.state("t").seq)
    work(app)
    assert (log_of(app), len(waiting_inputs(store, KEY))) == (["1"], 1)
    assert app.cancel("t")
    work(app)
    assert log_of(app) == ["2", "a"]


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_pruned_thread_is_cancelled_unless_inputs_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next input would start before that of the cancelled run, which is gone. Fails if it is
    cancelled, or an input is taken, all the same: workers then try that input forever.
    """
    monkeypatch.setattr(store, "rollup_after", 1)
    app = asking(store)
    app.submit(told("1"), "t")
    work(app)
    assert CheckpointStore(store).prune(KEY, keep_last=1) > 0
    app.submit(told("2"), "t", if_busy="queue")
    with pytest.raises(InvalidRequest, match=r"'t' cannot go back .* retry\('t'\) continues"):
        app.cancel("t")
    app.answer("t", "yes")
    work(app)
    assert log_of(app) == ["1", "a", "b", "heard yes", "2", "a", "b"]
    CheckpointStore(store).prune(KEY, keep_last=1)
    assert app.cancel("t")
    refuses_workers(app, store)
    with pytest.raises(InvalidRequest, match=r"'t' cannot go back .* retry\('t'\) continues"):
        app.submit(told("3"), "t", if_busy="queue")
    app.answer("t", "again")
    work(app)
    assert log_of(app)[-1] == "heard again"


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_fork_is_cancelled_unless_inputs_wait(store: Store) -> None:
    """It has no checkpoint before its input: that is in the thread that it was forked from."""
    app = line(store, ("a", note("a")), ("b", note("b")))
    app.invoke(told("1"), "origin")
    after_a = list(app.history("origin"))[1].seq
    app.fork("origin", after_a, as_thread="t")
    assert app.cancel("t")
    refuses_workers(app, store)
    app.retry("t")
    app.submit(told("2"), "t", if_busy="queue")
    with pytest.raises(InvalidRequest, match="started as a fork"):
        app.cancel("t")
    work(app)
    assert log_of(app) == ["1", "a", "b", "2", "a", "b"]
    assert log_of(app, "origin") == ["1", "a", "b"]


@pytest.mark.requirement("F1", api="App.submit")
def test_an_input_waits_behind_a_run_that_was_cancelled(store: Store) -> None:
    """Was broken: the line of a cancelled thread lost its lane, and refused the queue forever."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    work(app)
    app.submit(told("2"), "t", priority=7)
    assert app.cancel("t")
    found = store.thread(KEY)
    assert found is not None
    assert (found.lane.split("@")[0], found.priority) == ("line", 7)
    app.submit(told("3"), "t", if_busy="queue")
    work(app)
    assert log_of(app) == ["1", "a", "3", "a"]


@pytest.mark.requirement("F1", api="App.cancel")
def test_only_the_run_that_was_seen_is_cancelled(store: Store) -> None:
    app = asking(store)
    app.submit(told("1"), "t")
    work(app)
    seen = app.state("t").run_id
    app.submit(told("2"), "t", if_busy="cancel")
    assert not app.cancel("t", run_id=seen)
    work(app)
    assert app.state("t").status == "interrupted"
    assert app.cancel("t", run_id=app.state("t").run_id)
    refuses_workers(app, store)


@pytest.mark.requirement("F1", api="App.submit")
def test_only_the_run_that_was_seen_is_closed_for_another_input(store: Store) -> None:
    """``instead_of``: a run that was answered or replaced since is not closed."""
    app = asking(store)
    app.submit(told("1"), "t")
    work(app)
    seen = app.state("t").run_id
    app.answer("t", "yes")
    with pytest.raises(RunInProgress):
        app.submit(told("2"), "t", instead_of=seen)
    work(app)
    with pytest.raises(Conflict):
        app.submit(told("2"), "t", instead_of=seen)
    app.submit(told("3"), "t")
    work(app)
    asked = app.state("t").run_id
    with pytest.raises(Conflict):
        app.submit(told("4"), "t", instead_of=seen, if_busy="cancel")
    app.submit(told("4"), "t", instead_of=asked)
    with pytest.raises(Conflict):
        app.submit(told("5"), "t", instead_of=asked, if_busy="cancel")
    work(app)
    assert log_of(app)[3:] == ["heard yes", "4", "a", "b"]
