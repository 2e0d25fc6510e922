"""C: checkpoints. What is saved, when, and what it holds."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest

import milecastle
from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    CheckpointStore,
    Conflict,
    Context,
    ExecutionError,
    InvalidRequest,
    Retry,
    StateGraph,
    ThreadKey,
    Unavailable,
    UnserializableState,
    append,
    interrupt,
    register_store,
)
from milecastle.records import Origin
from milecastle.stores.memory import MemoryStore
from milecastle.testing import FailingStore, ManualClock, with_store
from milecastle.testing.contract_tenants import calls_with
from milecastle.testing.entries import Writer
from tests.acceptance.running import CountingStore, Runner, SlowStore, Wrap, always
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")


class Count(TypedDict):
    n: int
    log: Annotated[list[str], append]
    anything: Any


def count(state: Count, name: str) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [name]}


def line(wrap: Wrap, *names: str, **functions: Any) -> StateGraph[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="line")
    for name in names:
        graph.add_node(name, wrap(functions.get(name, count)))
    graph.add_edges(START, *names, END)
    return graph


# -- C1 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C1", api="Checkpoint")
def test_a_checkpoint_holds_all_that_is_known(run: Runner, wrap: Wrap) -> None:
    """Ids, thread, step, seq, state, nodes, next, run, source, fingerprint, time, metadata."""
    app = line(wrap, "a", "b").compile(store="memory://", tenant="acme")
    before = datetime.now(UTC)
    result = run.invoke(app, {"n": 0}, "t")
    after = datetime.now(UTC)
    first, second, third = (run.state(app, "t", at=seq) for seq in (1, 2, 3))
    assert [item.key for item in (first, second, third)] == [ThreadKey("acme", "t")] * 3
    assert [item.seq for item in (first, second, third)] == [1, 2, 3]
    assert [item.step for item in (first, second, third)] == [0, 1, 2]
    assert [item.parent_id for item in (first, second, third)] == [None, first.id, second.id]
    assert [item.nodes for item in (first, second, third)] == [(), ("a",), ("b",)]
    assert [item.next for item in (first, second, third)] == [("a",), ("b",), ()]
    assert [item.source for item in (first, second, third)] == ["input", "step", "step"]
    assert [item.state["n"] for item in (first, second, third)] == [0, 1, 2]
    assert {item.run_id for item in (first, second, third)} == {result.run_id}
    assert {item.fingerprint for item in (first, second, third)} == {app.fingerprint}
    for item in (first, second, third):
        assert uuid.UUID(item.id).version == 7
        assert before <= item.timestamp <= after
        assert item.timestamp.utcoffset() == timedelta(0)
    assert uuid.UUID(result.run_id).version == 7


@pytest.mark.requirement("C1", api="Checkpoint.metadata")
def test_the_metadata_of_the_run_is_read_through_its_checkpoints(run: Runner, wrap: Wrap) -> None:
    """Library version, Python and host are stored once per run."""
    store = CountingStore()
    app = line(wrap, "a", "b").compile(store=store)
    run.invoke(app, {"n": 0}, "t")
    for seq in (1, 2, 3):
        metadata = run.state(app, "t", at=seq).metadata
        assert metadata["milecastle"] == milecastle.__version__
        assert metadata["python"] == platform.python_version()
        assert metadata["host"] == platform.node()
    assert [len(batch.runs) for batch in store.batches] == [1, 0, 1]


SHOWS_COMMIT = """
from typing import TypedDict
from milecastle import END, START, StateGraph
class State(TypedDict):
    n: int
