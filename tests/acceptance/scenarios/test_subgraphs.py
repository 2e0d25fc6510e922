"""G8: a compiled graph as a node of another: its own log, its own questions, its own branch."""

from __future__ import annotations

from itertools import permutations
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    DefinitionError,
    InvalidRequest,
    InvalidUpdate,
    ResumeRefused,
    Retry,
    StateGraph,
    Store,
    ThreadKey,
    add,
    append,
    interrupt,
    merge,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import crash_everywhere
from tests.acceptance.scenarios.calling import (
    Caller,
    Calls,
    Paint,
    crash_at,
    everything,
    ids,
    of_state,
    questions,
)


class Outer(TypedDict, total=False):
    topic: list[str]
    items: list[str]
    total: Annotated[int, add]
    facts: Annotated[dict[str, int], merge]
    log: Annotated[list[str], append]


class Inner(TypedDict, total=False):
    topic: list[str]
    item: str
    total: Annotated[int, add]
    facts: Annotated[dict[str, int], merge]
    log: Annotated[list[str], append]
    own: str


class Apart(TypedDict, total=False):
    word: str
    length: int


def says(text: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"log": [text]}

    return node


def asks(question: str, calls: Calls | None = None) -> Any:
    def node(state: Any) -> dict[str, Any]:
        name = f"{question} {state['item']}" if "item" in state else question
        answer = interrupt(name, answer=str)
        if calls is not None:
            calls(name)
        return {"log": [f"{name}: {answer}"]}

    return node


def line(state: type, *nodes: Any, **compiled: Any) -> App[Any]:
    """Nodes n0, n1, ... one after the other."""
    graph: StateGraph[Any] = StateGraph(state)
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    graph.add_edges(START, *names, END)
    return graph.compile(**compiled)


def fan(state: type, store: Store | None = None, **nodes: Any) -> App[Any]:
    """Nodes in parallel."""
    graph: StateGraph[Any] = StateGraph(state)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(store=store)


def children(store: Store, thread: str = "t") -> list[str]:
    found = store.threads("default", limit=100)
    return [info.key.thread for info in found if info.key.thread.startswith(f"{thread}\x1f")]


# ---- state in and out


@pytest.mark.requirement("G8", api="StateGraph.add_node")
def test_shared_keys_lead_in_and_out_and_reducers_add_once(
    call: Caller, store: Store, paint: Paint
) -> None:
    def inside(state: Any) -> dict[str, Any]:
        assert state["topic"] == ["walls"]
        assert state["log"] == ["before"]
        return {"log": ["inside"], "total": 2, "facts": {"b": 2}, "own": "kept", "topic": ["new"]}

    inner = line(Inner, paint(inside), paint(says("more")))
    app = line(Outer, paint(says("before")), inner, says("after"), store=store)
    result = call.invoke(app, {"topic": ["walls"], "total": 5, "facts": {"a": 1}})
    assert result.state == {
        "topic": ["new"],
        "total": 7,
        "facts": {"a": 1, "b": 2},
        "log": ["before", "inside", "more", "after"],
    }


@pytest.mark.requirement("G8", api="StateGraph.add_node")
def test_states_that_share_nothing_are_led_by_give_and_take(call: Caller, store: Store) -> None:
    inner = line(Apart, of_state(lambda state: {"length": len(state["word"])}))
    graph: StateGraph[Outer] = StateGraph(Outer)
    graph.add_node(
        "measure",
        inner,
        give=lambda state: {"word": state["topic"][0]},
        take=lambda state: {"total": state["length"]},
    )
    graph.add_edges(START, "measure", END)
    app = graph.compile(store=store)
    assert call.invoke(app, {"topic": ["walls"], "total": 1})["total"] == 6

    bare: StateGraph[Outer] = StateGraph(Outer)
    bare.add_node("measure", inner)
    bare.add_edges(START, "measure", END)
    with pytest.raises(DefinitionError, match="MC124"):
        bare.compile()


@pytest.mark.requirement("G8", api="StateGraph.add_node")
def test_each_instance_in_a_fan_out_is_given_its_item_and_stays_apart(
    call: Caller, store: Store, paint: Paint
) -> None:
    def inside(state: Any) -> dict[str, Any]:
        return {"log": [state["item"]], "own": state["item"], "total": 1}

    def tell(state: Any) -> dict[str, Any]:
        return {"log": [f"{state['own']} again"]}

    inner = line(Inner, paint(inside), paint(tell))
    graph: StateGraph[Outer] = StateGraph(Outer)
    graph.add_node("each", inner, limit=2)
    graph.map(START, "each", over="items", item="item")
    graph.add_edge("each", END)
    result = call.invoke(graph.compile(store=store), {"items": ["a", "b", "c"]})
    assert result["log"] == ["a", "a again", "b", "b again", "c", "c again"]
    assert result["total"] == 3
    assert len(children(store)) == 3


