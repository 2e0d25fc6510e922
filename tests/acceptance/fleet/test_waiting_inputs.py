"""F1: inputs of a busy thread wait their turn, in order, and the end of one run starts the next."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast
from uuid import uuid4

import msgspec.structs
import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Conflict,
    Context,
    InvalidRequest,
    Keyring,
    Retention,
    Retry,
    RunInProgress,
    StateGraph,
    Store,
    ThreadKey,
    interrupt,
    renamed_from,
)
from milecastle.app.runs.calls import Call
from milecastle.app.runs.planned import PlannedRun
from milecastle.app.upkeep import removing
from milecastle.app.upkeep.copying import copy_threads
from milecastle.app.upkeep.removing import delete_thread, remove_thread
from milecastle.app.upkeep.verifying import verify_thread
from milecastle.engine.assignment import Assignment
from milecastle.model.checkpoint import DELTA, SNAPSHOT
from milecastle.ports.claims import ClaimStore, waiting_inputs
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.testing.contract_claims import a_line, queued
from milecastle.testing.contract_inputs import enqueued
from tests.acceptance.fleet.working import Trip, line, note, serving, start, work

KEY = ThreadKey("default", "t")


def told(name: str) -> dict[str, Any]:
    """An input that can be recognized in the state."""
    return {"n": 0, "log": [name]}


def asks(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


@pytest.mark.requirement("F1", api="App.submit")
def test_inputs_of_a_busy_thread_start_in_their_order(store: Store) -> None:
    """One worker, told once. Fails if the commit that ends a run does not make the next one due,
    and if inputs are taken in another order.
    """
    app = line(store, ("a", note("a")))
    first = app.submit(told("1"), "t")
    rest = [app.submit(told(str(number)), "t", if_busy="queue") for number in range(2, 6)]
    assert [handle.status for handle in rest] == ["queued"] * 4
    assert not any(handle.reused for handle in rest)
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a", "3", "a", "4", "a", "5", "a"]
    runs = store.runs(KEY)
    assert [run.run_id for run in reversed(runs)] == [first.run_id, *(one.run_id for one in rest)]
    assert {run.status for run in runs} == {"completed"}
    assert not waiting_inputs(store, KEY)


@pytest.mark.requirement("F1", api="renamed_from")
def test_an_input_that_waits_under_an_old_name_starts_under_the_new_one(store: Store) -> None:
    """Was broken: it was acknowledged, and then refused by the graph that declares the rename."""

    class Old(TypedDict, total=False):
        title: str

    class New(TypedDict, total=False):
        name: Annotated[str, renamed_from("title")]

    def built(state: type) -> App[Any]:
        graph: StateGraph[Any] = StateGraph(state, name="g")
        graph.add_node("ask", lambda state: interrupt("well?"))
        graph.add_edges(START, "ask", END)
        return graph.compile(store=store)

    old, new = built(Old), built(New)
    old.submit({"title": "first"}, "t")
    work(old)
    old.submit({"title": "second"}, "t", if_busy="queue")
    new.answer("t", None)
    work(new)
    assert new.state("t").state == {"name": "second"}


@pytest.mark.requirement("F1", api="App.submit")
def test_an_input_for_a_free_thread_does_not_wait(store: Store) -> None:
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t", if_busy="queue")
    work(app)
    app.submit(told("2"), "t", if_busy="queue")
    assert not waiting_inputs(store, KEY)
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_waiting_again_is_safe(store: Store) -> None:
    """The same input waits once, and so does the same key, also when it has run by then.

    Fails if marks are not compared, and if a key is compared with waiting inputs only.
    """
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    two = app.submit(told("2"), "t", if_busy="queue")
    again = app.submit(told("2"), "t", if_busy="queue")
    assert (again.run_id, again.reused) == (two.run_id, True)
    other = app.submit(told("2"), "t", if_busy="queue", again=True)
    assert (other.run_id == two.run_id, other.reused) == (False, False)
    keyed = app.submit(told("3"), "t", if_busy="queue", key="k")
    assert app.submit(told("4"), "t", if_busy="queue", key="k").run_id == keyed.run_id
    current = app.submit(told("1"), "t", if_busy="queue")
    assert current.reused
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a", "2", "a", "3", "a"]
    app.submit(told("5"), "t")
    late = app.submit(told("3"), "t", if_busy="queue", key="k")
    assert (late.run_id, late.reused) == (keyed.run_id, True)


@pytest.mark.requirement("F1", api="App.submit")
def test_inputs_wait_behind_a_question_and_a_cancelled_run_makes_room(store: Store) -> None:
    """The next one starts from the state before the cancelled input.

    Fails if a cancellation, whose line names no lane, does not make the next one due.
    """
    app = line(store, ("a", note("a")), ("ask", asks))
    app.submit(told("1"), "t")
    work(app)
    app.submit(told("2"), "t", if_busy="queue")
    work(app)
    assert app.state("t").status == "interrupted"
    assert app.cancel("t")
    work(app)
    assert app.state("t").state["log"] == ["2", "a"]
    app.submit(told("3"), "t", if_busy="queue")
    app.answer("t", "yes")
    work(app)
    assert app.state("t").state["log"] == ["2", "a", "heard yes", "3", "a"]


@pytest.mark.requirement("F1", api="App.cancel")
def test_an_input_that_waits_between_runs_is_cancelled(store: Store) -> None:
    """The run before it has completed, and no worker has looked since. The one behind it starts.

    Fails if only the run that ended is looked at, and if the state of that is taken back.
    """
    app = line(store, ("a", note("a")))
    _between_runs(app, "2", "3")
    second, third = (one.mark for one in waiting_inputs(store, KEY))
    assert app.cancel("t")
    found = store.run(KEY, second)
    assert found is not None
    assert (found.status, found.ended_at is None) == ("cancelled", False)
    assert [one.mark for one in waiting_inputs(store, KEY)] == [third]
    assert app.state("t").status == "completed"
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "3", "a"]
    assert not app.cancel("t")
    app.submit(told("4"), "t", if_busy="queue")
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "3", "a", "4", "a"]
    assert verify_thread(store, KEY).findings == ()


@pytest.mark.requirement("F1", api="App.cancel")
def test_a_worker_does_not_start_an_input_that_was_cancelled_meanwhile(store: Store) -> None:
    """It has claimed the thread, and read the input. Fails if cancelling writes no entry."""
    app = line(store, ("a", note("a")))
    _between_runs(app, "2")
    shared = cast("ClaimStore", store)
    assert len(shared.claim("one", [app.runner.lane], limit=9)) == 1
    assignment = Assignment(lane=app.runner.lane, worker="one")
    call = Call(thread=KEY, if_exists="take_over", assignment=assignment)
    late = app.runner.begin(call)
    assert app.cancel("t")
    assert isinstance(late, PlannedRun)
    with pytest.raises(Conflict):
        asyncio.run(app.runner.afinish(late))
    work(app)
    assert app.state("t").state["log"] == ["1", "a"]
    assert not waiting_inputs(store, KEY)


def _between_runs(app: App[Trip], *names: str) -> None:
    """A thread whose first run has completed by a caller, and these inputs wait."""
    app.submit(told("1"), "t")
    for name in names:
        app.submit(told(name), "t", if_busy="queue")
    app.resume("t", take_over=True)


@pytest.mark.requirement("F1", api="App.submit")
def test_inputs_wait_behind_a_failed_run_until_it_is_retried(store: Store) -> None:
    fails = True

    def shaky(state: Trip) -> dict[str, Any]:
        if fails:
            raise ValueError("no")
        return {"log": ["b"]}

    app = line(store, ("b", shaky), retry_runs=Retry(attempts=1))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    work(app)
    assert (app.state("t").status, len(waiting_inputs(store, KEY))) == ("failed", 1)
    retention = Retention(older_than=timedelta(0), failed=True)
    report = CheckpointStore(store).apply_retention("default", retention)
    assert report.deleted == ()
    fails = False
    app.retry("t")
    work(app)
    assert app.state("t").state["log"] == ["1", "b", "2", "b"]


@pytest.mark.requirement("F1", api="App.submit")
def test_waiting_inputs_are_deleted_with_their_thread(store: Store) -> None:
    """Fails if a thread that is created again finds the inputs of the one before."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    app.delete("t", take_over=True)
    assert not waiting_inputs(store, KEY)
    app.submit(told("3"), "t")
    work(app)
    assert app.state("t").state["log"] == ["3", "a"]


