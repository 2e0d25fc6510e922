"""Whatever happens to a thread, everything that names its status agrees, and retention heeds it.

Random operations: run, answer, fork, update, fail, be cancelled, exit, be killed, be run by a
module that cannot be loaded, sleep; on hosts whose clocks differ. ``MILECASTLE_SEQUENCES`` says how
many sequences the long form takes (``just proof``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Event
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Context,
    ExecutionOptions,
    MilecastleError,
    Retention,
    Retry,
    StateGraph,
    Store,
    ThreadKey,
    Unavailable,
    append,
    interrupt,
)
from milecastle.app.threads.children import children_of, own_threads
from milecastle.cli.unloadable import commit_unloadable
from milecastle.model.checkpoint import HOLDING, Entry
from milecastle.model.run import TRANSITIONS, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock, WrappedStore, with_store
from milecastle.views.lines import thread_line
from milecastle.views.versions import thread_fit
from tests.every_store import EVERY_KIND, Stores
from tests.seeds import seeds

KEY = ThreadKey("default", "t")
LENGTH = 14
ACTIONS = ("return", "return", "return", "ask", "ask", "sleep", "fail", "exit", "cancel")
DID_NOT_END_WELL = ("failed", "cancelled", "superseded")


class State(TypedDict):
    n: int
    log: Annotated[list[str], append]


class Mortal(WrappedStore):
    """A store whose user may die: from then on nothing that the process writes arrives."""

    commits_left: int | None = None

    def commit(self, batch: Batch) -> None:
        if self.commits_left is not None:
            if self.commits_left == 0:
                raise Unavailable("the process was killed")
            self.commits_left -= 1
        super().commit(batch)


class Play:
    """What each node does when it is next run."""

    def __init__(self) -> None:
        self.actions: dict[str, str] = {}
        self.cancel = Event()

    def act(self, name: str, ctx: Context) -> dict[str, Any]:
        action = self.actions.get(name, "return")
        if action == "ask":
            interrupt(f"may {name}?", answer=int)
        elif action == "sleep":
            ctx.sleep(100)
        elif action == "fail":
            raise ValueError(name)
        elif action == "exit":
            raise SystemExit(3)
        elif action == "cancel":
            self.cancel.set()
        return {"log": [name]}


def build(play: Play) -> App[State]:
    """START, one node, two branches of which one is a subgraph, one node that is retried, END."""

    def node(name: str) -> Callable[[State, Context], dict[str, Any]]:
        def run(state: State, ctx: Context) -> dict[str, Any]:
            return play.act(name, ctx)

        return run

    inner: StateGraph[State] = StateGraph(State)
    inner.add_node("inner", node("inner"))
    inner.add_edges(START, "inner", END)
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("a", node("a"))
    graph.add_node("b", node("b"))
    graph.add_node("sub", inner.compile())
    graph.add_node("d", node("d"), retry=Retry(attempts=2, delay=0))
    graph.add_edges(START, "a", "b", "d", END)
    graph.add_edges("a", "sub", "d")
    return graph.compile(interrupt_before=["d"])


class Life:
    """One thread and everything that is done to it."""

    def __init__(self, store: Store, random: Random) -> None:
        self.random = random
        self.store = Mortal(store)
        self.play = Play()
        self.done: list[str] = []
        skew = random.choice([0, 50_000, -50_000, 10**9])
        start = 1_700_000_000_000_000
        self.clocks = (ManualClock(start, series=1), ManualClock(start + skew, series=2))
        app = build(self.play)
        self.hosts = [with_store(app, self.store, clock=clock) for clock in self.clocks]
        self.direct = [CheckpointStore(self.store, clock=clock) for clock in self.clocks]

    def do_something(self) -> None:
        """One operation by one host, whether it is refused or not."""
        random, play = self.random, self.play
        host = random.randrange(2)
        app, direct, clock = self.hosts[host], self.direct[host], self.clocks[host]
        for each in self.clocks:
            each.advance(random.choice([0, 0, 1e-6, 1, 150]))
        play.actions = {name: random.choice(ACTIONS) for name in ("a", "b", "inner", "d")}
        play.cancel.clear()
        self.store.commits_left = random.choice([None, None, None, None, 0, 1, 2, 3])
        options = ExecutionOptions(cancel=play.cancel)
        operations: dict[str, Callable[[], object]] = {
            "invoke": lambda: app.invoke({"n": random.randrange(2)}, "t", options=options),
            "resume": lambda: app.resume("t", options=options),
            "discard": lambda: app.invoke({"n": 5}, "t", discard=True, options=options),
            "cancel": lambda: app.cancel("t"),
            "answer": lambda: app.resume("t", answers=self._answers(), options=options),
            "fork": lambda: app.fork("t", self._seq()),
            "fork to another": lambda: app.fork("t", self._seq(), f"t{clock.new_id()}"),
            "update": lambda: app.update_state("t", {"n": 7}, self._seq()),
            "put": lambda: direct.put(KEY, {"n": 1}, next=random.choice([(), ("d",)])),
            "unloadable": lambda: commit_unloadable(
                self.store, KEY, "incremental", ImportError("broken"), clock
            ),
        }
        weights = (5, 4, 1, 1, 4, 2, 1, 1, 1, 2)
        name = random.choices(list(operations), weights)[0]
        self.done.append(f"{name} {play.actions} {self.store.commits_left}")
        try:
            operations[name]()
        except (MilecastleError, SystemExit):
            pass
        finally:
            self.store.commits_left = None

    def _seq(self) -> int | None:
        seqs = [entry.seq for entry in self.store.history(KEY)]
        return self.random.choice([*seqs, None])

    def _answers(self) -> dict[str, int]:
        found = [each.id for each in self.hosts[0].state("t").interrupts if each.asks]
        return dict.fromkeys(found[: self.random.randint(1, 2)], 1)

    def check(self) -> None:
        """Everything that names a status names the same, and it is that of the log."""
        for info in [*own_threads(self.store, "default")]:
            self._check_thread(info)
        head = self._head()
        assert head is None or self.store.thread(KEY), "a thread that has a head is not listed"
        running = [run for run in self.store.runs(KEY) if run.status == "running"]
        assert [run.run_id for run in running] in ([], [head.run_id if head else ""])
        for run in self.store.runs(KEY):
            has_failure = self.store.failure(KEY, run.run_id) is not None
            assert has_failure == (run.status in DID_NOT_END_WELL), run.status
        self._check_children()

    def _check_children(self) -> None:
        """An unfinished run of a subgraph is one that the step at the head will find again."""
        began = next((e.id for e in self.store.history(KEY) if e.source not in HOLDING), "")
        for child in children_of(self.store, KEY):
            for run in self.store.runs(child.key):
                has_failure = self.store.failure(child.key, run.run_id) is not None
                assert has_failure == (run.status in DID_NOT_END_WELL), run.status
                is_found = child.key.thread.split("\x1f")[1].startswith(f"{began}.")
                assert is_found or not TRANSITIONS[run.status], "a subgraph is left open"

    def _check_thread(self, info: ThreadInfo) -> None:
        key = info.key
        head = next(iter(self.store.history(key, limit=1)), None)
        assert self.store.thread(key) == info
        assert info in list(own_threads(self.store, "default", status=info.status))
        if head is None:
            assert not TRANSITIONS[info.status]
            return
        state = self.hosts[0].state(key)
        told = thread_line(info)
        questions = sum(each.asks for each in state.interrupts)
        assert (info.status, info.questions) == (state.status, questions)
        assert (told.status, told.questions) == (info.status, info.questions)
        assert (info.wake_at is None) == (state.wake_at is None)
        assert info.run_id == head.run_id == state.run_id
        is_left = bool(head.next or head.route)
        assert (info.status == "completed") == (not is_left)
        assert is_left or not questions
        fit = thread_fit(self.hosts[0], info)
        assert (fit.status if fit else "completed") == info.status

    def _head(self) -> Entry | None:
        return next(iter(self.store.history(KEY, limit=1)), None)

    def sweep(self) -> None:
        """Retention by age, long after: what goes has nothing left to run and nothing to ask."""
        before = {
            info.key.thread: (info, self._is_left(info.key))
            for info in self.store.threads("default")
        }
        also_failed = self.random.random() < 0.3
        rules = Retention(older_than=timedelta(0), failed=also_failed)
        late = CheckpointStore(self.store, clock=ManualClock(2_000_000_000_000_000))
        report = late.apply_retention("default", rules)
        assert not report.unreadable
        for thread in report.deleted:
            info, is_left = before[thread]
            assert not info.questions, "a thread was deleted that asks something"
            stopped = also_failed and info.status in ("failed", "cancelled")
            assert stopped or not is_left, "a thread was deleted that has something left to run"
        for thread, (info, is_left) in before.items():
            ended = info.status == "completed" and not is_left
            if ended and "\x1f" not in thread:
                assert thread in report.deleted

    def _is_left(self, key: ThreadKey) -> bool:
        head = next(iter(self.store.history(key, limit=1)), None)
        return head is not None and bool(head.next or head.route)


def live(store: Store, seed: int, length: int = LENGTH) -> None:
    """One sequence of operations, checked after each, with a sweep now and then."""
    life = Life(store, Random(seed))
    try:
        for _ in range(length):
            life.do_something()
            life.check()
            if life.random.random() < 0.1:
                life.done.append("sweep")
                life.sweep()
                life.check()
        life.sweep()
    except AssertionError as error:
        error.add_note(f"seed {seed}: {life.done}")
        raise


def live_all(make_store: Callable[[], Store], sequences: range) -> None:
    """Many of them."""
    for seed in sequences:
        live(make_store(), seed)


def test_everything_agrees_on_what_a_thread_is() -> None:
    """Broken on purpose: the two controls below."""
    live_all(MemoryStore, seeds(100))


@pytest.mark.slow
def test_everything_agrees_on_what_a_thread_is_long() -> None:
    """The long form: 10,000 sequences."""
    live_all(MemoryStore, range(int(os.environ.get("MILECASTLE_SEQUENCES", "10000"))))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("kind", EVERY_KIND[1:])
def test_everything_agrees_on_every_store(kind: str, stores: Stores) -> None:
    for seed in range(6):
        live(stores.open(kind, f"{seed % 3}"), 1000 + seed, 8)


class ListsTheNewestRun(MemoryStore):
    """A control: what a thread is comes from the run that started last, as it did."""

    def _of_newest(self, info: ThreadInfo | None) -> ThreadInfo | None:
        runs: list[RunRecord] = [] if info is None else [*super().runs(info.key)]
        newest = max(runs, key=lambda run: run.started_at, default=None)
        return None if newest is None else ThreadInfo.of(newest)

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        return self._of_newest(super().thread(key))

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[ThreadInfo]:
        found = [self._of_newest(info) for info in super().threads(tenant, after=after)]
        return [i for i in found if i is not None and status in (None, i.status)][:limit]


def test_a_status_of_the_newest_run_is_caught() -> None:
    """The control: without it nobody knows whether the property can fail."""
    with pytest.raises(AssertionError):
        live_all(ListsTheNewestRun, range(300))


def test_a_retention_that_asks_the_newest_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other control: retention deletes what the newest run says is over, as it did."""

    def is_over(self: Any, head: Entry | None, info: ThreadInfo) -> bool:
        newest = max(self._store.runs(info.key), key=lambda run: run.started_at)
        return not TRANSITIONS[newest.status]

    monkeypatch.setattr("milecastle.app.upkeep.retention._Sweep._is_over", is_over)
    with pytest.raises(AssertionError, match="deleted"):
        live_all(MemoryStore, range(300))


def test_a_subgraph_that_is_left_open_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the subgraphs: only the thread itself is closed, as it was."""

    def close_nothing(*arguments: object) -> None:
        return None

    monkeypatch.setattr("milecastle.app.threads.log.close_children", close_nothing)
    with pytest.raises(AssertionError, match="left open"):
        live_all(MemoryStore, range(300))


def test_the_sequences_reach_every_status() -> None:
    """A property that never sees a thread sleep says nothing of sleeping ones."""
    seen: set[tuple[str, bool]] = set()
    for seed in range(120):
        life = Life(MemoryStore(), Random(seed))
        for _ in range(LENGTH):
            life.do_something()
            for info in life.store.threads("default"):
                seen.add((info.status, bool(info.questions)))
    statuses = {"completed", "interrupted", "sleeping", "failed", "cancelled", "running"}
    assert {status for status, _ in seen} == statuses
    assert {(s, True) for s in ("interrupted", "failed", "running")} <= seen
