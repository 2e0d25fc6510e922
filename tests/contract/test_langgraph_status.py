"""The status of a LangGraph thread, which is derived from what was written, without the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.graph")

from milecastle.integrations.langgraph import MilecastleSaver
from milecastle.model.keys import ThreadKey
from milecastle.stores.memory import MemoryStore

graphs: Any = pytest.importorskip("langgraph.graph")
types: Any = pytest.importorskip("langgraph.types")

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Items(TypedDict):
    items: Annotated[list[str], operator.add]


class Place:
    """A store, a saver on it, and the status of the thread."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.saver = MilecastleSaver(self.store)

    def status(self) -> str:
        info = self.store.thread(ThreadKey("default", "t"))
        assert info is not None
        run = self.store.run(info.key, info.run_id)
        assert run is not None
        assert run.status == info.status
        return info.status

    def failure(self) -> object:
        """That of the newest run."""
        info = self.store.thread(ThreadKey("default", "t"))
        return self.store.failure(info.key, info.run_id) if info else None

    def next(self) -> tuple[str, ...]:
        head = self.store.head(ThreadKey("default", "t"))
        return head.next if head else ()


def add(_: Items) -> Items:
    return {"items": ["x"]}


def ask(_: Items) -> Items:
    return {"items": [types.interrupt("sure?")]}


def fail(_: Items) -> Items:
    raise ValueError("secret")


def joined(saver: Any, last: Callable[[Items], Items], **options: Any) -> Any:
    """Two nodes at once, and one that waits for both."""
    graph = graphs.StateGraph(Items)
    graph.add_node("left", add)
    graph.add_node("right", add)
    graph.add_node("last", last, **options)
    graph.add_edge(graphs.START, "left")
    graph.add_edge(graphs.START, "right")
    graph.add_edge(["left", "right"], "last")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("options", [{}, {"defer": True}])
def test_node_that_waits_for_several_is_next(options: dict[str, Any]) -> None:
    """Fails if only triggers of single nodes are read: the thread is completed too early."""
    place = Place()
    seen: list[str] = []

    def look(_: Items) -> Items:
        seen.append(place.status())
        return {"items": [types.interrupt("sure?")]}

    app = joined(place.saver, look, **options)
    app.invoke({"items": []}, CONFIG, durability="sync")
    assert seen == ["running"]
    assert place.status() == "interrupted"
    assert place.next() == ("last",)
    assert "left" not in app.get_state(CONFIG).next
    app.invoke(types.Command(resume="yes"), CONFIG)
    assert place.status() == "completed"
    assert place.next() == ()


def test_failure_after_a_join_is_shown() -> None:
    place = Place()
    with pytest.raises(ValueError, match="secret"):
        joined(place.saver, fail).invoke({"items": []}, CONFIG)
    assert place.status() == "failed"


def single(saver: Any, node: Callable[[Items], Items]) -> Any:
    graph = graphs.StateGraph(Items)
    graph.add_node("work", node)
    graph.add_edge(graphs.START, "work")
    return graph.compile(checkpointer=saver)


def test_second_question_of_a_node_is_shown() -> None:
    """LangGraph writes it with the first answer. Fails if that answer counts for both."""
    place = Place()

    def ask_twice(_: Items) -> Items:
        return {"items": [types.interrupt("one"), types.interrupt("two")]}

    app = single(place.saver, ask_twice)
    app.invoke({"items": []}, CONFIG)
    assert place.status() == "interrupted"
    app.invoke(types.Command(resume="1"), CONFIG)
    assert place.status() == "interrupted"
    assert app.invoke(types.Command(resume="2"), CONFIG)["items"] == ["1", "2"]
    assert place.status() == "completed"


def test_thread_waits_until_every_question_is_answered() -> None:
    """Fails if the answer to one of several questions counts for all."""
    place = Place()

    def ask_by_number(given: dict[str, int]) -> Items:
        return {"items": [types.interrupt(given["number"])]}

    def send(_: Items) -> list[Any]:
        return [types.Send("work", {"number": one}) for one in range(3)]

    graph = graphs.StateGraph(Items)
    graph.add_node("work", ask_by_number)
    graph.add_conditional_edges(graphs.START, send, ["work"])
    app = graph.compile(checkpointer=place.saver)
    found = app.invoke({"items": []}, CONFIG)
    for left in (2, 1, 0):
        assert place.status() == "interrupted"
        one = found["__interrupt__"][0].id
        found = app.invoke(types.Command(resume={one: "yes"}), CONFIG)
        assert len(found.get("__interrupt__", [])) == left
    assert place.status() == "completed"


def test_question_after_a_failure_is_shown() -> None:
    """Fails if a run that failed stays failed, or keeps its failure, when it is tried again."""
    place = Place()
    calls: list[int] = []

    def fail_first(state: Items) -> Items:
        calls.append(1)
        return fail(state) if len(calls) == 1 else ask(state)

    app = single(place.saver, fail_first)
    with pytest.raises(ValueError, match="secret"):
        app.invoke({"items": []}, CONFIG)
    assert place.status() == "failed"
    app.invoke(None, CONFIG)
    assert place.status() == "interrupted"
    app.invoke(types.Command(resume="yes"), CONFIG)
    assert place.status() == "completed"
    assert place.failure() is None


def test_run_that_is_tried_again_under_its_id_is_shown_as_completed() -> None:
    """Fails if a run that failed stays failed under the same id."""
    place = Place()
    config: Any = {"configurable": {"thread_id": "t", "run_id": "same"}}
    with pytest.raises(ValueError, match="secret"):
        single(place.saver, fail).invoke({"items": []}, config)
    assert place.status() == "failed"
    single(place.saver, add).invoke(None, config)
    assert place.status() == "completed"


def test_graph_whose_triggers_have_other_names_shows_its_question() -> None:
    """Fails if only the names of channels say what is left to run."""
    pregel: Any = pytest.importorskip("langgraph.pregel")
    channels: Any = pytest.importorskip("langgraph.channels")
    place = Place()

    def question(_: Any) -> Any:
        return types.interrupt("sure?")

    node = pregel.NodeBuilder().subscribe_only("a").do(question).write_to("b")
    app = pregel.Pregel(
        nodes={"work": node},
        channels={"a": channels.LastValue(str), "b": channels.LastValue(str)},
        input_channels=["a"],
        output_channels=["b"],
        checkpointer=place.saver,
    )
    app.invoke({"a": "x"}, CONFIG)
    assert place.status() == "interrupted"
    assert place.next() == ("work",)
    assert app.invoke(types.Command(resume="yes"), CONFIG) == {"b": "yes"}
    assert place.status() == "completed"
