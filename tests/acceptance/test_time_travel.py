"""T: time travel. Resuming, updating, forking, comparing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    ExecutionError,
    InvalidRequest,
    Result,
    ResumeRefused,
    Snapshot,
    StateGraph,
    ThreadKey,
    append,
)
from milecastle.errors import RoutingError
from milecastle.records import Change
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import CountingStore, Recorder, Runner, Wrap, crash_after

KEY = ThreadKey("default", "t")


def nodes_of(resting: Result[Any] | Snapshot[Any]) -> list[str]:
    """The nodes at which a thread waits."""
    return [found.node for found in resting.interrupts]


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


class Script:
    """A graph ``a -> b -> c`` whose nodes note that they ran; a node in ``broken`` raises."""

    def __init__(self, wrap: Wrap | None = None) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.wrap: Wrap = wrap or (lambda function: function)

    def note(self, state: Trip, name: str) -> dict[str, Any]:
        self.ran.append(name)
        if name in self.broken:
            raise ValueError("on purpose")
        return {"n": state["n"] + 1, "log": [name]}

    def node(self) -> Callable[..., Any]:
        def note(state: Trip, name: str) -> dict[str, Any]:
            return self.note(state, name)

        return self.wrap(note)

    def line(self, store: Any, *names: str, **options: Any) -> App[Trip]:
        graph: StateGraph[Trip] = StateGraph(Trip)
        for name in names or ("a", "b", "c"):
            graph.add_node(name, self.node())
        graph.add_edges(START, *(names or ("a", "b", "c")), END)
        return graph.compile(store=store, **options)


@pytest.fixture
def script(wrap: Wrap) -> Script:
    return Script(wrap)


# -- T1 ------------------------------------------------------------------------------------


@pytest.mark.requirement("T1", api="App.resume")
def test_new_app_continues_from_the_last_checkpoint(run: Runner, script: Script) -> None:
    """After a failure the new run repeats nothing that was committed."""
    store = MemoryStore()
    script.broken = {"c"}
    with pytest.raises(ExecutionError):
        run.invoke(script.line(store), {"n": 0}, "t")
    script.broken = set()
    result = run.resume(script.line(store), "t")
    assert result.state == {"n": 3, "log": ["a", "b", "c"]}
    assert script.ran == ["a", "b", "c", "c"]
    new, old = store.runs(KEY)
    assert (new.run_id, new.previous_run_id, new.retry_count) == (result.run_id, old.run_id, 1)
    assert (new.status, old.status, old.previous_run_id) == ("completed", "failed", None)


@pytest.mark.requirement("T1", api="StateGraph.compile")
@pytest.mark.requirement("H1", api="StateGraph.compile")
def test_at_interrupt_before_the_node_itself_runs_on_resume(run: Runner, script: Script) -> None:
    """The checkpoint names the node, which has not run yet."""
    store = MemoryStore()
    first = run.invoke(script.line(store, interrupt_before=["b"]), {"n": 0}, "t")
    assert (first.status, nodes_of(first), first.next) == ("interrupted", ["b"], ("b",))
    assert script.ran == ["a"]
    app = script.line(store, interrupt_before=["b"])
    snapshot = run.state(app, "t")
    assert (snapshot.status, snapshot.next, nodes_of(snapshot)) == ("interrupted", ("b",), ["b"])
    second = run.resume(app, "t")
    assert (second.status, script.ran) == ("completed", ["a", "b", "c"])
    assert first.run_id == second.run_id
    assert [record.status for record in store.runs(KEY)] == ["completed"]


@pytest.mark.requirement("T1", api="StateGraph.compile")
@pytest.mark.requirement("H1", api="StateGraph.compile")
def test_at_interrupt_after_the_successors_run_on_resume(run: Runner, script: Script) -> None:
    """The checkpoint names the successors; the node has run and does not run again."""
    store = MemoryStore()
    first = run.invoke(script.line(store, interrupt_after=["b"]), {"n": 0}, "t")
    assert (first.status, first.node, first.next) == ("interrupted", "b", ("c",))
    assert script.ran == ["a", "b"]
    second = run.resume(script.line(store, interrupt_after=["b"]), "t")
    assert (second.status, script.ran) == ("completed", ["a", "b", "c"])


@pytest.mark.requirement("T1", api="App.resume")
def test_a_thread_stops_at_each_interrupt_in_turn(run: Runner, script: Script) -> None:
    """An interrupt after one node and before the next is one stop, not two."""
    options: dict[str, Any] = {"interrupt_after": ["a"], "interrupt_before": ["b", "c"]}
    app = script.line(MemoryStore(), **options)
    assert run.invoke(app, {"n": 0}, "t").next == ("b",)
    assert run.resume(app, "t").next == ("c",)
    assert run.resume(app, "t").status == "completed"
    assert script.ran == ["a", "b", "c"]


@pytest.mark.requirement("T1", api="App.resume")
@pytest.mark.requirement("H1", api="App.stream")
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    ("options", "node", "ran", "next"),
    [
        ({"interrupt_before": ["a"]}, "a", [], ("a",)),
        ({"interrupt_before": ["c"]}, "c", ["a", "b"], ("c",)),
        ({"interrupt_after": ["a"]}, "a", ["a"], ("b",)),
        ({"interrupt_after": ["c"]}, "c", ["a", "b", "c"], ()),
    ],
)
def test_stream_yields_interrupts_with_node_and_state(
    run: Runner,
    script: Script,
    options: dict[str, Any],
    node: str,
    ran: list[str],
    next: tuple[str, ...],
    stored: bool,
) -> None:
    """The last event, with a store and without; no node runs after it.

    Tried: no event after the last node; ``state`` left out; the check only with a store.
    """
    app = script.line(MemoryStore() if stored else None, **options)
    events = run.stream(app, {"n": 0}, "t" if stored else None)
    assert [event.type for event in events] == ["update"] * len(ran) + ["interrupt"]
    last = events[-1]
    state = {"n": len(ran), "log": ran}
    assert (last["type"], last["node"], last["state"]) == ("interrupt", node, state)
    assert script.ran == ran
    result = run.invoke(script.line(None, **options), {"n": 0})
    assert (result.status, result.next) == ("interrupted" if next else "completed", next)
    assert result["log"] == ran


@pytest.mark.requirement("T1", api="App.resume")
def test_a_node_that_fails_after_its_interrupt_is_not_interrupted_again(
    run: Runner, script: Script
) -> None:
    """Somebody has looked already."""
    app = script.line(MemoryStore(), interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    script.broken = {"b"}
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    script.broken = set()
    assert run.resume(app, "t").status == "completed"


@pytest.mark.requirement("T1", api="App.invoke")
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_run_cut_off_by_a_crash_continues_when_it_is_called_again(
    run: Runner, commits: int
) -> None:
    """Run the script again with the same input, and it continues: a new run takes over."""
    store = CountingStore()
    script = Script()
    crash_after(script.line(store), {"n": 0}, "t", commits=commits)
    app = script.line(store)
    assert run.state(app, "t").status == "running"
    result = run.invoke(app, {"n": 0}, "t")
    assert result.state == {"n": 3, "log": ["a", "b", "c"]}
    assert script.ran == ["a", "b", "c"]
    new, old = store.runs(KEY)
    assert (old.status, new.status, new.previous_run_id) == ("superseded", "completed", old.run_id)
    sources = [entry.source for entry in store.written]
    assert sources == ["input", *["step"] * (commits - 1), "takeover", *["step"] * (4 - commits)]


@pytest.mark.requirement("T1", api="App.invoke")
@pytest.mark.parametrize("end", ["crashed", "failed", "interrupted"])
def test_an_unfinished_thread_is_not_given_another_input(
    run: Runner, script: Script, end: str
) -> None:
    """The message says what can be done; the order of the keys does not matter."""
    app = script.line(MemoryStore(), interrupt_before=["b"] if end == "interrupted" else [])
    given = {"n": 0, "log": ["x"]}
    if end == "crashed":
        crash_after(Script().line(app.store), given, "t", commits=2)
    elif end == "failed":
        script.broken = {"b"}
        with pytest.raises(ExecutionError):
            run.invoke(app, given, "t")
        script.broken = set()
    else:
        run.invoke(app, given, "t")
    before = run.history(app, "t")
    with pytest.raises(InvalidRequest, match="unfinished run with another input"):
        run.invoke(app, {"n": 1}, "t")
    assert run.history(app, "t") == before
    again = run.invoke(app, {"log": ["x"], "n": 0}, "t")
    assert again.status == ("interrupted" if end == "interrupted" else "completed")


@pytest.mark.requirement("T1", api="App.invoke")
def test_invoke_on_an_interrupted_thread_with_the_same_input_runs_nothing(
    run: Runner, script: Script
) -> None:
    """The thread waits for a person: the interrupted result is returned again."""
    store = CountingStore()
    app = script.line(store, interrupt_before=["b"])
    first = run.invoke(app, {"n": 0}, "t")
    written = len(store.batches)
    again = run.invoke(app, {"n": 0}, "t")
    assert again == first
    events = run.stream(app, {"n": 0}, "t")
    assert [(event.type, event.node) for event in events] == [("interrupt", "b")]
    assert (script.ran, len(store.batches)) == (["a"], written)


@pytest.mark.requirement("T1", api="App.invoke")
def test_new_input_on_an_ended_thread_continues_from_its_state_as_a_new_run(
    run: Runner, script: Script
) -> None:
    """Reducers merge into what is there; the step count continues."""
    app = script.line(MemoryStore(), "a")
    first = run.invoke(app, {"n": 0, "log": ["x"]}, "t")
    second = run.invoke(app, {"log": ["y"]}, "t")
    assert second.state == {"n": 2, "log": ["x", "a", "y", "a"]}
    assert second.run_id != first.run_id
    assert [known.source for known in run.history(app, "t")] == ["step", "input"] * 2
    assert [record.previous_run_id for record in app.store.runs(KEY)] == [None, None]


@pytest.mark.requirement("T1", api="App.resume")
def test_of_two_parallel_branches_the_one_that_finished_is_not_run_again(
    run: Runner, script: Script
) -> None:
    """The failure of a sibling costs only its own work."""
    store = MemoryStore()

    def fan() -> App[Trip]:
        graph: StateGraph[Trip] = StateGraph(Trip)
        for name in ("a", "b", "c"):
            graph.add_node(name, script.wrap(branch))
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        return graph.compile(store=store)

    def branch(state: Trip, name: str) -> dict[str, Any]:
        script.ran.append(name)
        if name in script.broken:
            raise ValueError("on purpose")
        return {"log": [name]}

    script.broken = {"b"}
    with pytest.raises(ExecutionError) as caught:
        run.invoke(fan(), {"n": 0}, "t")
    assert caught.value.node == "b"
    assert run.state(fan(), "t").state["log"] == []
    script.broken = set()
    script.ran.clear()
    assert run.resume(fan(), "t")["log"] == ["a", "b", "c"]
    assert script.ran == ["b"]


@pytest.mark.requirement("T1", api="App.resume")
def test_kept_results_outlast_a_second_failure_and_end_with_an_update(
    run: Runner, script: Script
) -> None:
    """A result belongs to the state that it was computed from."""
    store = MemoryStore()
    graph: StateGraph[Trip] = StateGraph(Trip)

    def branch(state: Trip, name: str) -> dict[str, Any]:
        script.ran.append(name)
        if name in script.broken:
            raise ValueError("on purpose")
        return {"log": [f"{name}{state['n']}"]}

    for name in ("a", "b"):
        graph.add_node(name, script.wrap(branch))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=store)
    script.broken = {"b"}
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert sorted(script.ran) == ["a", "b", "b"]
    run.update_state(app, "t", {"n": 7})
    script.broken = set()
    assert run.resume(app, "t")["log"] == ["a7", "b7"]


@pytest.mark.requirement("T1", api="App.resume")
@pytest.mark.parametrize("kind", ["router", "predicate", "start"])
def test_a_router_that_raised_is_asked_again_and_nothing_is_skipped(
    run: Runner, script: Script, kind: str
) -> None:
    """The step before it was committed: no node is repeated."""
    store = MemoryStore()
    broken = [True]

    def route(state: Trip) -> Any:
        if broken[0]:
            raise ValueError("on purpose")
        return kind == "predicate" or ("a" if kind == "start" else "b")

    wrap = script.wrap
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", script.node())
    graph.add_node("b", script.node())
    if kind == "start":
        graph.add_conditional_edges(START, wrap(route), ["a"])
        graph.add_edge("a", "b")
    else:
        graph.add_edge(START, "a")
        if kind == "router":
            graph.add_conditional_edges("a", wrap(route), ["b", END])
        else:
            graph.add_edge("a", "b", when=wrap(route))
            graph.add_edge("a", END)
    graph.add_edge("b", END)
    app = graph.compile(store=store)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert caught.value.node == (START if kind == "start" else "a")
    ran = [] if kind == "start" else ["a"]
    snapshot = run.state(app, "t")
    assert (snapshot.state["log"], snapshot.status) == (ran, "failed")
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    broken[0] = False
    assert run.resume(app, "t").state == {"n": 2, "log": ["a", "b"]}
    assert script.ran == ["a", "b"]


@pytest.mark.requirement("T1", api="App.resume")
def test_a_router_that_led_nowhere_is_asked_again(run: Runner, script: Script) -> None:
    """An answer that was not declared is a failure like any other, up to the very end."""
    answers = ["nowhere", END]
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", script.node())
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: answers.pop(0), [END])
    app = graph.compile(store="memory://")
    with pytest.raises(RoutingError):
        run.invoke(app, {"n": 0}, "t")
    result = run.resume(app, "t")
    assert (result.status, result.state) == ("completed", {"n": 1, "log": ["a"]})
    assert (script.ran, run.state(app, "t").status) == (["a"], "completed")


# -- T1: the graph changed -----------------------------------------------------------------


class Old(TypedDict):
    n: int
    log: Annotated[list[str], append]


class Removed(TypedDict):
    n: int


class Renamed(TypedDict):
    number: int
    log: Annotated[list[str], append]


class Retyped(TypedDict):
    n: str
    log: Annotated[list[str], append]


class Unreduced(TypedDict):
    n: int
    log: list[str]


class Requiring(TypedDict):
    n: int
    log: Annotated[list[str], append]
    more: int


class Extended(TypedDict):
    n: int
    log: Annotated[list[str], append]
    more: NotRequired[int]


def idle(state: Any) -> None: ...


def paused(run: Runner, store: MemoryStore, end: str = "interrupted") -> None:
    """A thread of ``a -> b -> c`` that would run ``b`` next."""
    script = Script()
    graph: StateGraph[Old] = StateGraph(Old)
    for name in ("a", "b", "c"):
        graph.add_node(name, script.node())
    graph.add_edges(START, "a", "b", "c", END)
    if end == "interrupted":
        run.invoke(graph.compile(store=store, interrupt_before=["b"]), {"n": 0}, "t")
    elif end == "crashed":
        crash_after(graph.compile(store=store), {"n": 0}, "t", commits=2)
    else:
        script.broken = {"b"}
        with pytest.raises(ExecutionError):
            run.invoke(graph.compile(store=store), {"n": 0}, "t")


def changed(store: MemoryStore, state: type[Any], *names: str) -> App[Any]:
    graph: StateGraph[Any] = StateGraph(state)
    for name in names:
        graph.add_node(name, idle)
    graph.add_edges(START, *names, END)
    return graph.compile(store=store)


@pytest.mark.requirement("T1", api="ResumeRefused")
@pytest.mark.parametrize("end", ["interrupted", "failed", "crashed"])
@pytest.mark.parametrize(
    ("state", "names", "says"),
    [
        (Old, ("a", "c"), "node 'b' would run next but was removed"),
        (
            Old,
            ("a", "bee", "c"),
            "removed (renamed to 'bee'? then declare renamed_from='b')",
        ),
        (Removed, ("a", "b", "c"), "state key 'log' was removed"),
        (Renamed, ("a", "b", "c"), "state key 'n' was removed (renamed to 'number'?)"),
        (Retyped, ("a", "b", "c"), "state key 'n' was int and is now str"),
        (Unreduced, ("a", "b", "c"), "state key 'log' was list[str] with reducer append"),
        (Requiring, ("a", "b", "c"), "state key 'more' was added and is required"),
    ],
)
def test_a_thread_that_no_longer_fits_the_graph_is_refused_with_what_changed(
    run: Runner, end: str, state: type[Any], names: tuple[str, ...], says: str
) -> None:
    """Nothing is run and nothing is written; it is never silently finished."""
    store = MemoryStore()
    paused(run, store, end)
    before = list(store.history(KEY))
    app = changed(store, state, *names)
    with pytest.raises(ResumeRefused) as caught:
        run.resume(app, "t")
    assert any(says in reason for reason in caught.value.reasons)
    assert caught.value.thread == "t"
    assert says in str(caught.value)
    assert list(store.history(KEY)) == before


@pytest.mark.requirement("T1", api="ResumeRefused")
def test_the_same_input_does_not_get_around_a_refusal(run: Runner) -> None:
    """``invoke`` on a thread that does not fit is refused like ``resume``."""
    for end in ("interrupted", "failed", "crashed"):
        store = MemoryStore()
        paused(run, store, end)
        with pytest.raises(ResumeRefused, match="'b' would run next"):
            run.invoke(changed(store, Old, "a", "c"), {"n": 0}, "t")


@dataclass
class Page:
    title: str


class WithPage(TypedDict, total=False):
    n: int
    page: Page


class WithText(TypedDict, total=False):
    n: int
    page: str


@pytest.mark.requirement("T1", api="ResumeRefused")
@pytest.mark.parametrize("state", [WithText, Removed])
def test_a_key_whose_type_is_gone_is_refused_before_it_is_read(
    run: Runner, state: type[Any]
) -> None:
    """The stored value may not be readable any more; what changed is said all the same."""
    store = MemoryStore()
    graph: StateGraph[WithPage] = StateGraph(WithPage)
    graph.add_node("a", idle)
    graph.add_node("b", idle)
    graph.add_edges(START, "a", "b", END)
    old = graph.compile(store=store, interrupt_before=["b"])
    run.invoke(old, {"n": 0, "page": Page("x")}, "t")
    with pytest.raises(ResumeRefused, match="state key 'page'"):
        run.resume(changed(store, state, "a", "b"), "t")
    run.resume(old, "t")
    with pytest.raises(ResumeRefused, match="state key 'page'"):
        run.invoke(changed(store, state, "a", "b"), {"n": 1}, "t")


@pytest.mark.requirement("T1", api="CheckpointMetadata.note")
@pytest.mark.parametrize("end", ["interrupted", "failed", "crashed"])
@pytest.mark.parametrize(
    ("state", "names", "says"),
    [
        (Old, ("a", "b", "c", "d"), "node 'd' added"),
        (Old, ("first", "a", "b", "c"), "node 'first' added"),
        (Extended, ("a", "b", "c"), "key 'more' added"),
    ],
)
def test_what_was_added_elsewhere_strands_nobody_and_the_history_says_so(
    run: Runner, end: str, state: type[Any], names: tuple[str, ...], says: str
) -> None:
    """A node, an edge or an optional key may be added while threads are paused."""
    store = MemoryStore()
    paused(run, store, end)
    app = changed(store, state, *names)
    result = run.resume(app, "t")
    assert (result.status, result["n"]) == ("completed", 1)
    noted = [known for known in run.history(app, "t") if known.note]
    assert len(noted) == 1
    assert says in noted[0].note
    assert noted[0].source == "takeover"
    assert noted[0].fingerprint == app.fingerprint


@pytest.mark.requirement("T1", api="App.resume")
def test_an_interrupt_that_was_seen_stays_seen_when_the_graph_has_grown(run: Runner) -> None:
    """The takeover that notes the change is not a new interrupt."""
    store = MemoryStore()
    paused(run, store)
    broken = [True]

    def fail(state: Old) -> None:
        if broken[0]:
            raise ValueError("on purpose")

    graph: StateGraph[Old] = StateGraph(Old)
    for name in ("a", "b", "c", "d"):
        graph.add_node(name, fail if name == "b" else idle)
    graph.add_edges(START, "a", "b", "c", "d", END)
    app = graph.compile(store=store, interrupt_before=["b"])
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert run.history(app, "t")[0].source == "takeover"
    broken[0] = False
    assert run.resume(app, "t").status == "completed"


@pytest.mark.requirement("T1", api="CheckpointMetadata.note")
def test_an_edge_added_elsewhere_strands_nobody(run: Runner) -> None:
    """Only an edge was added, behind the thread."""
    store = MemoryStore()
    paused(run, store)
    graph: StateGraph[Old] = StateGraph(Old)
    for name in ("a", "b", "c"):
        graph.add_node(name, idle)
    graph.add_edges(START, "a")
    graph.add_conditional_edges("a", lambda state: "b", ["b", "c"])
    graph.add_edges("b", "c", END)
    app = graph.compile(store=store)
    assert run.resume(app, "t").status == "completed"
    notes = [known.note for known in run.history(app, "t") if known.note]
    assert notes == ["the graph changed: edge a -> c added, edge a -> b has another kind"]


@pytest.mark.requirement("T1", api="CheckpointMetadata.note")
def test_a_new_input_on_a_thread_of_an_older_graph_is_noted_too(run: Runner) -> None:
    """The thread ended long ago; the new run begins with the change in its history."""
    store = MemoryStore()
    run.invoke(changed(store, Old, "a"), {"n": 0}, "t")
    app = changed(store, Extended, "a", "b")
    run.invoke(app, {"n": 1}, "t")
    noted = [(known.source, known.note) for known in run.history(app, "t") if known.note]
    assert len(noted) == 1
    assert noted[0][0] == "input"
    assert "node 'b' added" in noted[0][1]


@pytest.mark.requirement("T1", api="ResumeRefused")
def test_a_thread_whose_old_graph_is_not_on_record_is_refused(run: Runner) -> None:
    """Without the old manifest nobody can tell whether the thread fits."""

    class Forgetful(CountingStore):
        def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
            return None

    store: Any = Forgetful()
    paused(run, store)
    with pytest.raises(ResumeRefused, match="not recorded"):
        run.resume(changed(store, Old, "a", "b", "c", "d"), "t")


@pytest.mark.requirement("T1", api="App.resume")
def test_a_fixed_node_strands_nobody_and_needs_no_note(run: Runner) -> None:
    """The source of a node is not part of the fingerprint."""
    store = MemoryStore()
    paused(run, store, "failed")
    app = changed(store, Old, "a", "b", "c")
    assert run.resume(app, "t").status == "completed"
    assert {known.note for known in run.history(app, "t")} == {""}


# -- T2 ------------------------------------------------------------------------------------


@pytest.mark.requirement("T2", api="App.update_state")
def test_an_update_on_the_head_is_a_new_checkpoint_with_the_same_next(
    run: Runner, script: Script
) -> None:
    """It records its parent, and resume continues with what it says."""
    app = script.line(MemoryStore(), interrupt_before=["c"])
    run.invoke(app, {"n": 0}, "t")
    head = run.state(app, "t")
    made = run.update_state(app, "t", {"n": 10, "log": ["by hand"]})
    assert (made.seq, made.parent_id, made.next) == (head.seq + 1, head.id, ("c",))
    assert (made.source, made.step, made.nodes) == ("update", head.step, head.nodes)
    assert run.state(app, "t").state == {"n": 10, "log": ["a", "b", "by hand"]}
    assert run.state(app, "t").status == "interrupted"
    assert run.resume(app, "t").state == {"n": 11, "log": ["a", "b", "by hand", "c"]}


@pytest.mark.requirement("T2", api="App.update_state")
@pytest.mark.parametrize("by", ["id", "seq"])
def test_an_update_of_an_old_checkpoint_branches_off_it(
    run: Runner, script: Script, by: str
) -> None:
    """The parent is the old one, its next is inherited, and the head is the new branch."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    parent = run.state(app, "t", at=2)
    assert parent.next == ("b",)
    made = run.update_state(app, "t", {"n": 100}, at=parent.id if by == "id" else parent.seq)
    assert (made.seq, made.parent_id, made.next) == (5, parent.id, ("b",))
    assert run.state(app, "t").state == {"n": 100, "log": ["a"]}
    assert run.resume(app, "t").state == {"n": 102, "log": ["a", "b", "c"]}
    assert run.state(app, "t", at=4).state == {"n": 3, "log": ["a", "b", "c"]}


