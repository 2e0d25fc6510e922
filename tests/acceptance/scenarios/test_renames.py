"""Declared renames: threads that wait under the old names of nodes and keys continue.

They were refused: LangGraph and Temporal continue them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Command,
    Context,
    ResumeRefused,
    Send,
    StateGraph,
    Store,
    add,
    append,
    current,
    interrupt,
    renamed_from,
)
from tests.acceptance.scenarios.calling import KEY, Caller, ids

pytestmark = pytest.mark.requirement("G5", "R4", api="renamed_from")


class Old(TypedDict, total=False):
    title: str
    notes: Annotated[list[str], append]
    items: list[int]
    item: int


class New(TypedDict, total=False):
    name: Annotated[str, renamed_from("heading", "title")]
    remarks: Annotated[list[str], append, renamed_from("notes")]
    items: list[int]
    item: int


Build = Callable[[StateGraph[Any], dict[str, Any]], None]


def versions(build: Build, store: Store, **settings: Any) -> tuple[App[Any], App[Any]]:
    """The graph with its old names, and with new ones that say so."""
    old: StateGraph[Any] = StateGraph(Old, name="g")
    build(old, {"work": "work", "notes": "notes", "title": "title", "policy": {}})
    new: StateGraph[Any] = StateGraph(New, name="g")
    policy = {"renamed_from": "work"}
    build(new, {"work": "labour", "notes": "remarks", "title": "name", "policy": policy})
    return old.compile(store=store, **settings), new.compile(store=store, **settings)


def asking(graph: StateGraph[Any], names: dict[str, Any]) -> None:
    def work(state: Any, ctx: Context) -> dict[str, Any]:
        answer = interrupt("well?", answer=str)
        return {names["notes"]: [f"{state[names['title']]} {answer}"]}

    graph.add_node("first", lambda state: {names["notes"]: ["first"]})
    graph.add_node(names["work"], work, **names["policy"])
    graph.add_node("last", lambda state: {names["notes"]: ["last"]})
    graph.add_edges(START, "first", names["work"], "last", END)


GIVEN: dict[str, Any] = {"title": "walls"}
EXPECTED: dict[str, Any] = {"name": "walls", "remarks": ["first", "walls yes", "last"]}


@pytest.mark.parametrize("by_id", [True, False])
def test_question_is_answered_under_the_new_names(call: Caller, store: Store, by_id: bool) -> None:
    old, new = versions(asking, store)
    asked = ids(call.invoke(old, GIVEN))["well?"]
    fit = new.compatibility("t")
    assert fit
    assert "node 'work' renamed to 'labour'" in fit.note
    assert "key 'notes' renamed to 'remarks'" in fit.note
    given: dict[str, Any] = {"answers": {asked: "yes"}} if by_id else {"answer": "yes"}
    assert call.resume(new, **given).state == EXPECTED
    notes = [known.note for known in new.history("t") if known.note]
    assert notes == [fit.note]
    assert new.state("t").state == EXPECTED


def test_thread_that_stopped_before_a_node_continues(call: Caller, store: Store) -> None:
    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        graph.add_node("first", lambda state: {names["notes"]: ["first"]})
        graph.add_node(names["work"], lambda state: {names["notes"]: ["work"]}, **names["policy"])
        graph.add_edges(START, "first", names["work"], END)

    old, new = versions(build, store, interrupt_after=["first"])
    call.invoke(old, GIVEN)
    assert call.resume(new).state == {"name": "walls", "remarks": ["first", "work"]}


def test_renames_need_not_be_declared_forever(call: Caller, store: Store) -> None:
    """A thread that was resumed once has the new names."""

    class Plain(TypedDict, total=False):
        name: str
        remarks: Annotated[list[str], append]
        items: list[int]
        item: int

    def twice(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def work(state: Any, ctx: Context) -> dict[str, Any]:
            one, two = interrupt("one", answer=str), interrupt("two", answer=str)
            return {names["notes"]: [one, two]}

        graph.add_node(names["work"], work, **names["policy"])
        graph.add_edges(START, names["work"], END)

    old, new = versions(twice, store)
    later: StateGraph[Any] = StateGraph(Plain, name="g")
    twice(later, {"work": "labour", "notes": "remarks", "policy": {}})
    call.invoke(old, GIVEN)
    call.resume(new, answer="a")
    app = later.compile(store=store)
    assert call.resume(app, answer="b").state == {"name": "walls", "remarks": ["a", "b"]}


def test_update_of_a_thread_under_old_names_keeps_what_it_has(call: Caller, store: Store) -> None:
    """An update under a new name must not stand beside the value under the old one."""
    old, new = versions(asking, store)
    call.invoke(old, GIVEN)
    call.update_state(new, "t", {"remarks": ["edited"]})
    assert new.state("t").state == {"name": "walls", "remarks": ["first", "edited"]}
    assert call.resume(new, answer="yes").state == {
        "name": "walls",
        "remarks": ["first", "edited", "walls yes", "last"],
    }


def test_update_of_a_thread_that_ended_under_old_names(call: Caller, store: Store) -> None:
    old, new = versions(asking, store)
    call.invoke(old, GIVEN)
    call.resume(old, answer="yes")
    call.update_state(new, "t", {"remarks": ["edited"]})
    assert new.state("t").state == {**EXPECTED, "remarks": [*EXPECTED["remarks"], "edited"]}
    call.invoke(new, {"name": "roads"})
    assert call.resume(new, answer="no")["remarks"][-3:] == ["first", "roads no", "last"]


def test_undeclared_rename_is_still_refused(call: Caller, store: Store) -> None:
    old, _ = versions(asking, store)
    graph: StateGraph[Any] = StateGraph(Old, name="g")
    asking(graph, {"work": "labour", "notes": "notes", "title": "title", "policy": {}})
    call.invoke(old, GIVEN)
    with pytest.raises(ResumeRefused, match="'work' would run next but was removed"):
        call.resume(graph.compile(store=store), answer="yes")


def test_finished_items_and_recorded_calls_are_kept(call: Caller, store: Store) -> None:
    """Their rows are named after the node."""
    ran: list[int] = []
    sent: list[int] = []

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def work(state: Any, ctx: Context) -> dict[str, Any]:
            ran.append(state["item"])
            ctx.once("mail", sent.append, state["item"])
            if state["item"] == 2 and ran.count(2) < 3:
                raise ValueError("on purpose")
            return {names["notes"]: [str(state["item"])]}

        graph.add_node("first", lambda state: {names["notes"]: ["first"]})
        graph.add_node(names["work"], work, **names["policy"])
        graph.add_edge(START, "first")
        graph.map("first", names["work"], over="items", item="item")
        graph.add_edge(names["work"], END)

    old, new = versions(build, store)
    call.fails(old, {"items": [1, 2, 3]})
    call.fails(new, None)
    result = call.resume(new)
    assert result["remarks"] == ["first", "1", "2", "3"]
    assert (sorted(ran), sorted(sent)) == ([1, 2, 2, 2, 3], [1, 2, 3])


def test_subgraph_continues_in_its_own_thread(call: Caller, store: Store) -> None:
    """Its thread is named after the step and the node of its parent."""
    ran: list[str] = []

    class Inner(TypedDict, total=False):
        items: list[int]

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        sub: StateGraph[Any] = StateGraph(Inner, name="sub")

        def begin(state: Any) -> None:
            ran.append("begin")

        def ask(state: Any) -> dict[str, Any]:
            ran.append("ask")
            return {"items": [interrupt("how many?", answer=int)]}

        sub.add_node("begin", begin)
        sub.add_node("ask", ask)
        sub.add_edges(START, "begin", "ask", END)
        graph.add_node("first", lambda state: {names["notes"]: ["first"]})
        graph.add_node(names["work"], sub.compile(), **names["policy"])
        graph.add_edges(START, "first", names["work"], END)

    old, new = versions(build, store)
    asked = ids(call.invoke(old, {"items": [1]}))["how many?"]
    assert call.resume(new, answers={asked: 7})["items"] == [7]
    assert ran == ["begin", "ask", "ask"]
    assert [info.status for info in store.threads("default")] == ["completed"] * 2


def test_sleeping_and_forked_and_pruned_threads_continue(call: Caller, store: Store) -> None:
    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def work(state: Any) -> dict[str, Any]:
            current().sleep(0.01)
            return {names["notes"]: ["awake"]}

        graph.add_node("first", lambda state: {names["notes"]: ["first"]})
        graph.add_node(names["work"], work, **names["policy"])
        graph.add_edges(START, "first", names["work"], END)

    from time import sleep

    old, new = versions(build, store)
    call.invoke(old, GIVEN)
    old.fork("t", 2, as_thread="forked")
    sleep(0.02)
    expected = {"name": "walls", "remarks": ["first", "awake"]}
    assert call.resume(new).state == expected
    CheckpointStore(store).prune(KEY, keep_last=1)
    assert new.state("t").state == expected
    if call.resume(new, "forked").status == "sleeping":
        sleep(0.02)
        call.resume(new, "forked")
    assert new.state("forked").state == expected


def test_renamed_node_of_a_subgraph_gets_its_answer(call: Caller, store: Store) -> None:
    """Was broken: the answer was acknowledged, and not found by the question under its new name."""

    class Inner(TypedDict, total=False):
        items: list[int]

    def built(name: str, **policy: Any) -> App[Any]:
        def ask(state: Any) -> dict[str, Any]:
            return {"items": [interrupt("how many?", answer=int)]}

        sub: StateGraph[Any] = StateGraph(Inner, name="sub")
        sub.add_node(name, ask, **policy)
        sub.add_edges(START, name, END)
        graph: StateGraph[Any] = StateGraph(Old, name="g")
        graph.add_node("inside", sub.compile())
        graph.add_edges(START, "inside", END)
        return graph.compile(store=store)

    asked = ids(call.invoke(built("ask"), {"items": [1]}))["how many?"]
    new = built("inquire", renamed_from="ask")
    assert call.resume(new, answers={asked: 7})["items"] == [7]


def test_thread_is_read_under_the_new_names(call: Caller, store: Store) -> None:
    """Was broken: it had its old keys, and beside them the start values of the new ones."""
    old, new = versions(asking, store)
    call.invoke(old, GIVEN)
    asked = new.state("t")
    assert asked.state == {"name": "walls", "remarks": ["first"]}
    assert (asked.next, asked.interrupts[0].node) == (("labour",), "labour")
    call.resume(old, answer="yes")
    assert new.state("t").state == new.state("t", old.state("t").seq).state == EXPECTED


def test_checkpoints_from_before_are_followed_under_the_new_names(
    call: Caller, store: Store
) -> None:
    """Was broken: ``follow`` showed stored names, and beside them start values of new ones."""
    old, new = versions(asking, store)
    call.invoke(old, GIVEN)
    call.resume(new, answer="yes")
    found = list(new.follow("t"))
    assert found[-1].state == EXPECTED
    for event in found:
        shown = new.state("t", event.seq)
        assert (event.state, event.data["next"]) == (shown.state, shown.next)


@pytest.mark.parametrize("target", ["t", "forked"])
def test_fork_by_the_new_graph_keeps_what_the_thread_has(
    call: Caller, store: Store, target: str
) -> None:
    """Was broken: the start value of a key's new name was stored beside its value."""
    old, new = versions(asking, store)
    call.invoke(old, GIVEN)
    new.fork("t", old.state("t").seq, as_thread=target)
    assert call.resume(new, target, answer="yes").state == EXPECTED