def test_instances_that_were_read_back_do_not_write_what_they_did_not_change(
    call: Caller, store: Store
) -> None:
    inner = line(Inner, asks("q"))
    app = fan(Outer, store, one=inner, two=inner)
    result = call.invoke(app, {"topic": ["a topic"], "facts": {"a": 1}})
    given = {found.id: "yes" for found in result.interrupts}
    result = call.resume(app, answers=given)
    assert result["log"] == ["q: yes", "q: yes"]
    assert result["topic"] == ["a topic"]


def test_a_subgraph_that_takes_away_from_a_reducer_is_refused(call: Caller) -> None:
    class Replaced(TypedDict, total=False):
        log: list[str]

    inner = line(Replaced, of_state(lambda state: {"log": []}))
    app = line(Outer, says("before"), inner, store=MemoryStore())
    error = call.fails(app, {})
    assert isinstance(error.__cause__, InvalidUpdate)
    assert "take=" in str(error.__cause__)


# ---- questions


@pytest.mark.requirement("G8", api="App.resume")
def test_a_question_inside_two_subgraphs_surfaces_at_the_top(call: Caller, store: Store) -> None:
    deep = line(Inner, says("deep"), asks("deep?"))
    middle = line(Inner, says("middle"), deep, says("middle again"))
    app = line(Outer, middle, says("top"), store=store)
    result = call.invoke(app, {})
    assert (result.status, questions(result)) == ("interrupted", ["deep?"])
    assert app.state("t").interrupts == result.interrupts
    result = call.resume(app, answer="yes")
    assert result["log"] == ["middle", "deep", "deep?: yes", "middle again", "top"]
    assert len(children(store)) == 2


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_questions_on_every_level_are_answered_in_any_order(order: tuple[int, ...]) -> None:
    calls = Calls()
    deep = fan(Inner, x=asks("x", calls), y=asks("y", calls))
    middle = fan(Inner, deep=deep, z=asks("z", calls))
    app = fan(Outer, MemoryStore(), middle=middle, w=asks("w", calls))
    result = app.invoke({}, "t")
    open_ids = ids(result)
    assert sorted(open_ids) == ["w", "x", "y", "z"]
    names = [sorted(open_ids)[number] for number in order]
    for number, name in enumerate(names):
        assert calls.count(name) == 0
        result = app.resume("t", answers={open_ids[name]: name.upper()})
        assert calls.count(name) == 1  # an answered task continues at once
        assert sorted(questions(result)) == sorted(names[number + 1 :])
    assert result.status == "completed"
    assert sorted(result["log"]) == ["w: W", "x: X", "y: Y", "z: Z"]


def test_questions_on_every_level_on_every_store(call: Caller, store: Store) -> None:
    deep = fan(Inner, x=asks("x"), y=asks("y"))
    middle = fan(Inner, deep=deep, z=asks("z"))
    app = fan(Outer, store, middle=middle, w=asks("w"))
    open_ids = ids(call.invoke(app, {}))
    result = call.resume(app, answers={open_ids["y"]: "Y", open_ids["w"]: "W"})
    assert sorted(questions(result)) == ["x", "z"]
    assert ids(result)["x"] == open_ids["x"]
    result = call.resume(app, answers={open_ids["z"]: "Z"})
    result = call.resume(app, answer="X")
    assert sorted(result["log"]) == ["w: W", "x: X", "y: Y", "z: Z"]


def test_each_question_of_a_subgraph_gets_its_own_answer_and_an_old_id_is_refused(
    call: Caller, store: Store
) -> None:
    inner = line(Inner, asks("first"), asks("second"))
    app = line(Outer, inner, store=store)
    first = ids(call.invoke(app, {}))["first"]
    second = ids(call.resume(app, answers={first: "one"}))["second"]
    assert second != first
    before = everything(app)
    with pytest.raises(InvalidRequest, match="no open question"):
        call.resume(app, answers={first: "again"})
    assert everything(app) == before
    result = call.resume(app, answers={second: "two"})
    assert result["log"] == ["first: one", "second: two"]
    with pytest.raises((InvalidRequest, ResumeRefused)):
        call.resume(app, answers={second: "again"})


def test_instances_of_one_subgraph_are_answered_by_id(call: Caller, store: Store) -> None:
    graph: StateGraph[Outer] = StateGraph(Outer)
    graph.add_node("each", line(Inner, asks("what about")))
    graph.map(START, "each", over="items", item="item")
    graph.add_edge("each", END)
    app = graph.compile(store=store)
    result = call.invoke(app, {"items": ["a", "b", "c"]})
    assert questions(result) == ["what about a", "what about b", "what about c"]
    given = {found.id: found.question[-1].upper() for found in result.interrupts}
    last = result.interrupts[2].id
    call.resume(app, answers={last: given.pop(last)})
    result = call.resume(app, answers=given)
    assert result["log"] == ["what about a: A", "what about b: B", "what about c: C"]