@pytest.mark.requirement("T2", api="InvalidRequest")
def test_an_update_that_names_an_unknown_parent_is_refused(run: Runner, script: Script) -> None:
    """By id, by seq, of another thread, or of a thread that is not there."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    other = run.invoke(app, {"n": 0}, "other")
    assert other.thread is not None
    foreign = run.state(app, "other").id
    for at in ("no-such-id", foreign, 99, 0):
        with pytest.raises(InvalidRequest, match="no checkpoint"):
            run.update_state(app, "t", {"n": 1}, at=at)
    with pytest.raises(InvalidRequest, match="there is no thread"):
        run.update_state(app, "nobody", {"n": 1})
    assert len(run.history(app, "t")) == 4


@pytest.mark.requirement("T2", api="InvalidRequest")
@pytest.mark.parametrize("update", [{"m": 1}, {"n": "text"}, {"log": 3}])
def test_an_update_that_does_not_fit_the_state_is_refused(
    run: Runner, script: Script, update: dict[str, Any]
) -> None:
    """Nothing is appended."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    with pytest.raises(InvalidRequest):
        run.update_state(app, "t", update)
    assert len(run.history(app, "t")) == 4


# -- T3 ------------------------------------------------------------------------------------


@pytest.mark.requirement("T3", api="App.fork")
def test_a_thread_can_run_again_from_any_old_checkpoint(run: Runner, script: Script) -> None:
    """The history shows the branches by their parents, and the head is the newest."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    for at in (1, 2, 3):
        target = run.state(app, "t", at=at)
        made = run.fork(app, "t", at)
        assert (made.source, made.parent_id, made.next) == ("fork", target.id, target.next)
        assert run.state(app, "t").state == target.state
        script.ran.clear()
        assert run.resume(app, "t").state == {"n": 3, "log": ["a", "b", "c"]}
        assert script.ran == ["a", "b", "c"][at - 1 :]
    history = run.history(app, "t")
    parents = [known.parent_id for known in history]
    for at in (1, 2, 3):
        old = next(known for known in history if known.seq == at)
        assert parents.count(old.id) == 2
    assert run.state(app, "t").seq == history[0].seq


@pytest.mark.requirement("T3", api="App.fork")
def test_fork_can_be_a_separate_thread(run: Runner, script: Script) -> None:
    """The old thread stays as it is; the new one says where it came from."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    before = run.history(app, "t")
    made = run.fork(app, "t", 2, as_thread="branch")
    assert (made.key.thread, made.seq, made.next) == ("branch", 1, ("b",))
    assert (made.parent_id, made.note) == (before[-2].id, "from seq 2 of thread 't'")
    assert run.state(app, "branch").status == "interrupted"
    assert run.resume(app, "branch").state == {"n": 3, "log": ["a", "b", "c"]}
    assert run.history(app, "t") == before
    with pytest.raises(InvalidRequest, match="already exists"):
        run.fork(app, "t", 2, as_thread="branch")
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        run.fork(app, "t", 17)


