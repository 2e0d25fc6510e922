"""G: graphs. What users write, how it is checked, and how it runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, cast

import pytest
from pydantic import BaseModel

from milecastle import (
    END,
    START,
    App,
    Context,
    DefinitionError,
    InvalidRequest,
    InvalidUpdate,
    StateGraph,
    ThreadKey,
    add,
    append,
    last,
    maximum,
    merge,
    minimum,
    union,
)
from milecastle.errors import RoutingError
from milecastle.graph.comparison import compare
from milecastle.model.manifest import Manifest
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import Runner, Wrap, always


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


def line(state: type[Any], *functions: Any) -> StateGraph[Any]:
    graph: StateGraph[Any] = StateGraph(state)
    for function in functions:
        graph.add_node(function)
    graph.add_edges(START, *(function.__name__ for function in functions), END)
    return graph


# -- G1 ------------------------------------------------------------------------------------


@pytest.mark.requirement("G1", api="StateGraph.node")
def test_a_node_is_a_plain_function_of_the_state_that_returns_an_update(
    run: Runner, wrap: Wrap
) -> None:
    """Nodes are plain functions, sync or async; what they leave out of the update stays."""

    def first(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    def second(state: Trip) -> dict[str, Any]:
        return {"log": [f"saw {state['n']}"]}

    def third(state: Trip) -> None:
        assert state["log"] == ["saw 2"]

    graph: StateGraph[Trip] = StateGraph(Trip)
    for function in (first, second, third):
        graph.node(wrap(function))
    graph.add_edges(START, "first", "second", "third", END)
    result = run.invoke(graph.compile(), {"n": 1})
    assert result.state == {"n": 2, "log": ["saw 2"]}
    assert result.status == "completed"


@pytest.mark.requirement("G1", api="Context")
def test_what_a_node_asks_for_by_name_is_injected(run: Runner, wrap: Wrap) -> None:
    """State, config, run context and the node's own name are injected by parameter name."""
    got: dict[str, Any] = {}

    def everything(config: Any, name: str, ctx: Context, state: Trip) -> None:
        got.update(config=config, name=name, ctx=ctx, n=state["n"])

    def nothing() -> None:
        got["nothing"] = True

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node(wrap(everything))
    graph.add_node(wrap(nothing))
    graph.add_edges(START, "everything", "nothing", END)
    app = graph.compile(store="memory://")
    result = run.invoke(app, {"n": 7}, "t", config={"model": "small"})
    assert (got["config"], got["name"], got["n"]) == ({"model": "small"}, "everything", 7)
    context = got["ctx"]
    assert (context.run_id, context.node, context.step) == (result.run_id, "everything", 1)
    assert (context.thread, context.attempt) == (ThreadKey("default", "t"), 1)
    assert context.config == {"model": "small"}
    assert got["nothing"]