graph = StateGraph(State)
graph.add_node("a", lambda state: {"n": 1})
graph.add_edges(START, "a", END)
app = graph.compile(store="memory://")
app.invoke({"n": 0}, thread="t")
print(app.state("t", at=1).metadata.get("git_commit"))
"""


@pytest.mark.requirement("C1", api="Checkpoint.metadata")
def test_the_git_commit_is_in_the_metadata_when_there_is_one(tmp_path: Path) -> None:
    """That of a real repository, and none where there is no repository.

    Mutation tried: ``find_commit`` returns nothing.
    """
    script = tmp_path / "shows.py"
    script.write_text(SHOWS_COMMIT)

    def shown(folder: Path) -> str:
        command = [sys.executable, str(script)]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return found.stdout.strip()

    repository = tmp_path / "repository"
    repository.mkdir()
    assert shown(repository) == "None"
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], cwd=repository, check=True)
    asked = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(asked, cwd=repository, capture_output=True, text=True, check=True)
    assert shown(repository) == head.stdout.strip()


@pytest.mark.requirement("C1", api="CheckpointMetadata.source")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_source_of_a_checkpoint_is_named(kind: str, tmp_path: Path) -> None:
    """All eight, each by what makes it, and each with the checkpoint that it follows.

    Mutations tried: an answer written as a ``takeover``; a fork whose parent is the head.
    """
    stores = Stores(tmp_path)
    store = stores.open(kind)
    failing = FailingStore(store, at=3)
    graph: StateGraph[Count] = StateGraph(Count)

    @graph.node
    def a(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    @graph.node
    def b(state: Count, ctx: Context) -> dict[str, Any]:
        interrupt("go on?", answer=bool)
        ctx.sleep(60)
        return {"n": state["n"] + 1}

    graph.add_edges(START, "a", "b", END)
    clock = ManualClock()
    killed = with_store(graph.compile(), failing, clock=clock)
    with pytest.raises(Unavailable):
        killed.invoke({"n": 0, "anything": None}, "t")
    app = with_store(graph.compile(), store, clock=clock)
    app.resume("t")
    app.resume("t", True)
    app.update_state("t", {"n": 5})
    app.fork("t", 2)
    known = list(app.history("t"))[::-1]
    assert [each.source for each in known] == [
        "input",
        "step",
        "takeover",
        "interrupt",
        "answer",
        "sleep",
        "update",
        "fork",
    ]
    ids = [each.id for each in known]
    assert [each.parent_id for each in known] == [None, *ids[:6], ids[1]]
    assert [each.seq for each in known] == list(range(1, 9))
    stores.close()


# -- C2 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C2", api="App.invoke")
def test_a_step_is_saved_before_the_next_one_starts(run: Runner, wrap: Wrap) -> None:
    """Each node finds the step before it in the store."""
    store = CountingStore()
    heads: list[tuple[str, int]] = []

    def look(state: Count, name: str) -> dict[str, Any]:
        heads.append((name, store.written[-1].seq))
        return count(state, name)

    app = line(wrap, "a", "b", "c", a=look, b=look, c=look).compile(store=store)
    run.invoke(app, {"n": 0}, "t")
    assert heads == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.requirement("C2", api="Unavailable")
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_save_that_fails_stops_the_run(run: Runner, wrap: Wrap, at: int) -> None:
    """No step continues unsaved, and nothing is written after the failed save."""
    ran: list[str] = []

    def note(state: Count, name: str) -> dict[str, Any]:
        ran.append(name)
        return count(state, name)

    inner = MemoryStore()
    store = FailingStore(inner, at=at)
    app = line(wrap, "a", "b", "c", a=note, b=note, c=note).compile(store=store)
    with pytest.raises(Unavailable):
        run.invoke(app, {"n": 0}, "t")
    assert ran == ["a", "b"][: at - 1]
    assert store.commits == at
    assert [entry.seq for entry in inner.history(KEY)] == [*range(at - 1, 0, -1)]
    assert run.invoke(app, {"n": 0}, "t").state == {"n": 3, "log": ["a", "b", "c"]}


def nested(
    store: Any, ran: list[str], act: Callable[[], object], *, beside: bool = True, **policy: Any
) -> App[Count]:
    """A subgraph of two nodes, and a node beside it; ``rescue`` is where ``on_error`` may lead."""

    def node(name: str) -> Callable[[Count], dict[str, Any]]:
        def work(state: Count) -> dict[str, Any]:
            ran.append(name)
            act()
            return {"log": [name]}

        return work

    inner: StateGraph[Count] = StateGraph(Count, name="inner")
    inner.add_node("a", node("a"))
    inner.add_node("b", node("b"))
    inner.add_edges(START, "a", "b", END)
    graph: StateGraph[Count] = StateGraph(Count, name="outer")
    graph.add_node("child", inner.compile(), goto=["rescue"], **policy)
    graph.add_node("rescue", always({"log": ["rescue"]}))
    graph.add_edges(START, "child", END)
    graph.add_edge("rescue", END)
    if beside:
        graph.add_node("beside", always({"log": ["beside"]}))
        graph.add_edges(START, "beside", END)
    return graph.compile(store=store)


@pytest.mark.requirement("C2", api="Unavailable")
@pytest.mark.parametrize("policy", [{}, {"retry": Retry(delay=0)}, {"on_error": "rescue"}])
def test_a_save_that_fails_in_a_subgraph_stops_the_whole_run(
    run: Runner, policy: dict[str, Any]
) -> None:
    """At each of its commits: the failed save was taken for a failure of the node, and so tried
    again, or handled by ``on_error``, and the run completed without the subgraph.

    Broken on purpose: ``StoreError`` not raised in ``Children._advance``.
    """
    for at in range(1, 30):
        store = FailingStore(MemoryStore(), at=at)
        app = nested(store, [], lambda: None, **policy)
        try:
            ended = run.invoke(app, {"n": 0}, "t")
        except Unavailable:
            ended = run.invoke(app, {"n": 0}, "t")
        else:
            assert store.commits < at
            return
        assert ended.state == {"n": 0, "log": ["a", "b", "beside"]}
    raise AssertionError("no run ended without a failed save")


@pytest.mark.requirement("S9", api="Conflict")
def test_a_run_that_lost_its_thread_in_a_subgraph_gets_conflict(run: Runner) -> None:
    """It got an ``ExecutionError`` of the node.

    Broken on purpose: ``StoreError`` not raised in ``Children._advance``.
    """
    ran: list[str] = []
    app = nested(MemoryStore(), ran, lambda: app.cancel("t"), beside=False)
    with pytest.raises(Conflict):
        run.invoke(app, {"n": 0}, "t")
    assert ran == ["a"]
    assert app.state("t").status == "cancelled"


@pytest.mark.requirement("C2", api="Unavailable")
def test_a_save_that_fails_at_a_sibling_s_result_stops_the_run(run: Runner, wrap: Wrap) -> None:
    """The result of a branch is a save like any other."""
    inner = MemoryStore()
    store = FailingStore(inner, at=2)
    graph: StateGraph[Count] = StateGraph(Count)

    def fail(state: Count) -> None:
        raise ValueError("on purpose")

    for name in ("good", "bad"):
        graph.add_node(name, wrap(fail if name == "bad" else always({"n": 1})))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    with pytest.raises(Unavailable):
        run.invoke(graph.compile(store=store), {"n": 0}, "t")
    assert store.commits == 2


@pytest.mark.requirement("C2", api="ExecutionError")
def test_a_failure_that_cannot_be_recorded_is_raised_all_the_same(run: Runner, wrap: Wrap) -> None:
    """The node's error is what the caller gets, with a note about the record."""

    def fail(state: Count) -> None:
        raise ValueError("on purpose")

    store = FailingStore(MemoryStore(), at=2)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(line(wrap, "a", a=fail).compile(store=store), {"n": 0}, "t")
    assert "could not be recorded" in caught.value.__notes__[0]