def test_fields_of_a_dataclass_are_renamed(call: Caller, store: Store) -> None:
    @dataclass
    class Before:
        count: Annotated[int, add] = 0
        notes: Annotated[list[str], append] = field(default_factory=list[str])

    @dataclass
    class After:
        total: Annotated[int, add, renamed_from("count")] = 0
        notes: Annotated[list[str], append] = field(default_factory=list[str])

    def built(state: type, key: str) -> App[Any]:
        graph: StateGraph[Any] = StateGraph(state, name="g")
        graph.add_node("a", lambda state: {key: 1})
        graph.add_node("b", lambda state: {key: 1, "notes": ["b"]})
        graph.add_edges(START, "a", "b", END)
        return graph.compile(store=store, interrupt_before=["b"])

    call.invoke(built(Before, "count"), {"count": 5})
    new = built(After, "total")
    assert call.resume(new).state == After(7, ["b"])
    assert new.state("t").state == After(7, ["b"])


def test_outcomes_that_name_a_renamed_node_lead_to_it(call: Caller, store: Store) -> None:
    """Fails if only rows and questions are renamed, and not the targets stored in an outcome."""

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def lead(state: Any) -> Command[Any]:
            return Command(goto=Send(names["work"], {"item": 1}))

        def fail(state: Any) -> None:
            raise ConnectionError("refused")

        def ask(state: Any) -> dict[str, Any]:
            return {names["notes"]: [interrupt("well?", answer=str)]}

        def work(state: Any) -> dict[str, Any]:
            ran.append(state.get("item", 0))
            return {names["notes"]: ["work"]}

        graph.add_node("lead", lead, goto=[names["work"]])
        graph.add_node("fail", fail, on_error=names["work"])
        graph.add_node("ask", ask)
        graph.add_node(names["work"], work, **names["policy"])
        for name in ("lead", "fail", "ask"):
            graph.add_edge(START, name)
        for name in ("fail", "ask", names["work"]):
            graph.add_edge(name, END)

    ran: list[int] = []
    old, new = versions(build, store)
    assert call.invoke(old, GIVEN).status == "interrupted"
    assert call.resume(new, answer="yes")["remarks"] == ["yes", "work", "work"]
    assert sorted(ran) == [0, 1]