@pytest.mark.requirement("F1", api="App.submit")
def test_a_thread_that_no_worker_runs_has_no_queue(store: Store) -> None:
    app = line(store, ("ask", asks))
    app.invoke(start(), "t")
    with pytest.raises(InvalidRequest, match="not run by workers"):
        app.submit(told("2"), "t", if_busy="queue")
    with pytest.raises(InvalidRequest, match="'queue'"):
        app.submit(told("2"), "t", if_busy=cast("Any", "wait"))


@pytest.mark.requirement("F1", api="App.submit")
def test_a_thread_that_a_caller_continues_keeps_its_queue(store: Store) -> None:
    """Fails if the line that the caller writes, which names no lane, is taken as it is."""
    app = line(store, ("a", note("a")), ("ask", asks))
    app.submit(told("1"), "t")
    work(app)
    app.submit(told("2"), "t", if_busy="queue")
    assert app.resume("t", answer="yes").status == "completed"
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "heard yes", "2", "a"]


@pytest.mark.requirement("F1", api="App.wait")
def test_waiting_for_a_thread_includes_its_queue(store: Store) -> None:
    """Fails if a thread counts as stopped while its next input is due."""

    async def main() -> list[str]:
        app = line(store, ("a", note("a")))
        await app.asubmit(told("1"), "t")
        for number in range(2, 8):
            await app.asubmit(told(str(number)), "t", if_busy="queue")
        async with serving(app), asyncio.timeout(30):
            return (await app.await_result("t")).state["log"]

    assert asyncio.run(main())[::2] == list("1234567")