@pytest.mark.requirement("C2", api="UnserializableState")
@pytest.mark.parametrize("names", [("a", "bad", "c"), ("a", "bad")])
@pytest.mark.parametrize("interval", [1, 2])
def test_a_value_that_cannot_be_stored_ends_the_run_and_is_recorded(
    run: Runner, wrap: Wrap, names: tuple[str, ...], interval: int
) -> None:
    """The error names node and path; nothing of the step is committed; the run has failed."""

    def bad(state: Count) -> dict[str, Any]:
        return {"n": 99, "anything": {"docs": [1, threading.Lock()]}}

    store = CountingStore()
    app = line(wrap, *names, bad=bad).compile(
        checkpoint=CheckpointConfig(store=store, interval=interval)
    )
    with pytest.raises(UnserializableState) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.node, caught.value.path) == ("bad", "$.anything.docs[1]")
    assert caught.value.type_name.endswith("lock")
    snapshot = run.state(app, "t")
    assert snapshot.state["n"] < 99
    assert (snapshot.status, snapshot.next) == ("failed", ("bad",) if interval == 1 else ("a",))
    failure = store.failure(KEY, snapshot.run_id)
    assert failure is not None
    assert (failure.error_type, failure.node) == ("UnserializableState", "bad")
    assert sum(batch.failure is not None for batch in store.batches) == 1


