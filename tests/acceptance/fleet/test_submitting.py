"""F1: a run is handed over by one commit, from any process, and safely again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from milecastle import (
    CheckpointConfig,
    InvalidRequest,
    ResumeRefused,
    Retry,
    RunCancelled,
    RunFailed,
    RunInProgress,
    Store,
    ThreadKey,
    current,
    interrupt,
)
from milecastle.ports.store import Batch, Opened
from milecastle.records import Handle
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import Trip, line, note, start, work

KEY = ThreadKey("default", "t")


def asks(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


@pytest.mark.requirement("F1", api="App.submit")
def test_submitting_runs_nothing_and_a_worker_runs_it(store: Store) -> None:
    """Fails if ``submit`` runs the graph, or its line has no time: then no worker finds it."""
    app = line(store, ("a", note("a")), ("b", note("b")))
    handle = app.submit(start(), "t")
    assert (handle.status, handle.reused) == ("queued", False)
    assert app.state("t").state == start()
    assert [info.status for info in app.threads()] == ["queued"]
    work(app)
    result = handle.result(timeout=60)
    assert result.status == "completed"
    assert result.state == {"n": 2, "log": ["a", "b"]}
    assert result.run_id == handle.run_id
    assert [run.status for run in store.runs(handle.thread)] == ["completed"]


@pytest.mark.requirement("F1", api="App.asubmit")
def test_runs_that_are_submitted_together_all_run(store: Store) -> None:
    app = line(store, ("a", note("a")))

    async def submit() -> list[str]:
        handles = await asyncio.gather(*(app.asubmit(start(), f"t{n}") for n in range(30)))
        return [handle.status for handle in handles]

    assert asyncio.run(submit()) == ["queued"] * 30
    work(app)
    assert {info.status for info in app.threads()} == {"completed"}


@pytest.mark.requirement("F1", api="App.submit")
def test_submitting_again_finds_the_run(store: Store) -> None:
    """While it is queued, and when it has completed.

    Fails if ``is_served`` is not asked, and if only a completed run counts as reused.
    """
    app = line(store, ("a", note("a")))
    first = app.submit(start(), "t")
    again = app.submit(start(), "t")
    assert (again.run_id, again.reused) == (first.run_id, True)
    newest = app.store.head(first.thread)
    assert newest is not None
    assert newest.seq == 1
    work(app)
    ended = app.submit(start(), "t")
    assert (ended.run_id, ended.status, ended.reused) == (first.run_id, "completed", True)
    assert app.submit(start(), "t", again=True).run_id != first.run_id
    work(app)
    assert app.state("t").state["log"] == ["a", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_a_key_is_compared_in_place_of_the_input(store: Store) -> None:
    app = line(store, ("a", note("a")))
    first = app.submit(start(), "t", key="order 1")
    assert app.submit({"n": 5, "log": []}, "t", key="order 1").run_id == first.run_id
    with pytest.raises(RunInProgress, match="queue"):
        app.submit(start(), "t", key="order 2")


class Opening(MemoryStore):
    """Counts how often a thread is opened; ``before`` is called once, before the next time."""

    opened = 0
    before: Callable[[], object] | None = None

    def open(self, key: ThreadKey) -> Opened | None:
        self.opened += 1
        if (before := self.before) is not None:
            self.before = None
            before()
        return super().open(key)


@pytest.mark.parametrize("key", [None, "another"])
def test_a_busy_thread_is_looked_at_once(key: str | None) -> None:
    """Was broken: it was looked at 20 times, about 140 queries, before it was refused."""
    store = Opening()
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    store.opened = 0
    with pytest.raises(RunInProgress):
        app.submit({"n": 1, "log": []}, "t", key=key)
    with pytest.raises(RunInProgress):
        asyncio.run(app.asubmit({"n": 1, "log": []}, "t", key=key))
    assert store.opened == 2


@pytest.mark.parametrize("again", [False, True])
def test_an_input_waits_if_its_thread_becomes_busy_meanwhile(again: bool) -> None:
    """Fails if ``RunInProgress`` is raised for a thread that was free when its caller looked."""
    store = Opening()
    app = line(store, ("a", note("a")))
    app.invoke(start(), "t")
    store.before = lambda: app.submit(start(), "t", again=True)
    handle = app.submit({"n": 0 if again else 1, "log": []}, "t", if_busy="queue", again=again)
    assert not handle.reused
    work(app)
    assert app.state("t").state["log"] == ["a", "a", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_a_busy_thread_is_refused_or_started_over(store: Store) -> None:
    app = line(store, ("a", note("a")), ("ask", asks))
    app.submit(start(), "t")
    work(app)
    with pytest.raises(InvalidRequest, match="unfinished run"):
        app.submit({"n": 7, "log": []}, "t")
    app.submit({"n": 7, "log": []}, "t", if_busy="cancel")
    work(app)
    assert app.state("t").state["n"] == 8
    statuses = [run.status for run in store.runs(app.runner.key("t"))]
    assert statuses[0] == "interrupted"
    assert statuses[1] in ("superseded", "cancelled")


@pytest.mark.requirement("F1", api="App.submit_many")
def test_many_inputs_are_submitted_together(store: Store) -> None:
    """In fewer commits than inputs, also from a loop. Fails if each is a commit of its own."""
    app = line(store, ("a", note("a")))
    groups: list[int] = []
    real = store.commit_many
    if real is not None:

        def counted(batches: Sequence[Batch]) -> Any:
            groups.append(len(batches))
            return real(batches)

        setattr(store, "_commit_many", counted)  # noqa: B010 - watched
    handles = app.submit_many({f"t{number:02}": start() for number in range(60)})
    assert [handle.thread.thread for handle in handles] == [f"t{number:02}" for number in range(60)]
    assert not groups or max(groups) > 5
    work(app)
    assert {info.status for info in app.threads()} == {"completed"}
    assert all(handle.reused for handle in asyncio.run(app.asubmit_many({"t00": start()})))


@pytest.mark.requirement("F1", api="App.submit_many")
def test_an_input_that_is_refused_keeps_no_other_from_being_submitted(store: Store) -> None:
    app = line(store, ("ask", asks))
    app.submit(start(), "busy")
    work(app)
    other: dict[str, Any] = {"n": 7, "log": []}
    with pytest.raises(InvalidRequest, match="unfinished run") as raised:
        app.submit_many({"a": other, "busy": other, "z": other})
    assert raised.value.__notes__ == [
        "2 of 3 inputs were submitted; submitting all of them again is safe"
    ]
    assert [app.state(name).status for name in "az"] == ["queued", "queued"]


@pytest.mark.requirement("F1", api="App.submit")
def test_a_delayed_run_starts_after_its_delay(store: Store) -> None:
    app = line(store, ("a", note("a")))
    app.submit(start(), "later", delay=3600)
    began = time.monotonic()
    app.submit(start(), "t", delay=0.5)
    while app.state("t").status != "completed":
        work(app)
        assert time.monotonic() - began < 30
    assert time.monotonic() - began > 0.4
    assert app.state("later").status == "queued"


@pytest.mark.requirement("F1", api="App.answer")
def test_an_answer_is_committed_and_a_worker_continues(store: Store) -> None:
    app = line(store, ("ask", asks), ("b", note("b")))
    handle = app.submit(start(), "t")
    work(app)
    waiting = handle.result(timeout=60)
    assert waiting.status == "interrupted"
    answered = app.answer("t", "yes")
    assert (answered.status, answered.run_id) == ("queued", handle.run_id)
    assert app.state("t").state["log"] == []
    work(app)
    assert handle.result(timeout=60).state["log"] == ["heard yes", "b"]
    with pytest.raises(InvalidRequest, match="needs answer"):
        app.answer("t")


@pytest.mark.requirement("F10", api="App.retry")
def test_a_failed_run_waits_until_it_is_retried(store: Store) -> None:
    """Fails if a failed line keeps its time: then the worker runs it for ever."""
    broken = [True]

    def fails(state: Trip) -> dict[str, Any]:
        if broken:
            raise ValueError("on purpose")
        return {"log": ["repaired"]}

    app = line(store, ("a", note("a")), ("fails", fails))
    handle = app.submit(start(), "t")
    work(app)
    with pytest.raises(RunFailed, match="ValueError: on purpose") as caught:
        handle.result(timeout=60)
    assert (caught.value.node, caught.value.failure_type) == ("fails", "ValueError")
    work(app)
    assert len(store.runs(handle.thread)) == 1
    broken.clear()
    app.retry("t")
    work(app)
    assert app.wait("t", timeout=60).state["log"] == ["a", "repaired"]


@pytest.mark.requirement("F10", api="StateGraph.compile")
def test_runs_are_retried_by_policy_and_then_held(store: Store) -> None:
    """Fails if ``Assignment.retry_at`` ignores the count, or the exceptions."""
    policy = Retry(attempts=3, delay=0.05, jitter=0.0, on=ValueError)

    def fails(state: Trip) -> dict[str, Any]:
        raise ValueError("on purpose")

    def errs(state: Trip) -> dict[str, Any]:
        raise KeyError("on purpose")

    failing = line(store, ("fails", fails), name="failing", retry_runs=policy)
    erring = line(store, ("errs", errs), name="erring", retry_runs=policy)
    handles = failing.submit(start(), "f"), erring.submit(start(), "e")
    began = time.monotonic()
    while failing.state("f").status != "failed" or is_due(store, handles[0].thread):
        work(failing, erring)
        assert time.monotonic() - began < 10
    assert [len(store.runs(handle.thread)) for handle in handles] == [3, 1]
    with pytest.raises(RunFailed):
        handles[0].result(timeout=60)


def is_due(store: Store, key: ThreadKey) -> bool:
    info = store.thread(key)
    return info is not None and info.due_at is not None


@pytest.mark.requirement("F1", api="App.retry")
def test_a_run_is_not_handed_over_to_another_graph(store: Store) -> None:
    """The other one has the same nodes. Fails if only the structure is compared: then the thread
    changes its lane, and the other graph's functions run.
    """

    def fails(state: Trip) -> dict[str, Any]:
        raise ValueError

    app, other = line(store, ("a", fails)), line(store, ("a", note("other")), name="other")
    app.submit(start(), "t")
    work(app)
    with pytest.raises(ResumeRefused, match="of the graph 'line', and this app is of 'other'"):
        other.retry("t")
    with pytest.raises(ResumeRefused, match="'line'"):
        other.submit(start(), "t")
    question = line(store, ("a", asks)), line(store, ("a", note("other")), name="other")
    question[0].submit(start(), "asked")
    work(question[0])
    with pytest.raises(ResumeRefused, match="'line'"):
        question[1].answer("asked", "yes")
    work(other, *question)
    assert {info.graph for info in app.threads()} == {"line"}
    assert app.state("t").state["log"] == []
    app.retry("t")


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_queued_run_can_be_cancelled(store: Store) -> None:
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t")
    assert app.cancel("t")
    work(app)
    with pytest.raises(RunCancelled):
        handle.result(timeout=60)
    assert app.state("t").state["log"] == []


@pytest.mark.requirement("F1", api="App.wait")
def test_waiting_ends_after_its_timeout(store: Store) -> None:
    app = line(store, ("a", note("a")))
    handle = app.submit(start(), "t")
    with pytest.raises(TimeoutError, match="'t' has not stopped"):
        handle.result(timeout=0.05)
    with pytest.raises(InvalidRequest, match="there is no thread"):
        app.wait("unknown", timeout=1)


@pytest.mark.requirement("F2", api="App.invoke")
def test_callers_leave_queued_threads_to_the_workers(store: Store) -> None:
    """Fails if ``refuse_busy`` does not know ``queued``."""
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    with pytest.raises(RunInProgress, match="queue of the workers"):
        app.invoke(start(), "t")
    assert app.invoke(start(), "t", take_over=True).status == "completed"
    work(app)
    assert app.state("t").state["log"] == ["a"]


def test_threads_that_are_deleted_at_their_end_cannot_be_submitted(store: Store) -> None:
    """Their result could not be read. Fails without the check in ``Runner._handed``."""
    app = line(None, ("a", note("a")), checkpoint=CheckpointConfig(store=store, preserve=False))
    with pytest.raises(InvalidRequest, match="preserve=False"):
        app.submit(start(), "t")


def test_workers_need_a_store_that_they_can_share(tmp_path: Any) -> None:
    app = line(JsonlStore(tmp_path / "log"), ("a", note("a")))
    with pytest.raises(InvalidRequest, match="workers need a store"):
        app.submit(start(), "t")
    app.close()


@pytest.mark.requirement("F9", api="App.submit")
@pytest.mark.parametrize("end", ["completed", "cancelled", "queued"])
def test_a_thread_that_exists_is_left_as_it_is_if_it_had_to_be_absent(
    store: Store, end: str
) -> None:
    """Whatever its input, and however its run ended.

    Fails without ``Runner._existing``: another input is refused, and a cancelled run resumes.
    """
    app = line(store, ("a", note("a")))
    first = app.submit(start(), "t", if_absent=True)
    if end == "completed":
        work(app)
    elif end == "cancelled":
        app.cancel("t")
    again = app.submit({"n": 7, "log": []}, "t", if_absent=True)
    assert (again.run_id, again.status, again.reused) == (first.run_id, end, True)
    assert asyncio.run(app.asubmit(start(), "t", if_absent=True)) == again
    with pytest.raises(InvalidRequest, match="needs a thread"):
        app.submit(start(), if_absent=True)


def test_of_two_who_find_a_thread_absent_one_starts_it() -> None:
    """The second read the index before the first wrote.

    Fails if ``Start.with_input`` compares the input: it is another, and would be refused.
    """

    class Late(MemoryStore):
        looks = 0

        def thread(self, key: ThreadKey) -> Any:
            self.looks += 1
            return None if self.looks == 1 else super().thread(key)

    store = Late()
    app = line(store, ("a", note("a")))
    first = app.submit(start(), "t")
    store.looks = 0
    second = app.submit({"n": 7, "log": []}, "t", if_absent=True)
    assert (second.run_id, second.reused) == (first.run_id, True)


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_run_that_waits_for_its_retry_can_be_cancelled(store: Store) -> None:
    """Fails if cancelling says that it has ended, and workers retry it nevertheless."""

    def fails(state: Trip) -> dict[str, Any]:
        raise ValueError

    app = line(store, ("a", fails), retry_runs=Retry(attempts=9, delay=3600.0))
    app.submit(start(), "t")
    work(app)
    key = ThreadKey("default", "t")
    waiting = store.thread(key)
    assert waiting is not None
    assert (waiting.status, waiting.due_at is None) == ("failed", False)
    assert app.cancel("t")
    ended = store.thread(key)
    assert ended is not None
    assert (ended.status, ended.due_at) == ("cancelled", None)
    assert app.retry("t").status == "queued"


@pytest.mark.requirement("F1", api="App.wait")
def test_waiting_without_time_looks_once(store: Store) -> None:
    """Fails if ``timeout=0`` says of a run that has ended that it has not stopped."""
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    with pytest.raises(TimeoutError):
        app.wait("t", timeout=0)
    work(app)
    assert app.wait("t", timeout=0).status == "completed"


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), 1e13])
def test_a_delay_that_no_calendar_has_is_refused(store: Store, delay: float) -> None:
    """Fails without the check: Python and the store raise errors of their own."""
    app = line(store, ("a", note("a")))
    with pytest.raises(InvalidRequest, match="a delay is at most"):
        app.submit(start(), "t", delay=delay)
    with pytest.raises(InvalidRequest, match="a delay is at most"):
        asyncio.run(app.aretry("t", delay=delay))


@pytest.mark.requirement("F1", api="App.submit")
def test_submitting_again_while_the_run_stops_finds_it() -> None:
    """The run's record is read before it stops, and its index row after that.

    Failed with ``RunInProgress``: the run was no longer the workers', and its driver still lived.
    """
    again: list[Handle[Trip]] = []

    class Stopping(MemoryStore):
        stale: Opened | None = None

        def commit(self, batch: Batch) -> None:
            before = self.open(KEY)
            super().commit(batch)
            row = self.thread(KEY)
            if row is not None and row.status == "sleeping" and not again:
                self.stale = before
                again.append(app.submit(start(), "t", key="k"))

        def open(self, key: ThreadKey) -> Opened | None:
            stale, self.stale = self.stale, None
            return stale or super().open(key)

    def waits(state: Trip) -> dict[str, Any]:
        return {"log": [current().receive("go", str)]}

    app = line(Stopping(), ("a", note("a")), ("b", waits))
    first = app.submit(start(), "t", key="k")
    work(app)
    assert [(one.run_id, one.status, one.reused) for one in again] == [
        (first.run_id, "sleeping", True)
    ]