@pytest.mark.requirement("F1", api="App.submit")
def test_inputs_that_meet_the_end_of_a_run_are_not_lost(store: Store) -> None:
    """Several submitters against two workers: every input runs once, those of one in its order.

    Fails on each store if ``send`` does not wake a thread that has just become free, and if a
    run that ends does not see an input that was enqueued just before.
    """

    async def main() -> list[str]:
        app = line(store, ("a", note("a")))

        async def submitter(name: str) -> None:
            for number in range(12):
                await app.asubmit(told(f"{name}{number}"), "t", if_busy="queue")
                await asyncio.sleep(0.003 * (number % 3))

        async with serving(app), serving(app):
            await asyncio.gather(*map(submitter, "xyz"))
            async with asyncio.timeout(60):
                return (await app.await_result("t")).state["log"]

    log = [name for name in asyncio.run(main()) if name != "a"]
    for who in "xyz":
        assert [name for name in log if name[0] == who] == [f"{who}{n}" for n in range(12)]
    assert len(log) == 36


@pytest.mark.requirement("F1", api="App.submit")
def test_waiting_inputs_are_encrypted_with_their_thread(tmp_path: Path, store: Store) -> None:
    """Fails if the payload is sealed without the keyring."""
    app = line(store, ("a", note("a")), encryption=Keyring({"k": b"0" * 32}, store=MemoryStore()))
    app.submit(told("first"), "t")
    app.submit(told("amber-room"), "t", if_busy="queue")
    (waiting,) = waiting_inputs(store, KEY)
    assert b"amber" not in waiting.payload
    work(app)
    assert app.state("t").state["log"] == ["first", "a", "amber-room", "a"]