def test_instance_that_waits_makes_room_for_the_next(call: Caller, store: Store) -> None:
    """Fails if it counts against the limit of its node: then the run never stops to ask."""
    graph: StateGraph[Outer] = StateGraph(Outer)
    graph.add_node("each", line(Inner, asks("what about")), limit=1)
    graph.map(START, "each", over="items", item="item")
    graph.add_edge("each", END)
    result = call.invoke(graph.compile(store=store), {"items": ["a", "b", "c"]})
    assert questions(result) == ["what about a", "what about b", "what about c"]


def test_interrupt_before_inside_a_subgraph_stops_the_whole_run(call: Caller, store: Store) -> None:
    calls = Calls()
    inner = line(Inner, says("in"), of_state(lambda state: calls("n1")), interrupt_before=["n1"])
    app = line(Outer, inner, says("out"), store=store)
    result = call.invoke(app, {})
    assert result.status == "interrupted"
    assert [found.node for found in result.interrupts] == ["n1"]
    assert calls.made == []
    result = call.resume(app)
    assert (result.status, result["log"], calls.made) == ("completed", ["in", "out"], ["n1"])


def test_the_same_input_while_a_subgraph_waits_changes_nothing(call: Caller, store: Store) -> None:
    app = line(Outer, line(Inner, asks("q")), store=store)
    result = call.invoke(app, {"items": ["x"]})
    before = everything(app)
    again = call.invoke(app, {"items": ["x"]})
    assert again.interrupts == result.interrupts
    assert everything(app) == before
    with pytest.raises(InvalidRequest, match="another input"):
        call.invoke(app, {"items": ["y"]})


# ---- failing, retrying, dying


def test_failed_subgraph_continues_where_it_was(call: Caller, store: Store) -> None:
    calls, broken = Calls(), [True]

    def breaks(state: Any) -> dict[str, Any]:
        calls("breaks")
        if broken:
            raise ValueError("no")
        return {"log": ["fixed"]}

    def first(state: Any) -> dict[str, Any]:
        calls("first")
        return {"log": ["first"]}

    app = line(Outer, line(Inner, first, breaks), store=store)
    error = call.fails(app, {})
    assert error.node == "n0"
    assert isinstance(error.__cause__, Exception)
    broken.clear()
    result = call.resume(app)
    assert result["log"] == ["first", "fixed"]
    assert (calls.count("first"), calls.count("breaks")) == (1, 2)


def test_subgraph_with_a_retry_continues_where_it_was(
    call: Caller, store: Store, paint: Paint
) -> None:
    calls = Calls()

    def first(state: Any) -> dict[str, Any]:
        calls("first")
        return {"log": ["first"]}

    def breaks_twice(state: Any) -> dict[str, Any]:
        calls("second")
        if calls.count("second") < 3:
            raise ValueError("no")
        return {"log": ["second"]}

    graph: StateGraph[Outer] = StateGraph(Outer)
    inner = line(Inner, paint(first), paint(breaks_twice))
    graph.add_node("child", inner, retry=Retry(attempts=3, delay=0))
    graph.add_edges(START, "child", END)
    assert call.invoke(graph.compile(store=store), {})["log"] == ["first", "second"]
    assert (calls.count("first"), calls.count("second")) == (1, 3)


def test_retry_inside_a_subgraph_runs_while_its_sibling_continues(
    call: Caller, store: Store
) -> None:
    calls = Calls()

    def breaks_once(state: Any) -> dict[str, Any]:
        calls("try")
        if calls.count("try") == 1:
            raise ValueError("no")
        return {"log": ["at last"]}

    graph: StateGraph[Inner] = StateGraph(Inner)
    graph.add_node("tries", breaks_once, retry=Retry(attempts=2, delay=0.01))
    graph.add_edges(START, "tries", END)
    app = fan(Outer, store, child=graph.compile(), other=says("other"))
    assert call.invoke(app, {})["log"] == ["at last", "other"]


