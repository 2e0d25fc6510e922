"""Saving: when an entry is due, and what a run leaves behind when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import MaxStepsExceeded, RunCancelled, UnserializableState
from milecastle.engine.plan import Progress
from milecastle.engine.position import fresh_position
from milecastle.engine.received import Received
from milecastle.engine.saving import Saver
from milecastle.stores.memory import MemoryStore
from tests.unit.engine.by_hand import head_of, journal_for, line, plan_for

GRAPH = line("a", "b")


def saver_with(**options: Any) -> tuple[Saver, Progress]:
    journal = journal_for(GRAPH)
    plan = plan_for(GRAPH, journal=journal, **options)
    progress = Progress(plan)
    progress.next = ("a",)
    return Saver(plan, journal, progress, Received(None)), progress


def test_the_interval_decides_which_steps_are_due() -> None:
    saver, _ = saver_with(interval=3)
    due: list[bool] = []
    for _ in range(7):
        batch = saver.batch("step")
        due.append(batch is not None)
        if batch is not None:
            saver.saved(batch)
    assert due == [False, False, True, False, False, True, False]
    assert not saver.is_saved


@pytest.mark.parametrize("source", ["input", "interrupt", "takeover"])
def test_entry_that_is_not_a_step_is_always_due(source: Any) -> None:
    saver, _ = saver_with(interval=100)
    assert saver.batch("step") is None
    assert saver.batch(source) is not None


def test_the_end_is_always_due_and_ends_the_record() -> None:
    saver, progress = saver_with(interval=100)
    progress.next = ()
    batch = saver.batch("step")
    assert batch is not None
    assert [run.status for run in batch.runs] == ["completed"]
    saver.saved(batch)
    assert not saver.may_record


def test_step_whose_edges_are_still_open_is_due_and_is_not_an_end() -> None:
    saver, progress = saver_with(interval=100)
    progress.next, progress.route = (), ("a",)
    batch = saver.batch("step")
    assert batch is not None
    assert [run.status for run in batch.runs] == ["running"]


def test_nothing_may_be_recorded_while_a_batch_is_on_its_way() -> None:
    saver, _ = saver_with()
    seen: list[bool] = []
    batch = saver.batch("input")
    assert batch is not None
    seen.append(saver.may_record)
    saver.saved(batch)
    seen.append(saver.may_record)
    batch = saver.results([saver.result("1:a", {"n": 1}, "a")])
    seen.append(saver.may_record)
    saver.saved(batch)
    seen.append(saver.may_record)
    assert seen == [False, True, False, True]


def test_flush_saves_what_the_interval_left() -> None:
    saver, progress = saver_with(interval=5)
    assert saver.flush() is None
    progress.step = 2
    saver.batch("step")
    batch = saver.flush()
    assert batch is not None
    saver.saved(batch)
    assert [(entry.source, entry.step) for entry in batch.entries] == [("step", 2)]
    assert saver.is_saved
    assert saver.flush() is None


def test_the_note_goes_with_the_first_entry_alone() -> None:
    saver, _ = saver_with(note="changed")
    notes: list[str] = []
    for _ in range(2):
        batch = saver.batch("step")
        assert batch is not None
        saver.saved(batch)
        notes.append(batch.entries[0].note)
    assert notes == ["changed", ""]


def test_a_failure_brings_along_what_was_not_saved() -> None:
    saver, progress = saver_with(interval=5)
    progress.step = 2
    saver.batch("step")
    batch = saver.last_batch(ValueError("boom"), "run")
    assert [entry.step for entry in batch.entries] == [2]
    assert batch.failure is not None
    assert (batch.failure.node, batch.failure.failure_class) == ("a", "system")
    assert [run.status for run in batch.runs] == ["failed"]


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [(RunCancelled(), "execution"), (KeyboardInterrupt(), "system"), (SystemExit(3), "system")],
)
def test_a_cancelled_run_has_a_failure(error: BaseException, failure_class: str) -> None:
    """Fails if a run that was stopped is closed without one, as it was."""
    saver, _ = saver_with()
    batch = saver.last_batch(error, "run", 2)
    assert [run.status for run in batch.runs] == ["cancelled"]
    assert batch.failure is not None
    assert (batch.failure.failure_class, batch.failure.resumable) == (failure_class, True)
    assert (batch.failure.error_type, batch.failure.attempt) == (type(error).__name__, 2)


def test_of_several_nodes_none_is_blamed() -> None:
    saver, progress = saver_with()
    progress.next = ("a", "b")
    batch = saver.last_batch(MaxStepsExceeded(max=1, reached=2), "run")
    assert batch.failure is not None
    assert (batch.failure.node, batch.failure.failure_class) == (None, "execution")


def test_what_cannot_be_stored_is_left_out_of_the_record() -> None:
    saver, progress = saver_with(interval=2)
    progress.values = {"n": object()}
    saver.batch("step")
    with pytest.raises(UnserializableState):
        saver.batch("step")
    assert saver.may_record
    batch = saver.last_batch(ValueError("boom"), "run")
    assert (batch.entries, [run.status for run in batch.runs]) == ((), ["failed"])


def at_the_head(**options: Any) -> Saver:
    """The saver of a run that begins at the newest entry of a thread."""
    store, first = MemoryStore(), journal_for(GRAPH)
    store.commit(first.append(fresh_position(GRAPH.schema), "input"))
    position = head_of(GRAPH, store)
    journal = journal_for(GRAPH, position)
    plan = plan_for(GRAPH, position=position, journal=journal, **options)
    return Saver(plan, journal, Progress(plan), Received(None))


@pytest.mark.parametrize("opening", [None, "takeover", "answer"])
def test_run_that_is_stopped_at_once_marks_where_it_began(opening: Any) -> None:
    """Fails if it leaves no entry: the head is then of an older run than the newest record."""
    batch = at_the_head(opening=opening).last_batch(RunCancelled(), "run")
    assert [entry.source for entry in batch.entries] == ["takeover"]
    assert batch.failure is not None


@pytest.mark.parametrize("opening", ["update", "fork"])
def test_run_that_brings_a_state_and_is_stopped_at_once_writes_nothing_of_it(opening: Any) -> None:
    """A migrated state, or that of a file. Fails if it is written as where the run began."""
    batch = at_the_head(opening=opening).last_batch(RunCancelled(), "run")
    assert batch.entries == ()
    assert batch.failure is not None