def test_failure_of_a_renamed_node_is_handled_under_its_new_name(
    call: Caller, store: Store
) -> None:
    """Fails if the node that handles it is told of a node that the graph does not have."""

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def work(state: Any) -> None:
            raise ConnectionError("refused")

        def cope(state: Any, ctx: Context) -> dict[str, Any]:
            interrupt("well?", answer=str)
            return {names["notes"]: [f"{name} {kind}" for name, (kind, _) in ctx.failures.items()]}

        graph.add_node(names["work"], work, on_error="cope", **names["policy"])
        graph.add_node("cope", cope)
        graph.add_edges(START, names["work"], END)
        graph.add_edge("cope", END)

    old, new = versions(build, store)
    assert call.invoke(old, GIVEN).status == "interrupted"
    assert call.resume(new, answer="yes")["remarks"] == ["labour ConnectionError"]


def test_commands_are_followed_after_a_router_of_before_failed(call: Caller, store: Store) -> None:
    """Fails if the targets of a command, kept while the edges beside it failed, are lost."""
    is_up: list[bool] = []

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def route(state: Any) -> str:
            if not is_up:
                raise ConnectionError("refused")
            return "end"

        def lead(state: Any) -> Command[Any]:
            return Command(goto=names["work"])

        graph.add_node("lead", lead, goto=[names["work"]])
        graph.add_node("routed", lambda state: {})
        graph.add_node(names["work"], lambda state: {names["notes"]: ["work"]}, **names["policy"])
        for name in ("lead", "routed"):
            graph.add_edge(START, name)
        graph.add_conditional_edges("routed", route, {"end": END})
        graph.add_edge(names["work"], END)

    old, new = versions(build, store)
    call.fails(old, GIVEN)
    is_up.append(True)
    assert call.resume(new)["remarks"] == ["work"]