@pytest.mark.requirement("G1", api="StateGraph.add_node")
def test_the_signature_is_read_once_when_the_graph_is_compiled(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running a node never looks at its signature again."""

    def node(state: Trip, name: str) -> dict[str, Any]:
        return {"log": [name]}

    app = line(Trip, node).compile()

    def forbidden(*args: Any, **named: Any) -> Any:
        raise AssertionError("a signature was read while running")

    monkeypatch.setattr("inspect.signature", forbidden)
    assert run.invoke(app, {"n": 0})["log"] == ["node"]


@pytest.mark.requirement("G1", api="InvalidUpdate")
@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("text", "returned str"),
        ({"m": 1}, "'m', which the state does not have"),
        ({"n": "one"}, "gave 'n' str"),
        ({"log": "not a list"}, "gave 'log' str"),
    ],
)
def test_what_is_not_an_update_is_refused(
    run: Runner, wrap: Wrap, returned: Any, says: str
) -> None:
    """A node that returns something else than an update of this state gets an error."""

    def node(state: Trip) -> Any:
        return returned

    with pytest.raises(InvalidUpdate, match=says) as caught:
        run.invoke(line(Trip, wrap(node)).compile(store="memory://"), {"n": 1}, "t")
    assert caught.value.node == "node"
    assert caught.value.thread == "t"


@pytest.mark.requirement("G1", api="App.invoke")
def test_the_state_that_a_caller_passed_in_stays_his_own(run: Runner, wrap: Wrap) -> None:
    """Inputs are never changed, and a node's dict is its own."""

    def node(state: Trip) -> dict[str, Any]:
        state["n"] = 99
        return {"log": ["x"]}

    given: Trip = {"n": 1, "log": ["a"]}
    result = run.invoke(line(Trip, wrap(node)).compile(), given)
    assert given == {"n": 1, "log": ["a"]}
    assert result.state == {"n": 1, "log": ["a", "x"]}


# -- G2 ------------------------------------------------------------------------------------


def note(state: Trip, name: str) -> dict[str, Any]:
    return {"log": [name]}


def star(wrap: Wrap, *names: str) -> StateGraph[Trip]:
    """A node ``hub`` and nodes that lead to the end."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("hub", wrap(note))
    for name in names:
        graph.add_node(name, wrap(note))
        graph.add_edge(name, END)
    graph.add_edge(START, "hub")
    return graph


@pytest.mark.requirement("G2", api="StateGraph.add_edge")
def test_fixed_edges_lead_from_node_to_node(run: Runner, wrap: Wrap) -> None:
    """A fixed edge is always taken."""
    graph = star(wrap, "a")
    graph.add_edge("hub", "a")
    assert run.invoke(graph.compile(), {"n": 0})["log"] == ["hub", "a"]


@pytest.mark.requirement("G2", api="StateGraph.add_conditional_edges")
@pytest.mark.parametrize(
    ("returned", "visited"),
    [
        ("a", ["hub", "a"]),
        (["b", "a"], ["hub", "a", "b"]),
        (("b",), ["hub", "b"]),
        (END, ["hub"]),
        ([END, "b"], ["hub", "b"]),
        (["a", "a"], ["hub", "a"]),
    ],
)
def test_a_router_returns_a_node_several_or_end(
    run: Runner, wrap: Wrap, returned: Any, visited: list[str]
) -> None:
    """A conditional edge leads to what its router returns, in the order of declaration."""
    graph = star(wrap, "a", "b")

    def route(state: Trip) -> Any:
        return returned

    graph.add_conditional_edges("hub", wrap(route), ["a", "b", END])
    assert run.invoke(graph.compile(), {"n": 0})["log"] == visited


@pytest.mark.requirement("G2", api="StateGraph.add_conditional_edges")
def test_what_a_router_returns_can_be_mapped_to_nodes(run: Runner, wrap: Wrap) -> None:
    """Targets may be a mapping from what the router returns, or come from its annotation."""
    graph = star(wrap, "a", "b")

    def odd_or_even(state: Trip) -> str:
        return "odd" if state["n"] % 2 else "even"

    graph.add_conditional_edges("hub", wrap(odd_or_even), {"odd": "a", "even": "b"})
    app = graph.compile()
    assert run.invoke(app, {"n": 1})["log"] == ["hub", "a"]
    assert run.invoke(app, {"n": 2})["log"] == ["hub", "b"]

    other = star(wrap, "a")

    def annotated(state: Trip) -> Literal["a", "__end__"]:
        return "a"

    other.add_conditional_edges("hub", annotated)
    assert run.invoke(other.compile(), {"n": 1})["log"] == ["hub", "a"]


@pytest.mark.requirement("G2", api="StateGraph.add_edge")
def test_predicate_edges_are_tried_in_the_order_added(run: Runner, wrap: Wrap) -> None:
    """The first predicate that holds decides, and those after it are not asked."""
    asked: list[str] = []
    graph = star(wrap, "a", "b", "c")

    def never(state: Trip) -> bool:
        asked.append("never")
        return False

    def yes(state: Trip) -> bool:
        asked.append("yes")
        return True

    def later(state: Trip) -> bool:
        asked.append("later")
        return True

    graph.add_edge("hub", "a", when=wrap(never))
    graph.add_edge("hub", "b", when=wrap(yes))
    graph.add_edge("hub", "c", when=wrap(later))
    assert run.invoke(graph.compile(), {"n": 0})["log"] == ["hub", "b"]
    assert asked == ["never", "yes"]


@pytest.mark.requirement("G2", api="RoutingError")
def test_a_node_that_nothing_leads_on_from_is_an_error_and_not_an_end(
    run: Runner, wrap: Wrap
) -> None:
    """When no predicate holds the run fails; it does not silently finish."""
    graph = star(wrap, "a")
    graph.add_edge("hub", "a", when=wrap(always(False)))
    with pytest.raises(RoutingError, match="none of its predicates is true") as caught:
        run.invoke(graph.compile(), {"n": 0})
    assert caught.value.node == "hub"


@pytest.mark.requirement("G2", api="RoutingError")
@pytest.mark.parametrize(
    ("returned", "what"), [("elsewhere", "a name"), (3, "int"), ([None], "NoneType"), ({}, "dict")]
)
def test_a_router_that_names_an_undeclared_node_is_refused(
    run: Runner, wrap: Wrap, returned: Any, what: str
) -> None:
    """Only declared targets are taken; the message lists them."""
    graph = star(wrap, "a")
    graph.add_conditional_edges("hub", wrap(always(returned)), ["a"])
    with pytest.raises(RoutingError, match=f"returned {what}.*'a'"):
        run.invoke(graph.compile(), {"n": 0})


# -- G3 ------------------------------------------------------------------------------------


@pytest.mark.requirement("G3", api="StateGraph.set_entry_point")
def test_entry_and_exit_points_are_edges_from_start_and_to_end(run: Runner, wrap: Wrap) -> None:
    """Naming the entry and the exit is the same as edges from START and to END."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", wrap(note))
    graph.add_node("b", wrap(note))
    graph.set_entry_point("a")
    graph.add_edge("a", "b")
    graph.set_exit_point("b")
    app = graph.compile()

    same: StateGraph[Trip] = StateGraph(Trip)
    same.add_node("a", note)
    same.add_node("b", note)
    same.add_edges(START, "a", "b", END)
    assert app.fingerprint == same.compile().fingerprint
    assert run.invoke(app, {"n": 0})["log"] == ["a", "b"]