@pytest.mark.requirement("F1", api="copy_threads")
def test_waiting_inputs_are_copied(tmp_path: Path, store: Store) -> None:
    """To a store that workers share; any other cannot keep them. Fails if they are left behind."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    target = MemoryStore()
    copy_threads(store, target, "default")
    copy_threads(store, target, "default")
    assert waiting_inputs(target, KEY) == waiting_inputs(store, KEY)
    there = line(target, ("a", note("a")))
    deadline = time.monotonic() + 30
    while there.state("t").state.get("log") != ["1", "a", "2", "a"]:
        work(there)
        assert time.monotonic() < deadline
    with pytest.raises(InvalidRequest, match="1 inputs that wait"):
        copy_threads(store, JsonlStore(tmp_path / "logs"), "default")


@pytest.mark.requirement("F1", api="App.submit")
def test_a_key_finds_its_run_also_when_the_thread_is_free_again(store: Store) -> None:
    """The caller lost the reply and submits again, after later inputs have run. Fails if the key is
    compared with earlier runs only while the thread is busy: then the input is run twice.
    """
    app = line(store, ("a", note("a")))
    first = app.submit(told("1"), "t", key="one", if_busy="queue")
    app.submit(told("2"), "t", key="two", if_busy="queue")
    work(app)
    again = app.submit(told("1"), "t", key="one", if_busy="queue")
    assert (again.run_id, again.reused) == (first.run_id, True)
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]
    assert not app.submit(told("1"), "t", key="one", again=True, if_busy="queue").reused


@pytest.mark.requirement("F1", api="App.cancel")
def test_inputs_behind_a_failed_run_start_when_it_is_cancelled(store: Store) -> None:
    """Fails if a run that failed cannot be cancelled: then its thread is blocked until somebody
    retries it with success. Without waiting inputs it has ended, and cancelling says so.
    """

    def fails(state: Trip) -> dict[str, Any]:
        if state["log"] == ["1"]:
            raise ValueError
        return {"log": ["fine"]}

    app = line(store, ("a", fails))
    failed = app.submit(told("1"), "t")
    work(app)
    assert not app.cancel("t")
    app.submit(told("2"), "t", if_busy="queue")
    work(app)
    assert app.cancel("t")
    work(app)
    assert app.state("t").state["log"] == ["2", "fine"]
    runs = {run.run_id: run.status for run in store.runs(KEY)}
    assert runs.pop(failed.run_id) == "failed"
    assert set(runs.values()) == {"cancelled", "completed"}


@pytest.mark.requirement("F1", api="App.submit")
def test_a_later_copy_removes_the_inputs_that_were_started(store: Store) -> None:
    """Fails if they still wait in the copy: then its workers run them again. An input that only the
    copy has is left there.
    """
    source = MemoryStore()
    app, beside = line(source, ("a", note("a"))), line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    copy_threads(source, store, "default")
    assert len(waiting_inputs(store, KEY)) == 1
    own = beside.submit(told("own"), "t", if_busy="queue")
    work(app)
    copy_threads(source, store, "default")
    assert [one.mark for one in waiting_inputs(store, KEY)] == [own.run_id]
    work(beside)
    assert beside.state("t").state["log"] == ["1", "a", "2", "a", "own", "a"]


@pytest.mark.requirement("F1", api="copy_threads")
def test_a_later_copy_of_a_pruned_thread_removes_the_inputs_that_were_started(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy before died after its entries. Fails if only the consumed messages that the source
    remembers are removed.
    """

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    source = MemoryStore()
    writer = queued(source, "t", tenant="default")
    run = enqueued(source, writer, 2)
    copy_threads(source, store, "default")
    assert len(waiting_inputs(store, KEY)) == 1
    started = msgspec.structs.replace(run, status="running")
    writer.append(source, SNAPSHOT, thread=a_line(writer), runs=(started,), consumes=(1,))
    writer.write(source, (SNAPSHOT, DELTA))
    with monkeypatch.context() as patch:
        patch.setattr("milecastle.app.upkeep.copying._Copy._copy_messages", dies)
        with pytest.raises(KeyboardInterrupt):
            copy_threads(source, store, "default")
    assert len(waiting_inputs(store, KEY)) == 1
    writer.prune(source, 3)
    assert source.mailbox.marks(KEY).consumed == ()
    copy_threads(source, store, "default")
    assert not waiting_inputs(store, KEY)
    assert store.runs(KEY) == source.runs(KEY)


@pytest.mark.requirement("F1", api="copy_threads")
def test_a_copy_does_not_replace_an_input_that_only_the_target_has(store: Store) -> None:
    """Both were acknowledged, under one number. Fails if numbers alone are compared."""
    source = MemoryStore()
    app, beside = line(source, ("a", note("a"))), line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    copy_threads(source, store, "default")
    own = beside.submit(told("own"), "t", if_busy="queue")
    app.submit(told("2"), "t", if_busy="queue")
    with pytest.raises(Conflict):
        copy_threads(source, store, "default")
    assert [one.mark for one in waiting_inputs(store, KEY)] == [own.run_id]