def test_items_that_follow_their_edges_beside_a_command_continue(
    call: Caller, store: Store
) -> None:
    """Fails if the place of an item without a command is taken for a target."""
    is_up: list[bool] = []

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def lead(state: Any) -> Any:
            if state["item"] == 1:
                return Command[Any](goto=names["work"])
            return dict[str, Any]()

        def route(state: Any) -> str:
            if not is_up:
                raise ConnectionError("refused")
            return "last"

        graph.add_node("lead", lead, goto=[names["work"]])
        graph.add_node("last", lambda state: {names["notes"]: ["last"]})
        graph.add_node(names["work"], lambda state: {names["notes"]: ["work"]}, **names["policy"])
        graph.map(START, "lead", over="items", item="item")
        graph.add_conditional_edges("lead", route, {"last": "last"})
        for name in ("last", names["work"]):
            graph.add_edge(name, END)

    old, new = versions(build, store)
    call.fails(old, {"items": [1, 2]})
    is_up.append(True)
    assert sorted(call.resume(new)["remarks"]) == ["last", "work"]


def test_node_that_waits_beside_a_send_to_a_renamed_one_continues(
    call: Caller, store: Store
) -> None:
    """Fails if each task of the step is taken for one that was sent, with an update."""

    def build(graph: StateGraph[Any], names: dict[str, Any]) -> None:
        def lead(state: Any) -> Command[Any]:
            return Command(goto=[Send(names["work"], {"item": 1}), "ask"])

        def ask(state: Any) -> dict[str, Any]:
            return {names["notes"]: [interrupt("well?", answer=str)]}

        graph.add_node("lead", lead, goto=[names["work"], "ask"])
        graph.add_node("ask", ask)
        graph.add_node(names["work"], lambda state: {names["notes"]: ["work"]}, **names["policy"])
        graph.add_edge(START, "lead")
        for name in ("ask", names["work"]):
            graph.add_edge(name, END)

    old, new = versions(build, store)
    assert call.invoke(old, GIVEN).status == "interrupted"
    assert sorted(call.resume(new, answer="yes")["remarks"]) == ["work", "yes"]