@pytest.mark.requirement("G3", api="START")
def test_the_start_may_be_routed_and_may_be_several_nodes(run: Runner, wrap: Wrap) -> None:
    """START takes conditional edges and several fixed ones, like any node."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b"):
        graph.add_node(name, wrap(note))
        graph.add_edge(name, END)

    def first(state: Trip) -> list[str]:
        return ["a", "b"][: state["n"]]

    graph.add_conditional_edges(START, wrap(first), ["a", "b"])
    app = graph.compile()
    assert run.invoke(app, {"n": 1})["log"] == ["a"]
    assert run.invoke(app, {"n": 2})["log"] == ["a", "b"]


@pytest.mark.requirement("G3", api="END")
def test_a_graph_that_is_routed_to_the_end_at_once_completes(run: Runner) -> None:
    """END can be reached without running any node."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", note)
    graph.add_edge("a", END)
    graph.add_conditional_edges(START, lambda state: END, ["a", END])
    result = run.invoke(graph.compile(store="memory://"), {"n": 1}, "t")
    assert (result.status, result.node, result.step, result["log"]) == ("completed", None, 0, [])


# -- G4 ------------------------------------------------------------------------------------


def broken_graph() -> StateGraph[Trip]:
    """Everything that ``compile()`` must find, in one graph."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    def start(state: Trip) -> dict[str, Any]:
        return {"unknown_key": 1}

    def left(state: Trip) -> dict[str, Any]:
        return {"n": 1}

    def right(state: Trip) -> dict[str, Any]:
        return {"n": 2}

    def stuck(state: Trip) -> None: ...

    def lonely(state: Trip) -> None: ...

    def astray(state: Trip) -> str:
        return "left" if state["n"] else "nowhere"

    for function in (start, left, right, stuck, lonely):
        graph.add_node(function)
    graph.add_node("left", left)
    graph.add_edge(START, "start")
    graph.add_edge("start", "left")
    graph.add_edge("start", "right")
    graph.add_edge("start", "stuck")
    graph.add_edge("start", "rihgt")
    graph.add_conditional_edges("left", astray, ["left", END])
    graph.add_edge("right", END)
    graph.add_edge("lonely", END)
    return graph


@pytest.mark.requirement("G4", api="DefinitionError")
def test_compile_reports_every_problem_at_once() -> None:
    """Each problem has a stable code, the place in this file and a suggestion."""
    with pytest.raises(DefinitionError) as caught:
        broken_graph().compile()
    found = {problem.code: problem for problem in caught.value.problems}
    wanted = {
        "MC110": "rihgt",  # unknown node
        "MC111": "lonely",  # unreachable
        "MC112": "stuck",  # no way to an end
        "MC113": "left",  # duplicate name
        "MC114": "nowhere",  # router target not declared
        "MC115": "unknown_key",  # key that the state does not have
        "MC116": "'n'",  # two parallel writers without a reducer
    }
    assert {code for code in wanted if code not in found} == set()
    for code, word in wanted.items():
        problem = found[code]
        assert word in problem.message
        assert problem.suggestion
        assert problem.place is not None
        assert problem.place.file == __file__
        assert f"{problem.place}: {code}" in str(caught.value)
    assert found["MC110"].suggestion == "did you mean 'right'?"


@pytest.mark.requirement("G4", api="StateGraph.compile")
def test_an_interrupt_at_an_unknown_node_is_a_problem_too() -> None:
    """Interrupts are given when compiling, and are checked there."""
    with pytest.raises(DefinitionError, match="an interrupt names 'b'"):
        line(Trip, note).compile(interrupt_before=["b"])


# -- G5 ------------------------------------------------------------------------------------


@pytest.mark.requirement("G5", api="App.graph")
def test_a_compiled_graph_cannot_be_changed() -> None:
    """Later declarations do not reach an app, and its tables take no assignment."""
    graph = line(Trip, note)
    app = graph.compile()
    before = app.fingerprint
    graph.add_node("late", note)
    graph.add_edge("note", "late")
    assert list(app.graph.nodes) == ["note"]
    assert app.fingerprint == before
    with pytest.raises(AttributeError):
        app.graph.name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        app.graph.nodes["x"] = app.graph.nodes["note"]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    with pytest.raises(AttributeError):
        app.fingerprint = "x"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.requirement("G5", api="App.invoke")
def test_one_app_serves_many_threads_at_once(run: Runner) -> None:
    """A compiled graph is thread-safe: calls from many OS threads do not meet."""

    def count(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [str(state["n"])]}

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node(count)
    graph.add_edge(START, "count")
    graph.add_edge("count", "count", when=lambda state: state["n"] % 20 != 0)
    graph.add_edge("count", END)
    app = graph.compile(store="memory://")
    results: dict[int, Any] = {}

    def call(number: int) -> None:
        results[number] = run.invoke(app, {"n": 100 * number}, f"t{number}").state

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for number in range(8):
        begin = 100 * number
        assert results[number]["n"] == begin + 20
        assert results[number]["log"] == [str(begin + i) for i in range(20)]


@pytest.mark.requirement("G5", api="App.fingerprint")
def test_the_fingerprint_follows_the_structure_and_not_the_code() -> None:
    """A node's body and docstring may change; names, edges, versions and the schema may not."""

    def step(state: Trip) -> dict[str, Any]:
        return {"n": 1}

    def fixed(state: Trip) -> dict[str, Any]:
        """Now with a docstring, and another body."""
        return {"n": 2}

    class Other(TypedDict, total=False):
        n: str
        log: Annotated[list[str], append]

    def made(state: type[Any], function: Any, version: str = "") -> str:
        graph: StateGraph[Any] = StateGraph(state)
        graph.add_node("step", function, version=version)
        graph.add_edges(START, "step", END)
        return graph.compile().fingerprint

    plain = made(Trip, step)
    assert made(Trip, fixed) == plain
    assert made(Trip, step, version="2") != plain
    assert made(Other, step) != plain


