"""R1, R2: the records of runs on threads, and the failures of those that did not end well."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Context,
    ExecutionError,
    ExecutionOptions,
    MaxStepsExceeded,
    MilecastleError,
    Retry,
    RunCancelled,
    StateGraph,
    Store,
    ThreadKey,
    Unavailable,
    interrupt,
    open_store,
)
from milecastle.model.run import Failure, RunRecord
from milecastle.ports.store import Batch
from milecastle.testing import ManualClock, WrappedStore, with_store
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")
SECRET = "hunter2"
ENDED_BADLY = ("failed", "cancelled", "superseded")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


class State(TypedDict):
    n: int
    word: str


class Job:
    """A graph of two nodes; ``act`` is what the second does when it is next run.

    A node that is given nothing but the state leaves no trace before it returns.
    """

    def __init__(self, store: Store, *, plain: bool = False, **options: Any) -> None:
        self.act: Callable[[Context], object] = lambda ctx: None
        graph: StateGraph[State] = StateGraph(State, name="job")
        graph.add_node("first", lambda state: {"n": state["n"] + 1})
        graph.add_node("second", self._plain if plain else self._second, **options)
        graph.add_edges(START, "first", "second", END)
        self.clock = ManualClock()
        self.app: App[State] = with_store(graph.compile(), store, clock=self.clock)

    def _second(self, state: State, ctx: Context) -> dict[str, Any]:
        self.act(ctx)
        return {"n": state["n"] + 1}

    def _plain(self, state: State) -> dict[str, Any]:
        failing()
        return {}

    def begin(self) -> None:
        self.app.invoke({"n": 0, "word": SECRET}, "t")


def failing(ctx: Context | None = None) -> None:
    raise ValueError("not today")


def runs_of(store: Store) -> list[RunRecord]:
    """Oldest first."""
    return list(store.runs(KEY))[::-1]


def failures_of(store: Store) -> list[Failure | None]:
    return [store.failure(KEY, run.run_id) for run in runs_of(store)]


@pytest.mark.requirement("R1", api="Store.runs")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_run_has_one_record_through_interrupts_and_sleeps(kind: str, stores: Stores) -> None:
    """Every field, before and after; one id from the input to the end.

    Mutations tried: ``_resumed`` in ``app/runs/starting.py`` begins a new run after an
    interrupt; ``Journal.turn`` keeps ``ended_at``; a store that drops ``wake_at``. Each fails here.
    """
    store = stores.open(kind)
    job = Job(store)
    job.act = lambda ctx: interrupt("go on?", answer=bool)
    job.begin()
    [waiting] = runs_of(store)
    assert uuid.UUID(waiting.run_id).version == 7
    assert (waiting.key, waiting.graph, waiting.mode) == (KEY, "job", "incremental")
    assert waiting.fingerprint == job.app.fingerprint
    assert (waiting.status, waiting.ended_at, waiting.wake_at) == ("interrupted", None, None)
    assert (waiting.retry_count, waiting.previous_run_id) == (0, None)
    assert waiting.started_at == job.clock.now()

    def ask_and_sleep(ctx: Context) -> None:
        interrupt("go on?", answer=bool)
        ctx.sleep(60)

    job.act = ask_and_sleep
    job.app.resume("t", True)
    [sleeping] = runs_of(store)
    assert (sleeping.run_id, sleeping.status) == (waiting.run_id, "sleeping")
    assert sleeping.wake_at == job.clock.now() + 60_000_000
    job.clock.advance(61)
    assert job.app.resume("t").run_id == waiting.run_id
    [ended] = runs_of(store)
    assert (ended.run_id, ended.status, ended.wake_at) == (waiting.run_id, "completed", None)
    assert (ended.started_at, ended.ended_at) == (waiting.started_at, job.clock.now())
    assert failures_of(store) == [None]


@pytest.mark.requirement("R1", api="RunRecord.previous_run_id")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("plain", [True, False])
def test_each_resume_after_a_failure_names_the_run_before(
    kind: str, stores: Stores, plain: bool
) -> None:
    """``retry_count`` goes up by exactly one, also if a run fails before its first checkpoint.

    Mutations tried: ``Saver._close`` without its ``mark``, as it was: the third run named the
    first, with the same count. ``retry_count`` not raised in ``_new_record``. Both fail here.
    """
    store = stores.open(kind)
    job = Job(store, plain=plain)
    job.act = failing
    with pytest.raises(ExecutionError):
        job.begin()
    for _ in range(3):
        with pytest.raises(ExecutionError):
            job.app.resume("t")
    runs = runs_of(store)
    assert [run.retry_count for run in runs] == [0, 1, 2, 3]
    assert [run.previous_run_id for run in runs] == [None, *(run.run_id for run in runs[:-1])]
    assert [run.status for run in runs] == ["failed"] * 4
    assert None not in failures_of(store)
    assert job.app.state("t").run_id == runs[-1].run_id


@pytest.mark.requirement("R1", api="Store.runs")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_newest_run_is_newest_whatever_the_clocks_say(kind: str, stores: Stores) -> None:
    """Mutation tried: runs sorted by ``started_at``, as they were. It fails on every store."""
    store = stores.open(kind)
    job = Job(store)
    job.act = failing
    with pytest.raises(ExecutionError):
        job.begin()
    job.clock.advance(-3600)
    job.act = lambda ctx: None
    last = job.app.resume("t")
    newest, before = store.runs(KEY)
    assert newest.run_id == last.run_id
    assert newest.started_at < before.started_at
    assert newest.previous_run_id == before.run_id


def leaving(job: Job) -> None:
    job.act = lambda ctx: sys.exit(3)
    job.begin()


def interrupting(job: Job) -> None:
    def press(ctx: Context) -> None:
        raise KeyboardInterrupt

    job.act = press
    job.begin()


def raising(job: Job) -> None:
    job.act = failing
    job.begin()


def too_long(job: Job) -> None:
    options = ExecutionOptions(max_steps=1)
    job.app.invoke({"n": 0, "word": SECRET}, "t", options=options)


ENDS: dict[str, tuple[Callable[[Job], None], type[BaseException], str, str, str, str]] = {
    "raised": (raising, ExecutionError, "failed", "execution", "ValueError", "second"),
    "limit": (too_long, MaxStepsExceeded, "failed", "execution", "MaxStepsExceeded", "second"),
    "exit": (leaving, SystemExit, "cancelled", "system", "SystemExit", "second"),
    "stop": (interrupting, KeyboardInterrupt, "cancelled", "system", "KeyboardInterrupt", "second"),
}


@pytest.mark.requirement("R2", api="Store.failure")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_did_not_end_well_has_one_failure(kind: str, end: str, stores: Stores) -> None:
    """Class, resumable, node, type, message, places, attempt, time; no value of the state.

    Mutations tried: ``last_batch`` without a failure for what is not an ``Exception``, as it was;
    a class that is always ``system``; the message made of the state. Each fails here.
    """
    do, raised, status, failure_class, error_type, node = ENDS[end]
    store = stores.open(kind)
    job = Job(store)
    with pytest.raises(raised):
        do(job)
    [run], [failure] = runs_of(store), failures_of(store)
    assert failure is not None
    assert (run.status, run.ended_at) == (status, job.clock.now())
    assert (failure.run_id, failure.failure_class) == (run.run_id, failure_class)
    assert (failure.error_type, failure.node, failure.resumable) == (error_type, node, True)
    assert (failure.attempt, failure.time) == (1, job.clock.now())
    assert SECRET not in repr(failure)
    job.act = lambda ctx: None
    assert job.app.resume("t").status == "completed"
    assert [found is None for found in failures_of(store)] == [False, True]


@pytest.mark.requirement("R2", api="ExecutionOptions.cancel")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_cancelled_run_has_one_failure(kind: str, stores: Stores) -> None:
    """Cancelled between two steps, from inside and from outside.

    Mutation tried: a cancelled run closed without a failure, as it was.
    """
    store = stores.open(kind)
    job = Job(store)
    event = Event()
    event.set()
    options = ExecutionOptions(cancel=event)
    with pytest.raises(RunCancelled):
        job.app.invoke({"n": 0, "word": SECRET}, "t", options=options)
    job.act = lambda ctx: interrupt("go on?")
    job.app.resume("t")
    assert job.app.cancel("t")
    runs, failures = runs_of(store), failures_of(store)
    assert [run.status for run in runs] == ["cancelled", "cancelled"]
    assert [found and found.error_type for found in failures] == ["RunCancelled", "RunCancelled"]
    assert [found and found.resumable for found in failures] == [True, True]


@pytest.mark.requirement("R2", "X6", api="Failure.attempt")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_failure_names_the_attempt_that_failed(kind: str, stores: Stores) -> None:
    """The last of three; the first, if the error is not one that is tried again.

    Mutations tried: ``attempt=1``, as it was; the number of attempts that the policy allows. Both
    fail here.
    """
    store = stores.open(kind)
    job = Job(store, retry=Retry(attempts=3, delay=0, on=(ValueError,)))
    job.act = failing
    with pytest.raises(ExecutionError):
        job.begin()

    def fail_differently(ctx: Context) -> None:
        raise ValueError("again") if ctx.attempt == 1 else TypeError("not tried again")

    job.act = fail_differently
    with pytest.raises(ExecutionError):
        job.app.resume("t")
    assert [found and found.attempt for found in failures_of(store)] == [3, 2]


class Dying(WrappedStore):
    """From some commit on nothing arrives any more, as if the process had been killed."""

    commits_left = 10**6

    def commit(self, batch: Batch) -> None:
        if self.commits_left == 0:
            raise Unavailable("killed")
        self.commits_left -= 1
        super().commit(batch)


TAKERS: dict[str, Callable[[Job, Store], object]] = {
    "resume": lambda job, store: job.app.resume("t"),
    "invoke": lambda job, store: job.begin(),
    "update_state": lambda job, store: job.app.update_state("t", {"n": 7}),
    "fork": lambda job, store: job.app.fork("t", 1),
    "put": lambda job, store: CheckpointStore(store).put(KEY, {"n": 1}),
    "discard": lambda job, store: job.app.invoke({"n": 5, "word": ""}, "t", discard=True),
}


@pytest.mark.requirement("R2", api="Store.failure")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("taker", TAKERS)
def test_takeover_closes_the_run_that_had_the_thread(kind: str, taker: str, stores: Stores) -> None:
    """A killed run is superseded, and has its failure, with the first thing that is written.

    Mutations tried: ``Journal.supersede`` without a failure; ``supersede_running`` left out of
    ``Threads._append`` and of ``CheckpointStore._append``, as it was: the run said ``running`` for
    good. Each fails here.
    """
    store = Dying(stores.open(kind))
    job = Job(store, retry=Retry(attempts=2, delay=0))
    job.act = failing
    store.commits_left = 4  # input, first, the first attempt, the second attempt
    with pytest.raises((MilecastleError, ExecutionError)):
        job.begin()
    assert [run.status for run in runs_of(store)] == ["running"]
    store.commits_left = 10**6
    job.act = lambda ctx: None
    if taker in ("resume", "invoke"):
        job.act = failing  # it was killed in its last attempt: nothing is left to try
        with pytest.raises(ExecutionError):
            TAKERS[taker](job, store)
    else:
        TAKERS[taker](job, store)
    killed, failure = runs_of(store)[0], failures_of(store)[0]
    assert killed.status == "superseded"
    assert failure is not None
    assert (failure.run_id, failure.failure_class) == (killed.run_id, "system")
    assert (failure.resumable, failure.node, failure.attempt) == (True, "second", 2)
    for run, found in zip(runs_of(store), failures_of(store), strict=True):
        assert (found is not None) == (run.status in ENDED_BADLY)


KILLED = """
import os, signal, sys
from typing import TypedDict
from milecastle import END, START, StateGraph
class State(TypedDict):
    n: int
graph = StateGraph(State)
@graph.node
def first(state: State) -> dict:
    return {"n": 1}
@graph.node
def second(state: State) -> dict:
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": 2}
graph.add_edges(START, "first", "second", END)
print(graph.compile(store=sys.argv[1]).invoke({"n": 0}, thread="t").status)
"""


@pytest.mark.requirement("R2", api="open_store")
@pytest.mark.parametrize("url", ["file://{}/store", "sqlite:///{}/runs.db"])
def test_a_process_that_was_killed_has_its_failure_from_the_next(url: str, tmp_path: Path) -> None:
    """``kill -9``, for real. Mutation tried: as above."""
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    place = url.format(tmp_path)
    command = [sys.executable, str(script), place]
    killed = subprocess.run([*command, "die"], capture_output=True, check=False, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    with_store = open_store(place)
    assert [run.status for run in runs_of(with_store.store)] == ["running"]
    assert failures_of(with_store.store) == [None]
    again = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert again.stdout == "completed\n"
    assert [run.status for run in runs_of(with_store.store)] == ["superseded", "completed"]
    first, second = failures_of(with_store.store)
    assert second is None
    assert first is not None
    assert (first.error_type, first.node) == ("Superseded", "second")
    with_store.close()