@pytest.mark.requirement("C2", api="UnserializableState")
def test_a_branch_whose_value_cannot_be_stored_does_not_lose_the_others(
    run: Runner, wrap: Wrap
) -> None:
    """The sibling's result is stored, and is not computed again."""
    ran: list[str] = []
    broken = [True]
    graph: StateGraph[Count] = StateGraph(Count)

    def good(state: Count) -> dict[str, Any]:
        ran.append("good")
        return {"log": ["good"]}

    def bad(state: Count) -> dict[str, Any]:
        return {"anything": threading.Lock() if broken[0] else 1}

    for name, function in (("good", good), ("bad", bad)):
        graph.add_node(name, wrap(function))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store="memory://")
    with pytest.raises(UnserializableState) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.node, caught.value.path) == ("bad", "$.anything")
    broken[0] = False
    assert run.resume(app, "t").state == {"n": 0, "log": ["good"], "anything": 1}
    assert ran == ["good"]


@pytest.mark.requirement("C2", api="UnserializableState")
def test_an_input_that_cannot_be_stored_begins_nothing(run: Runner, wrap: Wrap) -> None:
    """The thread is not there afterwards."""
    app = line(wrap, "a").compile(store="memory://")
    with pytest.raises(UnserializableState, match=r"\$\.anything"):
        run.invoke(app, {"n": 0, "anything": threading.Lock()}, "t")
    assert run.history(app, "t") == []


# -- C3 ------------------------------------------------------------------------------------


def saved_steps(store: CountingStore) -> list[tuple[str, int]]:
    return [(entry.source, entry.step) for entry in store.written]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        (1, [0, 1, 2, 3, 4, 5]),
        (2, [0, 2, 4, 5]),
        (3, [0, 3, 5]),
        (9, [0, 5]),
    ],
)
def test_every_nth_step_and_the_end_are_saved(
    run: Runner, wrap: Wrap, interval: int, steps: list[int]
) -> None:
    """The input, every n-th step, and the end whatever its number."""
    store = CountingStore()
    names = ("a", "b", "c", "d", "e")
    app = line(wrap, *names).compile(checkpoint=CheckpointConfig(store=store, interval=interval))
    result = run.invoke(app, {"n": 0}, "t")
    assert [step for _, step in saved_steps(store)] == steps
    assert run.state(app, "t").state == result.state == {"n": 5, "log": list(names)}
    assert [entry.seq for entry in store.written] == [*range(1, len(steps) + 1)]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
def test_an_interrupt_and_a_failure_are_always_saved(run: Runner, wrap: Wrap) -> None:
    """Whatever the interval, nothing that was done is done again after them."""
    store = CountingStore()
    ran: list[str] = []
    broken = [True]

    def note(state: Count, name: str) -> dict[str, Any]:
        ran.append(name)
        if name == "d" and broken[0]:
            raise ValueError("on purpose")
        return count(state, name)

    names = ("a", "b", "c", "d", "e")
    app = line(wrap, *names, **dict.fromkeys(names, note)).compile(
        checkpoint=CheckpointConfig(store=store, interval=10), interrupt_before=["c"]
    )
    assert run.invoke(app, {"n": 0}, "t").status == "interrupted"
    assert saved_steps(store) == [("input", 0), ("interrupt", 2)]
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert saved_steps(store)[2:] == [("step", 3)]
    assert run.state(app, "t").next == ("d",)
    broken[0] = False
    assert run.resume(app, "t")["n"] == 5
    assert ran == ["a", "b", "c", "d", "d", "e"]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
