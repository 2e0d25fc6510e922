"""Flows: durable functions, crashed at every effect, changed, taken over and drained."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from milecastle import (
    App,
    Conflict,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    ResumeRefused,
    RunTimeout,
    StepFailed,
    TimedOut,
    again,
    changed,
    current,
    first,
    flow,
    gather,
    interrupt,
    new_id,
    now,
    receive,
    sleep,
    step,
)
from milecastle.app.threads.log import log_codec_for
from milecastle.app.threads.pruning import prune_thread
from milecastle.app.with_store import with_store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite.store import SqliteStore
from milecastle.testing import crash_everywhere
from milecastle.testing.clock import ManualClock


@dataclass
class Receipt:
    amount: int


ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    ran.clear()


@step
def charge(amount: int) -> Receipt:
    ran["charge"] += 1
    return Receipt(amount)


@step(name="fail")
def fail() -> None:
    ran["fail"] += 1
    raise ValueError("no")


def mail(to: int) -> str:
    ran["mail"] += 1
    return f"mail {to}"


@step
async def acharge(amount: int) -> Receipt:
    return Receipt(amount)


@flow
def every_call(order: int, more: int = 3) -> list[Any]:
    receipt, failed = charge(order), ""
    try:
        fail()
    except StepFailed as error:
        failed = error.error_type
    since, id = now(), new_id()
    sleep(10)
    sure = interrupt("sure?", answer=bool)
    went = receive("go")
    late = receive("never", timeout=5, default="late")
    both = gather(lambda: [step(mail, 1), receive("go")], lambda: step(mail, 2))
    asked = interrupt("quick?", answer=str, within=30, otherwise="nobody")
    won = first(lambda: receive("nothing"), lambda: step(mail, 9))
    assert now() >= since
    assert len(id) == 32
    return [receipt, failed, sure, went, late, both, asked, won, charge(order + more)]


@flow
async def every_async_call(order: int) -> list[Any]:
    async def part(number: int) -> list[Any]:
        return [await acharge(number), await receive("go"), await acharge(number + 100)]

    receipt = await acharge(order)
    sleep(timedelta(seconds=10))
    sure = interrupt("sure?", answer=bool)
    parts = await gather(part(1), part(2), acharge(3), step(mail, 4))
    won = await first(receive("nothing"), acharge(5))
    return [receipt, sure, parts, won]


def answer(question: Any) -> Any:
    return True if question.question == "sure?" else "soon"


def send(topics: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("go", "went") for topic in topics[:1] if topic == "go"]


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("declared", [every_call, every_async_call])
def test_no_crash_changes_the_outcome_of_a_flow(declared: Any, kind: str, tmp_path: Path) -> None:
    """Fails if the waits that ended are not recorded with the next entry, or if a caught failure
    is not recorded with the entry after it."""
    store = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/runs.db"
    app = declared.compile(store=store)

    report = crash_everywhere(app, {"order": 7}, answer=answer, send=send)

    assert report.crashes >= 30
    assert not report.mismatches


@pytest.mark.requirement("D1")
def test_calls_are_one_entry_each_and_results_keep_their_types() -> None:
    @flow
    def pay(order: int) -> Receipt:
        charge(order)
        return charge(order + 1)

    app = pay.compile(store=MemoryStore())

    result = app.invoke(pay.input(7), thread="t")

    notes = [entry.note for entry in app.history("t") if entry.note]
    assert result.state["result"] == Receipt(8)
    assert notes == ["2 charge", "1 charge"]


def test_recorded_results_cannot_be_changed_by_the_code() -> None:
    """Fails if a record holds the value that the code was given, and not its bytes."""

    @flow
    def change() -> list[int]:
        found: list[int] = step(list, (1, 2))
        found.append(len(found))
        step(mail, 1)
        interrupt("go on?")
        return found

    app = change.compile(store=MemoryStore())
    app.invoke({}, thread="t")

    assert app.resume("t", answer=True).state["result"] == [1, 2, 2]


def test_a_step_outside_of_a_flow_is_an_ordinary_function() -> None:
    assert charge(3) == Receipt(3)
    assert step(mail, 3) == "mail 3"
    with pytest.raises(InvalidRequest, match="outside of one"):
        sleep(1)


@pytest.mark.requirement("D1")
def test_failed_steps_are_retried_and_repeated_by_a_retry_of_the_run() -> None:
    """Fails if a failure nobody caught is recorded: the retry would fail with it again."""

    @flow
    def fails() -> str:
        charge(1)
        return str(step(flaky, retry=2, name="flaky"))

    def flaky() -> str:
        ran["flaky"] += 1
        if ran["flaky"] < 4:
            raise OSError("busy")
        return "done"

    app = fails.compile(store=MemoryStore())
    with pytest.raises(ExecutionError) as failed:
        app.invoke({}, thread="t")

    assert isinstance(failed.value.cause, StepFailed)
    assert ran["flaky"] == 2
    assert app.resume("t").state["result"] == "done"
    assert ran == {"charge": 1, "flaky": 4}


def test_a_failure_in_a_part_is_raised_after_the_other_parts() -> None:
    @flow
    def parts() -> Any:
        try:
            gather(lambda: step(mail, 1), fail, lambda: receive("never"))
        except StepFailed as error:
            interrupt("go on?")
            return error.error_type

    app = parts.compile(store=MemoryStore())
    assert app.invoke({}, thread="t").status == "interrupted"

    assert app.resume("t", answer=True).state["result"] == "ValueError"
    assert ran == {"mail": 1, "fail": 1}


def test_a_step_runs_out_of_time() -> None:
    import time

    @flow
    def slow() -> str:
        try:
            step(time.sleep, 5, timeout=0.02)
        except StepFailed as error:
            return error.error_type
        return ""

    assert slow.compile(store=MemoryStore()).invoke({}, thread="t").state["result"] == "NodeTimeout"


def test_a_flow_has_no_portable_files(tmp_path: Path) -> None:
    """A file would lack the recorded calls: they would be made again."""
    with pytest.raises(InvalidRequest, match="no portable files"):
        every_call.compile(store=MemoryStore(), checkpoint_dir=tmp_path)


def test_the_timeout_of_a_run_stops_a_flow_between_two_calls() -> None:
    """Fails if a stop is looked for after the flow alone: its function would run to its end."""
    import time

    @step
    def slow(at: int) -> int:
        time.sleep(0.03)
        return at

    @flow
    def long() -> int:
        return sum(slow(at) for at in range(9))

    app = long.compile(store=MemoryStore())
    with pytest.raises(RunTimeout):
        app.invoke({}, thread="t", options=ExecutionOptions(timeout=0.05))

    assert 0 < len([entry for entry in app.history("t") if entry.note]) < 9
    assert app.resume("t").state["result"] == 36


def test_again_restarts_the_flow_without_its_calls() -> None:
    @flow
    def count(number: int) -> Any:
        charge(number)
        return number if number == 3 else again(number + 1)

    app = count.compile(store=MemoryStore())

    assert app.invoke(count.input(0), thread="t").state["result"] == 3
    assert ran == {"charge": 4}


def test_a_deadline_without_default_is_an_error() -> None:
    @flow
    def waits() -> str:
        try:
            receive("never", timeout=1)
        except TimedOut:
            return "late"
        return ""

    store, clock = MemoryStore(), ManualClock(1_700_000_000_000_000)
    app = with_store(waits.compile(store=store), store, clock=clock)
    assert app.invoke({}, thread="t").status == "sleeping"
    clock.advance(2)

    assert app.invoke({}, thread="t").state["result"] == "late"


# ---- other code


def original() -> Any:
    charge(1)
    step(mail, 2)
    interrupt("go on?")
    return step(mail, 3, name="last")


def inserted() -> Any:
    charge(1)
    step(mail, 9, name="new")
    step(mail, 2)
    interrupt("go on?")


def removed() -> Any:
    charge(1)
    interrupt("go on?")


def ended() -> Any:
    charge(1)


def waits_elsewhere() -> Any:
    charge(1)
    step(mail, 2)
    receive("go")


@pytest.mark.requirement("D2")
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (inserted, "call 2 was step 'mail', and the code now makes step 'new'"),
        (removed, "call 2 was step 'mail', and the code now makes interrupt 'go on?'"),
        (ended, "call 2 was step 'mail', and the code ends without it"),
        (waits_elsewhere, "call 3 was interrupt 'go on?', and the code now makes receive 'go'"),
    ],
)
def test_code_with_other_calls_is_refused_and_nothing_is_written(code: Any, why: str) -> None:
    """Fails if records are found by their number alone, or if the end is not compared."""
    store = MemoryStore()
    app = flow(name="f")(original).compile(store=store)
    app.invoke({}, thread="t")
    head, ran_before = store.head(app_key(app)), dict(ran)

    with pytest.raises(ResumeRefused) as refused:
        flow(name="f")(code).compile(store=store).resume("t", answer=True)

    assert why in str(refused.value)
    assert dict(ran) == ran_before
    assert [e.source for e in app.history("t")][:2] == ["takeover", "answer"]
    assert app.resume("t").state["result"] == "mail 3"
    assert head is not None


def app_key(app: App[Any]) -> Any:
    return next(iter(app.history("t"))).key


def test_new_code_that_only_a_sleeping_flow_meets_writes_nothing() -> None:
    @flow(name="f")
    def old() -> None:
        charge(1)
        sleep(5)

    @flow(name="f")
    def new() -> None:
        step(mail, 1)

    store, clock = MemoryStore(), ManualClock(1_700_000_000_000_000)
    app = with_store(old.compile(store=store), store, clock=clock)
    app.invoke({}, thread="t")
    clock.advance(6)
    head = store.head(app_key(app))

    with pytest.raises(ResumeRefused, match="call 1 was step 'charge'"):
        with_store(new.compile(store=store), store, clock=clock).resume("t")

    assert store.head(app_key(app)) == head
    assert app.resume("t").status == "completed"


@pytest.mark.requirement("D2")
def test_changed_guards_new_calls() -> None:
    @flow(name="f")
    def old() -> Any:
        charge(1)
        interrupt("go on?")
        return "old"

    @flow(name="f")
    def new() -> Any:
        charge(1)
        if changed("mail"):
            step(mail, 1)
        interrupt("go on?")
        return "new" if changed("end") else "old"

    store = MemoryStore()
    before, app = old.compile(store=store), new.compile(store=store)
    before.invoke({}, thread="begun")
    app.invoke({}, thread="new")

    assert app.resume("begun", answer=1).state["result"] == "new"
    assert app.resume("new", answer=1).state["result"] == "new"
    assert ran == {"charge": 2, "mail": 1}


@pytest.mark.requirement("D2")
def test_a_call_added_to_a_part_that_has_ended_is_refused() -> None:
    """Fails if a call without a record is compared with the records of its own branch alone."""

    @flow(name="f")
    def old() -> Any:
        gather(lambda: charge(1), lambda: charge(2))
        interrupt("go on?")

    @flow(name="f")
    def new() -> Any:
        gather(lambda: [charge(1), step(mail, 1)], lambda: charge(2))
        interrupt("go on?")

    store = MemoryStore()
    old.compile(store=store).invoke({}, thread="t")

    with pytest.raises(ResumeRefused, match=r"call 2 was interrupt .* makes call 1\.0\.2, step"):
        new.compile(store=store).resume("t", answer=1)


# ---- several writers


@pytest.mark.requirement("D3")
def test_a_flow_that_lost_its_thread_cannot_continue() -> None:
    """Fails if the refused commit is an ordinary exception: the code would catch it."""

    def number(at: int) -> int:
        ran[str(at)] += 1
        if at == 1 and ran["1"] == 1:
            app.resume("t", take_over=True)
        return at

    @flow
    def numbers() -> list[Any]:
        found: list[Any] = []
        for at in range(3):
            try:
                found.append(step(number, at))
            except Exception as error:
                found.append(type(error).__name__)
        return found

    app = numbers.compile(store=MemoryStore())
    with pytest.raises(Conflict):
        app.invoke({}, thread="t")

    assert app.state("t").state["result"] == [0, 1, 2]
    assert ran["0"] == 1
    assert ran["2"] == 1


def test_calls_beside_each_other_need_gather() -> None:
    @flow
    async def beside() -> Any:
        return await asyncio.gather(acharge(1), acharge(2))

    with pytest.raises(ExecutionError, match="InvalidRequest"):
        beside.compile(store=MemoryStore()).invoke({}, thread="t")


def test_steps_have_their_own_idempotency_keys_and_record_nothing_else() -> None:
    keys: list[str] = []

    @step
    def note() -> None:
        keys.append(current().idempotency_key)
        with pytest.raises(InvalidRequest, match="records its own calls"):
            current().once("x", len, "")
        with pytest.raises(InvalidRequest, match="records its own calls"):
            interrupt("?")

    @flow
    def notes() -> None:
        gather(note, note)
        interrupt("go on?")
        note()

    app = notes.compile(store=MemoryStore())
    app.invoke({}, thread="t")
    app.resume("t", answer=1)

    assert len({*keys}) == 3


def test_parallel_results_share_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")

    @step
    async def wait(at: int) -> int:
        await asyncio.sleep(0.01)
        return at

    @flow
    async def wide() -> int:
        return sum(await gather(*(wait(at) for at in range(100))))

    app = wide.compile(store=store)
    assert asyncio.run(app.ainvoke({}, thread="t")).state["result"] == 4950
    assert len(list(app.history("t"))) < 50


@pytest.mark.requirement("D1")
def test_a_failure_that_was_caught_is_recorded_when_the_flow_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its control, a flow that forgets it: the step is called again."""
    from milecastle.engine.calls import FAILED
    from milecastle.engine.flow import FlowRun

    @flow
    def catching() -> str:
        try:
            fail()
        except StepFailed as error:
            interrupt("go on?")
            return error.error_type
        return ""

    def forget(self: FlowRun) -> None:
        self.log.note([one for one in self.take_new() if FAILED not in one.record])

    app = catching.compile(store=MemoryStore())
    for thread, calls in (("t", 1), ("control", 3)):
        app.invoke({}, thread=thread)
        assert app.resume(thread, answer=1).state["result"] == "ValueError"
        assert ran["fail"] == calls
        monkeypatch.setattr(FlowRun, "pause", forget)


# ---- time travel


@pytest.mark.requirement("D3")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_flow_is_forked_at_a_call_and_pruned_and_not_updated(kind: str, tmp_path: Path) -> None:
    """Fails if a fork keeps the entry that began the flow: new steps would have old keys."""
    keys: list[str] = []

    def note(at: int) -> int:
        keys.append(current().idempotency_key)
        return at

    @flow
    def notes(order: int) -> list[int]:
        found: list[int] = [step(note, order), step(note, order + 1)]
        interrupt("go on?")
        return [*found, step(note, order + 2)]

    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "runs.db")
    app = notes.compile(store=store)
    app.invoke(notes.input(1), thread="t")
    begun = next(entry for entry in app.history("t") if entry.note == "1 note")

    with pytest.raises(InvalidRequest, match="is in a flow"):
        app.update_state("t", {"order": 5})
    app.fork("t", begun.seq, as_thread="other")
    assert app.resume("other").status == "interrupted"
    assert len(keys) == 3
    assert len({*keys}) == 3
    prune_thread(store, log_codec_for(app.graph), app_key(app), keep_last=1)
    for thread in ("t", "other"):
        assert app.resume(thread, answer=1).state["result"] == [1, 2, 3]
    assert len({*keys}) == 5