@pytest.mark.requirement("G5", api="App.fingerprint")
def test_the_fingerprint_is_the_same_in_every_process() -> None:
    """It depends on nothing that a process makes up, such as the seed of hashes."""
    code = (
        "from typing import Annotated, TypedDict\n"
        "from milecastle import *\n"
        "class Trip(TypedDict):\n"
        "    n: int\n"
        "    log: Annotated[list[str], append]\n"
        "    tags: Annotated[set[str], union]\n"
        "graph = StateGraph(Trip)\n"
        "for name in 'abc': graph.add_node(name, lambda state: None)\n"
        "graph.add_edge(START, 'a')\n"
        "graph.add_conditional_edges('a', lambda state: 'b', ['b', 'c'])\n"
        "for name in 'bc': graph.add_edge(name, END)\n"
        "print(graph.compile().fingerprint)\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.requirement("G5", api="Store.manifest")
def test_a_store_keeps_the_manifest_of_each_graph_under_its_fingerprint(run: Runner) -> None:
    """Any old thread can be drawn and compared with today's graph."""
    store = MemoryStore()
    old = line(Trip, note).compile(store=store)
    run.invoke(old, {"n": 1}, "t")

    def more(state: Trip) -> None: ...

    new = line(Trip, note, more).compile(store=store)
    stored = store.manifest(ThreadKey("default", "t"), old.fingerprint)
    assert stored is not None
    manifest = Manifest.from_bytes(stored)
    assert manifest == old.graph.manifest
    assert manifest.fingerprint == old.fingerprint
    assert compare(manifest, new.graph.manifest).added_nodes == ("more",)
    assert store.manifest(ThreadKey("default", "t"), new.fingerprint) is None


# -- G6 ------------------------------------------------------------------------------------


@dataclass
class Card:
    title: str
    marks: Annotated[list[int], append] = field(default_factory=list[int])
    note: str = "none"


class Model(BaseModel):
    title: str
    marks: Annotated[list[int], append] = []
    note: str = "none"


class Typed(TypedDict, total=False):
    title: str
    marks: Annotated[list[int], append]
    note: str


def read(state: Any, name: str) -> Any:
    return getattr(state, name) if hasattr(state, name) else state[name]


@pytest.mark.requirement("G6", api="StateGraph")
@pytest.mark.parametrize("form", [Typed, Card, Model])
def test_state_is_a_typed_dict_a_dataclass_or_a_pydantic_model(
    run: Runner, wrap: Wrap, form: type[Any]
) -> None:
    """Nodes, results and snapshots have the state in the form that was declared."""

    def node(state: Any) -> dict[str, Any]:
        assert type(state) is (dict if form is Typed else form)
        return {"marks": [len(read(state, "title"))], "note": "seen"}

    app: App[Any] = line(form, wrap(node)).compile(store="memory://")
    result = run.invoke(app, {"title": "abc", "marks": [1]}, "t")
    snapshot = run.state(app, "t")
    for state in (result.state, snapshot.state):
        assert type(state) is (dict if form is Typed else form)
        assert [read(state, name) for name in ("title", "marks", "note")] == ["abc", [1, 3], "seen"]
    assert result["marks"] == [1, 3]


@pytest.mark.requirement("G6", api="App.invoke")
@pytest.mark.parametrize("form", [Card, Model])
def test_an_instance_of_the_state_may_be_given_and_returned(run: Runner, form: type[Any]) -> None:
    """A node may return its state changed; what has a reducer must be a separate update."""

    def rename(state: Any) -> Any:
        state.title = "new"
        return state

    def extend(state: Any) -> Any:
        return form(title=state.title, marks=[*state.marks, 2])

    result = run.invoke(line(form, rename).compile(), form(title="old", marks=[1]))
    assert (result.state.title, result.state.marks, result.state.note) == ("new", [1], "none")
    with pytest.raises(InvalidUpdate, match="'marks' has a reducer"):
        run.invoke(line(form, extend).compile(), form(title="old", marks=[1]))


@pytest.mark.requirement("G6", api="App.invoke")
@pytest.mark.parametrize("form", [Card, Model])
def test_an_input_that_leaves_out_a_required_field_is_refused(run: Runner, form: type[Any]) -> None:
    """Nothing is begun with a state that cannot be made."""
    app: App[Any] = line(form, lambda_node).compile(store="memory://")
    with pytest.raises(InvalidRequest, match="lacks 'title'"):
        run.invoke(app, {"marks": [1]}, "t")
    assert run.history(app, "t") == []


def lambda_node(state: Any) -> None: ...


@pytest.mark.requirement("G6", api="App.invoke")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"titel": "x"}, "'titel'"),
        ({"title": 3}, "gave 'title' int"),
        ({"marks": 3}, "gave 'marks' int"),
        (7, "must be a dict or Typed, not int"),
    ],
)
def test_an_input_that_does_not_fit_the_state_is_refused(
    run: Runner, given: Any, says: str
) -> None:
    """An unknown key, a wrong type and something that is not a mapping are distinguished."""
    app = line(Typed, lambda_node).compile(store="memory://")
    with pytest.raises(InvalidRequest, match=says):
        run.invoke(app, given, "t")
    assert run.history(app, "t") == []