@pytest.mark.requirement("F1", api="App.submit")
def test_an_input_that_is_enqueued_while_its_thread_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two reads of the source. Fails with a KeyError if waiting inputs are read after the
    records of their runs.
    """
    source, copy = MemoryStore(), MemoryStore()
    app = line(source, ("a", note("a")))
    app.submit(told("1"), "t")
    runs = source.runs

    def enqueued_then(key: ThreadKey, *, limit: int | None = None) -> Any:
        found = runs(key, limit=limit)
        monkeypatch.setattr(source, "runs", runs)
        app.submit(told("2"), "t", if_busy="queue")
        return found

    monkeypatch.setattr(source, "runs", enqueued_then)
    copy_threads(source, copy, "default")
    copy_threads(source, copy, "default")
    assert waiting_inputs(copy, KEY) == waiting_inputs(source, KEY)
    assert len(waiting_inputs(copy, KEY)) == 1


@pytest.mark.requirement("F1", api="App.submit")
def test_a_thread_whose_next_input_has_not_started_is_busy(store: Store) -> None:
    """Its run has completed, and no worker has looked since. Fails if an input is started before
    one that has waited, or that one itself, which would then run twice.
    """
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    app.invoke(told("1"), "t", take_over=True)
    for name in ("2", "3"):
        with pytest.raises(RunInProgress):
            app.submit(told(name), "t")
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]


@pytest.mark.requirement("F1", api="App.invoke")
def test_a_caller_does_not_overtake_inputs_that_wait(store: Store) -> None:
    """As ``submit`` does not. Fails if ``invoke`` and ``stream`` look only at the run that ended:
    then the caller's input runs before one that has waited. With ``take_over`` it is intended.
    """
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    assert app.resume("t", take_over=True).status == "completed"
    for name in ("2", "3"):
        with pytest.raises(RunInProgress, match=r"wait\(\)"):
            app.invoke(told(name), "t")
        with pytest.raises(RunInProgress):
            list(app.stream(told(name), "t", again=True))
    assert app.invoke(told("1"), "t").reused
    assert app.invoke(told("4"), "t", take_over=True).state["log"] == ["1", "a", "4", "a"]
    work(app)
    assert app.invoke(told("3"), "t").state["log"][4:] == ["2", "a", "3", "a"]


def picky(known: str | None, given: str) -> str:
    if given == "bad":
        raise ValueError("not this one")
    return (known or "") + given


class Said(TypedDict):
    text: Annotated[str, picky]


@pytest.mark.requirement("F1", api="App.submit")
def test_an_input_that_its_thread_refuses_fails_and_the_next_starts(store: Store) -> None:
    """Fails if the input stays: then it is tried for ever, and no later one starts."""
    graph = StateGraph(Said, name="said")
    graph.add_node("a", lambda state: {})
    graph.add_edges(START, "a", END)
    app = graph.compile(store=store)
    app.submit({"text": "one"}, "t")
    bad = app.submit({"text": "bad"}, "t", if_busy="queue")
    app.submit({"text": " two"}, "t", if_busy="queue")
    work(app)
    assert app.state("t").state["text"] == "one two"
    assert [run.status for run in store.runs(KEY)] == ["completed", "failed", "completed"]
    failure = store.failure(KEY, bad.run_id)
    assert failure is not None
    assert failure.error_type == "InvalidRequest"
    assert not waiting_inputs(store, KEY)


@pytest.mark.requirement("F1", api="App.submit")
def test_a_thread_that_is_deleted_while_it_refuses_an_input(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if the worker still removes the input, without a line: the store refuses that."""

    def deletes(known: str | None, given: str) -> str:
        if given == "bad":
            store.delete(KEY)
        return picky(known, given)

    class Deleted(TypedDict):
        text: Annotated[str, deletes]

    graph = StateGraph(Deleted, name="deleted")
    graph.add_node("a", lambda state: {})
    graph.add_edges(START, "a", END)
    app = graph.compile(store=store)
    app.submit({"text": "one"}, "t")
    app.submit({"text": "bad"}, "t", if_busy="queue")
    work(app)
    assert store.thread(KEY) is None
    assert "does not fit this worker" in caplog.text