def test_what_cannot_be_stored_is_left_out_when_a_later_step_fails(run: Runner) -> None:
    """With an interval, a failure is recorded even if an unsaved step cannot be."""

    def bad(state: Count) -> dict[str, Any]:
        return {"anything": threading.Lock()}

    def fail(state: Count) -> dict[str, Any]:
        raise ValueError("on purpose")

    store = CountingStore()
    app = line(lambda f: f, "a", "b", a=bad, b=fail).compile(
        checkpoint=CheckpointConfig(store=store, interval=5)
    )
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    assert run.state(app, "t").status == "failed"
    assert saved_steps(store) == [("input", 0)]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
def test_an_interval_of_zero_saves_nothing(run: Runner, wrap: Wrap) -> None:
    """The run works as without a store."""
    store = CountingStore()
    app = line(wrap, "a").compile(checkpoint=CheckpointConfig(store=store, interval=0))
    assert run.invoke(app, {"n": 0}, "t")["n"] == 1
    assert store.batches == []
    with pytest.raises(InvalidRequest, match="interval"):
        CheckpointConfig(interval=-1)


@pytest.mark.requirement("C3", api="CheckpointConfig.preserve")
@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_without_preserve_a_clean_end_deletes_the_thread(run: Runner, wrap: Wrap, way: str) -> None:
    """An interrupt and a failure keep it; the end does not."""
    broken = [True]

    def fail(state: Count, name: str) -> dict[str, Any]:
        if broken[0]:
            raise ValueError("on purpose")
        return count(state, name)

    app = line(wrap, "a", "b", b=fail).compile(
        checkpoint=CheckpointConfig(store="memory://", preserve=False), interrupt_after=["a"]
    )
    run.invoke(app, {"n": 0}, "t")
    assert run.state(app, "t").status == "interrupted"
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert run.state(app, "t").status == "failed"
    broken[0] = False
    if way == "invoke":
        assert run.resume(app, "t")["n"] == 2
    else:
        assert [event.node for event in run.stream(app, None, "t")] == ["b"]
    assert run.history(app, "t") == []


@pytest.mark.requirement("C3", api="register_store")
def test_a_store_is_chosen_by_name_url_or_itself(run: Runner, wrap: Wrap) -> None:
    """Users add their own through the registry."""
    made: list[str] = []
    store = MemoryStore()

    def factory(url: str) -> MemoryStore:
        made.append(url)
        return store

    register_store("shelf", factory)
    for given in ("shelf", "shelf://back/left"):
        app = line(wrap, "a").compile(store=given)
        run.invoke(app, {"n": 0}, given)
        assert app.store is store
    assert made == ["shelf", "shelf://back/left"]
    assert line(wrap, "a").compile(checkpoint=CheckpointConfig(store="memory")).has_store
    own = MemoryStore()
    assert line(wrap, "a").compile(store=own).store is own


@pytest.mark.requirement("C3", api="StateGraph.compile")
def test_a_store_that_is_not_known_or_given_twice_is_refused() -> None:
    """The message lists the stores that are known."""
    graph = line(lambda function: function, "a")
    with pytest.raises(InvalidRequest, match="memory"):
        graph.compile(store="nowhere://x")
    with pytest.raises(InvalidRequest, match="not both"):
        graph.compile(store="memory", checkpoint=CheckpointConfig(store="memory"))
    app = graph.compile(store="memory", checkpoint=CheckpointConfig(interval=2))
    assert app.has_store