@pytest.mark.requirement("T3", api="App.fork")
def test_a_fork_to_another_tenant_brings_its_graph_along(run: Runner, script: Script) -> None:
    """The new thread can be resumed by a graph that has grown since."""
    store = MemoryStore()
    run.invoke(script.line(store), {"n": 0}, "t")
    run.fork(script.line(store), "t", 3, as_thread=ThreadKey("other", "t"))
    grown = script.line(store, "a", "b", "c", "d", tenant="other")
    assert run.resume(grown, "t")["log"] == ["a", "b", "c", "d"]


@pytest.mark.requirement("T3", api="App.state")
def test_any_old_checkpoint_can_be_looked_at(run: Runner, script: Script) -> None:
    """By seq or by id; the state is the one that was there."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    for known in run.history(app, "t"):
        for at in (known.seq, known.id):
            snapshot = run.state(app, "t", at)
            assert (snapshot.id, snapshot.state["n"]) == (known.id, known.step)
    assert [known.seq for known in run.history(app, "t", limit=2)] == [4, 3]


@pytest.mark.requirement("T3", api="App.ahistory")
def test_a_long_history_is_listed_whole(run: Runner) -> None:
    """Newest first, however long; the state at each place is the one that was there."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    script = Script()
    graph.add_node("a", script.node())
    graph.add_edge(START, "a")
    graph.add_edge("a", "a", when=lambda state: state["n"] < 260)
    graph.add_edge("a", END)
    from milecastle import ExecutionOptions

    app = graph.compile(store="memory://")
    run.invoke(app, {"n": 0}, "t", options=ExecutionOptions(max_steps=300))
    assert [known.seq for known in run.history(app, "t")] == [*range(261, 0, -1)]
    for at in (1, 129, 130, 200, 261):
        assert run.state(app, "t", at).state == {"n": at - 1, "log": ["a"] * (at - 1)}