def longest(old: str, new: str) -> str:
    return max(old, new, key=len)


class Reduced(TypedDict, total=False):
    plain: int
    kept: Annotated[int, last]
    listed: Annotated[list[int], append]
    merged: Annotated[dict[str, int], merge]
    added: Annotated[int, add]
    highest: Annotated[int, maximum]
    lowest: Annotated[int, minimum]
    united: Annotated[set[int], union]
    own: Annotated[str, longest]


@pytest.mark.requirement("G6", api="append")
def test_each_reducer_says_how_an_update_meets_the_value(run: Runner, wrap: Wrap) -> None:
    """Channels are last-write-wins unless annotated; the outcome survives storing."""

    def one(state: Reduced) -> dict[str, Any]:
        return {
            "plain": 5,
            "kept": 5,
            "listed": (5,),
            "merged": {"b": 5},
            "added": 5,
            "highest": 5,
            "lowest": 5,
            "united": [5],
            "own": "longer",
        }

    app = line(Reduced, wrap(one)).compile(store="memory://")
    given: dict[str, Any] = {
        "plain": 9,
        "kept": 9,
        "listed": [9],
        "merged": {"a": 9},
        "added": 9,
        "highest": 9,
        "lowest": 9,
        "united": {9},
        "own": "long",
    }
    wanted: dict[str, Any] = {
        "plain": 5,
        "kept": 5,
        "listed": [9, 5],
        "merged": {"a": 9, "b": 5},
        "added": 14,
        "highest": 9,
        "lowest": 5,
        "united": {9, 5},
        "own": "longer",
    }
    assert run.invoke(app, given, "t").state == wanted
    assert run.state(app, "t").state == wanted
    assert run.invoke(app, {}, "empty").state == {
        "plain": 5,
        "kept": 5,
        "listed": [5],
        "merged": {"b": 5},
        "added": 5,
        "highest": 5,
        "lowest": 5,
        "united": {5},
        "own": "longer",
    }
    assert run.state(app, "empty").state == run.invoke(line(Reduced, one).compile(), {}).state