@pytest.mark.requirement("F1", api="App.delete")
def test_a_thread_is_not_deleted_while_inputs_wait(store: Store) -> None:
    """Was broken: a completed thread was deleted with the acknowledged input behind it."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    app.resume("t", take_over=True)
    with pytest.raises(RunInProgress):
        app.delete("t")
    run_id = app.state("t").run_id
    with pytest.raises(RunInProgress):
        delete_thread(store, KEY, None, take_over=False, run_id=run_id)
    work(app)
    assert app.state("t").state["log"] == ["1", "a", "2", "a"]
    app.submit(told("3"), "t")
    app.submit(told("4"), "t", if_busy="queue")
    assert app.delete("t", take_over=True)
    assert not waiting_inputs(store, KEY)


def test_a_refused_deletion_says_that_inputs_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: it said that the thread "was deleted and created again"."""
    app = line(store, ("a", note("a")))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    app.resume("t", take_over=True)

    def no_inputs(*_: Any) -> tuple[()]:
        return ()

    monkeypatch.setattr(removing, "waiting_inputs", no_inputs)  # it comes after the look
    with pytest.raises(Conflict, match=r"an input waits .* take_over=True, which discards both"):
        app.delete("t")
    assert len(waiting_inputs(store, KEY)) == 1


def test_a_key_that_another_caller_uses_meanwhile_is_said(store: Store) -> None:
    """Was broken: the caller was told that the thread "was deleted and created again"."""
    app = line(store, ("a", note("a")))
    app.invoke(told("1"), "t", key="k")
    (known,), head = store.runs(KEY), store.head(KEY)
    another = msgspec.structs.replace(known, run_id=str(uuid4()))
    batch = Batch(key=KEY, head=head.seq if head else 0, runs=(another,), unless=known.input_digest)
    with pytest.raises(Conflict, match="has a run with this key"):
        store.commit(batch)


@pytest.mark.requirement("F1", api="Retention")
def test_retention_keeps_a_thread_for_which_an_input_comes_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: an input that came between the look and the deletion was deleted."""

    def fails(state: Trip) -> dict[str, Any]:
        raise ValueError("no")

    app = line(store, ("a", fails))
    app.submit(told("1"), "t")
    work(app)

    def submitted_before(*given: Any) -> bool:
        app.submit(told("2"), "t", if_busy="queue")
        return remove_thread(*given)

    monkeypatch.setattr("milecastle.app.upkeep.retention.remove_thread", submitted_before)
    retention = Retention(older_than=timedelta(0), failed=True)
    report = CheckpointStore(store).apply_retention("default", retention)
    assert (report.deleted, report.busy) == ((), ("t",))
    assert len(waiting_inputs(store, KEY)) == 1


@pytest.mark.requirement("F1", api="App.submit")
def test_inputs_behind_a_run_of_a_caller_that_sleeps_start_when_it_has_ended(store: Store) -> None:
    """Was broken: the line had a lane and no time, so that no worker woke the run."""

    def naps(state: Trip, ctx: Context) -> dict[str, Any]:
        if state["log"][-1] == "3":
            ctx.sleep(0.05)
        return {"log": ["slept"]}

    app = line(store, ("a", naps))
    app.submit(told("1"), "t")
    app.submit(told("2"), "t", if_busy="queue")
    assert app.invoke(told("3"), "t", discard=True, take_over=True).status == "sleeping"

    async def complete() -> None:
        async with serving(app):
            await app.await_result("t")

    asyncio.run(complete())
    assert app.state("t").state["log"] == ["3", "slept", "2", "slept"]


def test_an_input_waits_behind_a_run_that_began_after_its_caller_had_looked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused: the thread was new when its caller looked, and its run failed by then."""

    def fails(state: Trip) -> dict[str, Any]:
        raise ValueError("on purpose")

    app = line(store, ("fails", fails))
    app.submit(start(), "t")
    work(app)
    honest, looks = store.thread, list[Any]()

    def thread(key: ThreadKey) -> Any:
        looks.append(key)
        return None if len(looks) == 1 else honest(key)

    monkeypatch.setattr(store, "thread", thread)
    assert app.submit({"n": 5, "log": []}, "t", if_busy="queue").status == "queued"
    assert len(looks) > 1