def test_a_subgraph_may_fall_back(call: Caller, store: Store) -> None:
    def breaks(state: Any) -> Any:
        raise ValueError("no")

    def fallback(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": sorted(ctx.failures)}

    graph: StateGraph[Outer] = StateGraph(Outer)
    graph.add_node("child", line(Inner, breaks), on_error="plan b")
    graph.add_node("plan b", fallback)
    graph.add_edges(START, "child", END)
    graph.add_edge("plan b", END)
    assert call.invoke(graph.compile(store=store), {})["log"] == ["child"]


@pytest.mark.parametrize("effect", range(2, 24, 3))
@pytest.mark.requirement("G8", api="StateGraph.add_node")
def test_a_crash_inside_a_subgraph_repeats_no_committed_step(
    call: Caller, store: Store, effect: int
) -> None:
    calls = Calls()

    def counted(name: str) -> Any:
        def node(state: Any) -> dict[str, Any]:
            calls(name)
            return {"log": [name]}

        return node

    inner = line(Inner, counted("a"), counted("b"))
    app = line(Outer, counted("x"), inner, counted("y"), store=store)
    crash_at(app, {}, effect)
    made = list(calls.made)
    if app.state("t").status != "completed":
        result = call.invoke(app, {})
        assert result["log"] == ["x", "a", "b", "y"]
    assert sum(calls.count(name) for name in "xaby") <= 5
    assert len(calls.made) - len(made) <= 4


def test_a_crash_after_one_of_two_answers_loses_neither(call: Caller, store: Store) -> None:
    calls = Calls()
    app = line(Outer, fan(Inner, x=asks("x", calls), y=asks("y", calls)), store=store)
    open_ids = ids(call.invoke(app, {}))
    assert crash_at(app, None, 5, answers={open_ids["x"]: "X"}) is not None
    result = call.resume(app)
    assert questions(result) == ["y"]
    result = call.resume(app, answer="Y")
    assert result["log"] == ["x: X", "y: Y"]


def test_no_crash_changes_how_parallel_subgraphs_end() -> None:
    deep = line(Inner, says("1"), says("2"))
    app = fan(Outer, MemoryStore(), a=line(Inner, says("0"), deep), b=says("b"))
    assert not crash_everywhere(app, {}).mismatches


# ---- branches


@pytest.mark.requirement("G8", api="StateGraph.add_node")
def test_fork_of_the_parent_has_its_own_child(call: Caller, store: Store) -> None:
    calls = Calls()

    def first(state: Any) -> dict[str, Any]:
        calls("first")
        return {"log": ["first"]}

    app = line(Outer, line(Inner, first, asks("q")), store=store)
    result = call.invoke(app, {})
    app.fork("t", None, "fork")
    mine = call.resume(app, answer="mine")
    other = call.resume(app, "fork")
    assert questions(other) == ["q"]
    assert ids(other)["q"] != ids(result)["q"] or other.run_id != result.run_id
    other = call.resume(app, "fork", answer="other")
    assert mine["log"] == ["first", "q: mine"]
    assert other["log"] == ["first", "q: other"]
    assert calls.count("first") == 2
    assert len(children(store)) == len(children(store, "fork")) == 1


def test_going_back_in_the_parent_asks_the_subgraph_again(call: Caller, store: Store) -> None:
    app = line(Outer, line(Inner, asks("q")), store=store)
    old = ids(call.invoke(app, {}))["q"]
    call.resume(app, answer="first")
    app.fork("t", 2)
    result = call.resume(app)
    assert questions(result) == ["q"]
    with pytest.raises(InvalidRequest, match="no open question"):
        call.resume(app, answers={old: "stale"})
    assert call.resume(app, answer="second")["log"] == ["q: second"]
    assert len(children(store)) == 2


def test_time_travel_inside_a_subgraph(call: Caller, store: Store) -> None:
    inner = line(Inner, says("first"), asks("q"), store=store)
    app = line(Outer, inner, store=store)
    call.invoke(app, {})
    (thread,) = children(store)
    key = ThreadKey("default", thread)
    assert inner.state(key).state["log"] == ["first"]
    inner.update_state(key, {"log": ["edited"]})
    result = call.resume(app, answer="A")
    if result.status == "interrupted":
        result = call.resume(app, answer="A")
    assert result["log"] == ["first", "edited", "q: A"]


def test_threads_of_subgraphs_go_with_their_parent(call: Caller, store: Store) -> None:
    from milecastle import CheckpointConfig

    graph: StateGraph[Outer] = StateGraph(Outer)
    graph.add_node("child", line(Inner, says("in")))
    graph.add_edges(START, "child", END)
    app = graph.compile(checkpoint=CheckpointConfig(store=store, preserve=False))
    assert call.invoke(app, {})["log"] == ["in"]
    assert children(store) == []
    assert not list(store.threads("default", limit=10))


def test_without_a_store_subgraphs_run_as_well(call: Caller, paint: Paint) -> None:
    app = line(Outer, says("out"), line(Inner, paint(says("in"))), says("end"))
    result = call.invoke(app, {}, thread=None)
    assert result["log"] == ["out", "in", "end"]