# -- T4 ------------------------------------------------------------------------------------


@pytest.mark.requirement("T4", api="ResumeRefused")
def test_resuming_a_thread_that_ended_says_so(run: Runner, script: Script) -> None:
    """Nothing is run or written."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    before = run.history(app, "t")
    with pytest.raises(ResumeRefused, match="already ended") as caught:
        run.resume(app, "t")
    assert caught.value.thread == "t"
    assert run.history(app, "t") == before


@pytest.mark.requirement("T4", api="ResumeRefused")
def test_resuming_with_nothing_saved_says_so(run: Runner, script: Script) -> None:
    """An unknown thread, an app without a store, and no thread at all are distinguished."""
    with pytest.raises(InvalidRequest, match="there is no thread"):
        run.resume(script.line(MemoryStore()), "t")
    with pytest.raises(InvalidRequest, match="needs a store"):
        run.resume(script.line(None), "t")
    with pytest.raises(InvalidRequest, match="needs a thread"):
        run.invoke(script.line(MemoryStore()), None)
    for look in (run.state, run.history):
        with pytest.raises(InvalidRequest, match="no store"):
            look(script.line(None), "t")


# -- T5 ------------------------------------------------------------------------------------


class Deep(TypedDict, total=False):
    title: str
    docs: list[dict[str, Any]]
    by_number: dict[int, str]
    gone: int
    came: int


@pytest.mark.requirement("T5", api="App.diff")
def test_difference_between_two_checkpoints_is_reported_by_path(run: Runner, wrap: Wrap) -> None:
    """Added, removed and changed, in both directions, between any two."""

    def edit(state: Deep) -> dict[str, Any]:
        return {
            "docs": [{"title": "new", "kept": 1}, {"title": "b"}],
            "by_number": {2: "two"},
            "came": 1,
        }

    graph: StateGraph[Deep] = StateGraph(Deep)
    graph.add_node("edit", wrap(edit))
    graph.add_edges(START, "edit", END)
    app = graph.compile(store="memory://")
    given: Deep = {
        "title": "same",
        "docs": [{"title": "old", "kept": 1}],
        "by_number": {1: "one"},
    }
    run.invoke(app, given, "t")
    assert run.diff(app, "t", 1, 2) == [
        Change("$.docs[0].title", "changed", "old", "new"),
        Change("$.docs[1]", "added", new={"title": "b"}),
        Change("$.by_number[1]", "removed", old="one"),
        Change("$.by_number[2]", "added", new="two"),
        Change("$.came", "added", new=1),
    ]
    ids = [known.id for known in run.history(app, "t")]
    kinds: list[tuple[str, Literal["added", "removed", "changed"]]] = [
        (change.path, change.kind) for change in run.diff(app, "t", ids[0], ids[1])
    ]
    assert kinds == [
        ("$.docs[0].title", "changed"),
        ("$.docs[1]", "removed"),
        ("$.by_number[2]", "removed"),
        ("$.by_number[1]", "added"),
        ("$.came", "removed"),
    ]
    assert run.diff(app, "t", 2) == []


@pytest.mark.requirement("T5", api="App.diff")
def test_branches_can_be_compared(run: Runner, script: Script) -> None:
    """Any two checkpoints of a thread, also of different branches."""
    app = script.line(MemoryStore())
    run.invoke(app, {"n": 0}, "t")
    made = run.update_state(app, "t", {"n": 100}, at=2)
    assert run.diff(app, "t", 2, made.id) == [Change("$.n", "changed", 1, 100)]
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        run.diff(app, "t", 1, 99)


@pytest.mark.requirement("T1", api="App.stream")
def test_a_stream_resumes_a_thread_as_well(run: Runner, script: Script) -> None:
    """``stream(None, thread)`` is ``resume`` told as events."""
    seen = Recorder()
    app = script.line(MemoryStore(), interrupt_before=["b"], observers=[seen])
    first = run.stream(app, {"n": 0}, "t")
    assert [(event.type, event.node) for event in first] == [("update", "a"), ("interrupt", "b")]
    assert first[-1]["state"] == {"n": 1, "log": ["a"]}
    second = run.stream(app, None, "t")
    assert [(event.type, event.node) for event in second] == [("update", "b"), ("update", "c")]
    assert "checkpoint_resume" in seen.types