# -- C4 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C4", api="CheckpointMetadata.seq")
def test_seq_counts_from_one_without_gaps_over_everything_that_happens(
    run: Runner, wrap: Wrap
) -> None:
    """Runs, interrupts, updates and forks share one count per thread."""
    app = line(wrap, "a", "b").compile(store="memory://", interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    run.update_state(app, "t", {"n": 5})
    run.resume(app, "t")
    run.fork(app, "t", 2)
    run.resume(app, "t")
    run.invoke(app, {"n": 9}, "t")
    run.invoke(app, {"n": 0}, "other")
    seqs = [known.seq for known in run.history(app, "t")]
    assert seqs == [*range(len(seqs), 0, -1)]
    assert [known.seq for known in run.history(app, "other")] == [3, 2, 1]


@pytest.mark.requirement("C4", api="Store.commit")
@pytest.mark.parametrize("make", [CountingStore, SlowStore])
def test_a_run_of_n_steps_costs_n_and_one_commits(
    run: Runner, wrap: Wrap, make: type[CountingStore]
) -> None:
    """Records of runs and failures travel with the entries: they cost no separate commit."""
    store = make()
    names = ("a", "b", "c", "d")
    run.invoke(line(wrap, *names).compile(store=store), {"n": 0}, "t")
    assert len(store.batches) == len(names) + 1
    assert [len(batch.entries) for batch in store.batches] == [1] * 5
    assert [[record.status for record in batch.runs] for batch in store.batches] == [
        *(["running"], [], [], [], ["completed"])
    ]
    assert [batch.manifest is not None for batch in store.batches] == [True] + [False] * 4


@pytest.mark.requirement("C4", api="Store.commit")
def test_a_failing_run_writes_record_and_failure_in_one_batch(run: Runner, wrap: Wrap) -> None:
    """Either both are there or neither."""

    def fail(state: Count) -> None:
        raise ValueError("on purpose")

    store = CountingStore()
    with pytest.raises(ExecutionError):
        run.invoke(line(wrap, "a", "b", b=fail).compile(store=store), {"n": 0}, "t")
    last = store.batches[-1]
    assert ([record.status for record in last.runs], last.entries) == (["failed"], ())
    assert last.failure is not None
    assert len(store.batches) == 3


# -- C5 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C5", api="Result")
@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_invoke_returns_names_run_node_and_time(
    run: Runner, wrap: Wrap, store: str | None
) -> None:
    """The provenance of the state is read from the result."""
    before = datetime.now(UTC)
    result = run.invoke(line(wrap, "a", "b").compile(store=store), {"n": 0})
    assert uuid.UUID(result.run_id).version == 7
    assert (result.node, result.nodes, result.step) == ("b", ("b",), 2)
    assert before <= result.timestamp <= datetime.now(UTC)
    assert (result.thread is None) == (store is None)


@pytest.mark.requirement("C5", api="Context.origin")
@pytest.mark.parametrize("interval", [0, 1, 2])
def test_what_a_node_receives_names_run_node_and_time(
    run: Runner, wrap: Wrap, interval: int
) -> None:
    """``ctx.origin`` says who produced the state, and when, with a store and without."""
    seen: list[Origin] = []
    clock = ManualClock()

    def look(state: Count, ctx: Context, name: str) -> dict[str, Any]:
        seen.append(ctx.origin)
        clock.advance(1)
        return count(state, name)

    compiled = line(wrap, "a", "b", "c", **dict.fromkeys("abc", look)).compile()
    store = MemoryStore() if interval else None
    app = App(compiled.runner.rebuilt(store=store, interval=interval, clock=clock))
    began = datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
    result = run.invoke(app, {"n": 0}, "t")
    assert [origin.nodes for origin in seen] == [(), ("a",), ("b",)]
    assert {origin.run_id for origin in seen} == {result.run_id}
    assert [(origin.timestamp - began).total_seconds() for origin in seen] == [0, 1, 2]


@pytest.mark.requirement("C5", api="Context.origin")
def test_after_a_resume_the_origin_names_the_run_that_produced_the_state(
    run: Runner, wrap: Wrap
) -> None:
    """The first node of the new run works on a state of the run before it."""
    seen: list[tuple[str, Origin]] = []
    broken = [True]

    def look(state: Count, ctx: Context, name: str) -> dict[str, Any]:
        seen.append((ctx.run_id, ctx.origin))
        if name == "b" and broken[0]:
            broken[0] = False
            raise ValueError("on purpose")
        return count(state, name)

    app = line(wrap, "a", "b", "c", b=look, c=look).compile(store="memory://")
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    result = run.resume(app, "t")
    (old, first), (new, again), (_, after) = seen
    assert new == result.run_id != old
    assert first == again == Origin(old, ("a",), run.state(app, "t", at=2).timestamp)
    assert (after.run_id, after.nodes) == (new, ("b",))


# -- C6 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C6", api="ThreadKey")
def test_threads_of_two_tenants_never_meet(run: Runner, wrap: Wrap) -> None:
    """A string is a thread of the app's tenant; a key names another's."""
    store = MemoryStore()
    graph = line(wrap, "a")
    ours = graph.compile(store=store, tenant="ours")
    theirs = graph.compile(store=store, tenant="theirs")
    run.invoke(ours, {"n": 0}, "t")
    run.invoke(theirs, {"n": 100}, "t")
    assert run.state(ours, "t").state["n"] == 1
    assert run.state(theirs, "t").state["n"] == 101
    assert run.state(ours, ThreadKey("theirs", "t")).state["n"] == 101
    assert [info.key for info in store.threads("ours")] == [ThreadKey("ours", "t")]
    with pytest.raises(InvalidRequest, match="there is no thread"):
        run.state(ours, ThreadKey("nobody", "t"))


@pytest.mark.requirement("C6", api="ThreadKey")
@pytest.mark.parametrize("bad", ["", "a\0b", "\ud800", "x" * 513, 7, None])
def test_an_id_that_some_store_could_not_keep_is_refused(bad: Any) -> None:
    """Tenant and thread are both required, and both are checked."""
    with pytest.raises(InvalidRequest):
        ThreadKey("tenant", bad)
    with pytest.raises(InvalidRequest):
        ThreadKey(bad, "thread")


WRONG_KEYS: list[Any] = ["t", ("acme", "t"), None, b"t"]


@pytest.mark.requirement("C6", api="Store")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_store_takes_a_thread_without_its_tenant(kind: str, tmp_path: Path) -> None:
    """Every call that names a thread or a tenant, of every store.

    Tried: a store without ``checks_keys``; ``commit`` without its own check.
    """
    stores = Stores(tmp_path)
    try:
        store = stores.open(kind)
        ours = Writer(ThreadKey("acme", "t"), 1).begin(store, 2)
        for key in WRONG_KEYS:
            for name, call in calls_with(store, key, ours).items():
                with pytest.raises(TypeError, match="ThreadKey"):
                    pytest.fail(f"{name} returned {call()!r}")
        for tenant in (None, 7):
            with pytest.raises(TypeError, match="tenant"):
                store.threads(cast("Any", tenant))
        assert [info.key for info in store.threads("acme")] == [ours.key]
    finally:
        stores.close()


@pytest.mark.requirement("C6", api="CheckpointStore")
@pytest.mark.parametrize("key", WRONG_KEYS)
def test_checkpoint_store_takes_no_thread_without_its_tenant(key: Any) -> None:
    """Also around a store that does not check. Tried: no ``checks_keys``."""
    store = CheckpointStore(cast("Any", Unchecked()))
    known = ThreadKey("acme", "t")
    made = store.put(known, {"n": 1})
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, {"n": 2}),
        lambda: store.get_latest(key),
        lambda: store.get_by_id(key, made.id),
        lambda: store.list_history(key),
        lambda: store.update_state(key, made.id, new_state={"n": 2}),
        lambda: store.delete_thread(key),
        lambda: store.prune(key, keep_last=1),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="ThreadKey"):
            call()
    with pytest.raises(TypeError, match="tenant"):
        store.list_threads(cast("Any", None))
    assert [info.key for info in store.list_threads("acme")] == [known]
    assert store.get_latest(known) == made


class Unchecked:
    """A store of a third party that takes anything for a key, and finds its only thread."""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self._key = ThreadKey("acme", "t")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in ("commit", "threads") or not callable(method):
            return method

        def take_anything(key: Any, *args: Any, **named: Any) -> Any:
            return method(self._key, *args, **named)

        return take_anything


@pytest.mark.requirement("C6", api="App.invoke")
def test_run_without_a_thread_gets_its_own(run: Runner, wrap: Wrap) -> None:
    """Each such call has a thread that can be looked at afterwards."""
    app = line(wrap, "a").compile(store="memory://", tenant="acme")
    first, second = (run.invoke(app, {"n": 0}) for _ in range(2))
    assert first.thread is not None
    assert first.thread != second.thread
    assert first.thread.tenant == "acme"
    assert re.fullmatch(r"[0-9a-f-]{36}", first.thread.thread)
    assert run.state(app, first.thread).state["n"] == 1