# -- G7 ------------------------------------------------------------------------------------


class Fan(TypedDict):
    n: int
    seen: Annotated[list[tuple[str, int]], append]


def fan(wrap: Wrap, *names: str, store: str | None = None) -> App[Fan]:
    """``first``, then every name in parallel, then ``join``."""

    def note(state: Fan, name: str) -> dict[str, Any]:
        return {"seen": [(name, len(state["seen"]))]}

    graph: StateGraph[Fan] = StateGraph(Fan)
    graph.add_node("first", wrap(note))
    for name in names:
        graph.add_node(name, wrap(note))
        graph.add_edge("first", name)
        graph.add_edge(name, "join")
    graph.add_node("join", wrap(note))
    graph.add_edge(START, "first")
    graph.add_edge("join", END)
    return graph.compile(store=store)


@pytest.mark.requirement("G7", api="StateGraph.add_edge")
@pytest.mark.parametrize("store", [None, "memory://"])
def test_branches_see_the_same_state_and_meet_in_the_order_of_declaration(
    run: Runner, wrap: Wrap, store: str | None
) -> None:
    """Nodes of one step do not see each other's updates, which are applied together."""
    app = fan(wrap, "c", "a", "b", store=store)
    result = run.invoke(app, {"n": 0})
    assert result["seen"] == [("first", 0), ("c", 1), ("a", 1), ("b", 1), ("join", 4)]
    assert result.step == 3


@pytest.mark.requirement("G7", api="App.invoke")
def test_branches_run_at_the_same_time(run: Runner) -> None:
    """Each branch waits for the other, sync or async."""
    barrier = threading.Barrier(2, timeout=60)

    def wait(state: Fan) -> None:
        barrier.wait()

    graph: StateGraph[Fan] = StateGraph(Fan)
    for name in ("a", "b"):
        graph.add_node(name, wait)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    assert run.invoke(graph.compile(), {"n": 0}).step == 1


@pytest.mark.requirement("G7", api="App.invoke")
def test_a_run_may_branch_and_meet_again_and_again(run: Runner, wrap: Wrap) -> None:
    """Each parallel step begins when the one before has met."""
    graph: StateGraph[Fan] = StateGraph(Fan)

    def see(state: Fan, name: str) -> dict[str, Any]:
        return {"seen": [(name, len(state["seen"]))]}

    for name in ("a", "b", "c", "d"):
        graph.add_node(name, wrap(see))
    for first in ("a", "b"):
        graph.add_edge(START, first)
        for second in ("c", "d"):
            graph.add_edge(first, second)
    for second in ("c", "d"):
        graph.add_edge(second, END)
    result = run.invoke(graph.compile(store="memory://"), {"n": 0}, "t")
    assert result["seen"] == [("a", 0), ("b", 0), ("c", 2), ("d", 2)]
    assert result.step == 2


@pytest.mark.requirement("G7", api="App.ainvoke")
def test_async_branches_run_at_the_same_time(run: Runner) -> None:
    """Async nodes of one step are awaited together."""
    meeting: dict[str, asyncio.Event] = {}

    async def wait(state: Fan, name: str) -> None:
        meeting.setdefault(name, asyncio.Event()).set()
        other = meeting.setdefault("b" if name == "a" else "a", asyncio.Event())
        await asyncio.wait_for(other.wait(), 60)

    graph: StateGraph[Fan] = StateGraph(Fan)
    for name in ("a", "b"):
        graph.add_node(name, wait)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    assert run.invoke(graph.compile(), {"n": 0}).nodes == ("a", "b")


@pytest.mark.requirement("G7", api="InvalidUpdate")
def test_two_branches_that_write_one_channel_without_a_reducer_are_refused(
    run: Runner, wrap: Wrap
) -> None:
    """What ``compile()`` could not see is refused when it happens."""
    written = cast("dict[str, Any]", {"n": 1})
    graph: StateGraph[Fan] = StateGraph(Fan)
    for name in ("a", "b"):
        graph.add_node(name, wrap(always(written)))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store="memory://")
    with pytest.raises(InvalidUpdate, match=r"'a' and 'b'.*both wrote 'n'") as caught:
        run.invoke(app, {"n": 0}, "t")
    assert caught.value.key == "n"
    assert run.state(app, "t").state == {"n": 0, "seen": []}


# -- G9 ------------------------------------------------------------------------------------


def two_steps(wrap: Wrap) -> StateGraph[Trip]:
    def a(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": ["a"]}

    def b(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] * 10}

    return line(Trip, wrap(a), wrap(b))


@pytest.mark.requirement("G9", api="App.stream")
def test_a_stream_of_updates_has_one_event_for_each_node(run: Runner, wrap: Wrap) -> None:
    """The default mode yields what each node returned."""
    events = run.stream(two_steps(wrap).compile(), {"n": 1})
    assert [(event.type, event.node, event.update) for event in events] == [
        ("update", "a", {"n": 2, "log": ["a"]}),
        ("update", "b", {"n": 20}),
    ]
    assert events[0]["node"] == "a"


@pytest.mark.requirement("G9", api="App.astream")
def test_a_stream_of_states_has_each_state_in_turn(run: Runner, wrap: Wrap) -> None:
    """The mode ``state`` yields the state after the input and after each step."""
    events = run.stream(two_steps(wrap).compile(), {"n": 1}, mode="state")
    assert [(event.step, event.state) for event in events] == [
        (0, {"n": 1, "log": []}),
        (1, {"n": 2, "log": ["a"]}),
        (2, {"n": 20, "log": ["a"]}),
    ]


@pytest.mark.requirement("G9", api="App.stream")
def test_a_stream_commits_and_ends_like_invoke(run: Runner, wrap: Wrap) -> None:
    """A stream that was read to its end leaves the same thread behind as ``invoke``."""
    streamed = two_steps(wrap).compile(store="memory://")
    invoked = two_steps(wrap).compile(store="memory://")
    run.stream(streamed, {"n": 1}, "t", mode="events")
    result = run.invoke(invoked, {"n": 1}, "t")
    left = [run.state(app, "t") for app in (streamed, invoked)]
    assert left[0].state == left[1].state == result.state
    assert [snapshot.status for snapshot in left] == ["completed", "completed"]
    histories = [
        [(known.seq, known.source, known.nodes, known.next) for known in run.history(app, "t")]
        for app in (streamed, invoked)
    ]
    assert histories[0] == histories[1]


@pytest.mark.requirement("G9", api="App.stream")
@pytest.mark.parametrize("store", [None, "memory://"])
def test_reader_that_stops_ends_the_run_at_its_last_commit(
    run: Runner, wrap: Wrap, store: str | None
) -> None:
    """A stream that is closed early cancels the run, and resume continues from there."""
    app = two_steps(wrap).compile(store=store)
    seen = run.stream(app, {"n": 1}, "t", until=lambda event: event.node == "a")
    assert [event.node for event in seen] == ["a"]
    if store:
        assert run.state(app, "t").status == "cancelled"
        assert run.resume(app, "t").state == {"n": 20, "log": ["a"]}


@pytest.mark.requirement("G9", api="App.stream")
@pytest.mark.parametrize("last", ["interrupt", "graph_complete", "graph_failed"])
def test_reader_that_stops_at_the_last_event_changes_nothing(
    run: Runner, wrap: Wrap, last: str
) -> None:
    """Leaving a stream at its last event leaves the thread as the run left it."""

    def fail(state: Trip) -> None:
        raise ValueError("on purpose")

    graph = two_steps(wrap) if last != "graph_failed" else line(Trip, wrap(note), wrap(fail))
    app = graph.compile(store="memory://", interrupt_before=["b"] if last == "interrupt" else [])
    run.stream(app, {"n": 1}, "t", mode="events", until=lambda event: event.type == last)
    statuses = {"interrupt": "interrupted", "graph_complete": "completed", "graph_failed": "failed"}
    assert run.state(app, "t").status == statuses[last]


@pytest.mark.requirement("G9", api="App.stream")
def test_an_unknown_mode_of_a_stream_is_refused(run: Runner, wrap: Wrap) -> None:
    """The message lists the modes that there are."""
    with pytest.raises(InvalidRequest, match="'updates', 'state' or 'events'"):
        run.stream(two_steps(wrap).compile(), {"n": 1}, mode=cast("Any", "values"))


@pytest.mark.requirement("G9", api="App.invoke")
@pytest.mark.parametrize("call", ["invoke", "stream"])
def test_a_sync_call_of_an_async_graph_inside_a_loop_names_the_async_twin(call: str) -> None:
    """The error says what to write instead, and nothing was begun."""

    async def a(state: Trip) -> None: ...

    app = line(Trip, a).compile(store="memory://")

    async def inside() -> None:
        made: Any = getattr(app, call)({"n": 1}, "t")
        list(made)

    with pytest.raises(InvalidRequest, match=r"ainvoke\(\)"):
        asyncio.run(inside())
    assert list(app.history("t")) == []


@pytest.mark.requirement("G9", api="App.invoke")
def test_a_sync_graph_may_be_invoked_inside_a_loop() -> None:
    """Only async nodes need their own loop."""
    app = two_steps(lambda function: function).compile()

    async def inside() -> Any:
        return app.invoke({"n": 1}).state

    assert asyncio.run(inside()) == {"n": 20, "log": ["a"]}


@pytest.mark.requirement("G9", api="App.ainvoke")
def test_a_sync_node_does_not_stop_the_loop_unless_it_is_inline() -> None:
    """Under the async driver a sync node runs in a thread; ``inline=True`` opts out."""
    where: dict[str, bool] = {}

    def node(state: Trip, name: str) -> None:
        where[name] = threading.current_thread() is threading.main_thread()

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("apart", node)
    graph.add_node("inline", node, inline=True)
    graph.add_edges(START, "apart", "inline", END)
    asyncio.run(graph.compile().ainvoke({"n": 1}))
    assert where == {"apart": False, "inline": True}


# -- G10 -----------------------------------------------------------------------------------


@pytest.mark.requirement("G10", api="App.draw")
def test_a_graph_is_drawn_as_mermaid_svg_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form names every node, and none needs a network."""

    def forbidden(*args: Any) -> Any:
        raise AssertionError("drawing reached for the network")

    monkeypatch.setattr("socket.socket", forbidden)
    app = fan(lambda function: function, "left", "right")
    drawings = {form: app.draw(form) for form in ("mermaid", "svg", "text")}
    for drawing in drawings.values():
        assert all(name in drawing for name in ("first", "left", "right", "join"))
    assert "graph TD" in drawings["mermaid"] or "flowchart" in drawings["mermaid"]
    assert drawings["svg"].lstrip().startswith("<svg")
    assert "<" not in drawings["text"].replace("<-", "")


@pytest.mark.requirement("G10", api="App.draw")
def test_a_notebook_shows_the_svg() -> None:
    """An app is its own drawing in a notebook; an unknown form is refused."""
    app: Any = fan(lambda function: function, "left")
    assert app._repr_svg_().lstrip().startswith("<svg")
    assert "data:image/svg+xml;base64," in app._repr_html_()
    with pytest.raises(InvalidRequest, match="'mermaid', 'svg' or 'text'"):
        app.draw("png")
