"""What people know from LangGraph works, or fails with what to write instead."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, InvalidRequest, StateGraph


class Count(TypedDict):
    n: int


def up(state: Count) -> Count:
    return {"n": state["n"] + 1}


def counting(**settings: Any) -> App[Count]:
    graph = StateGraph(Count)
    graph.add_node("up", up)
    graph.add_edges(START, "up", END)
    return graph.compile(**settings)


def test_a_checkpointer_is_called_a_store() -> None:
    with pytest.raises(InvalidRequest, match=r"compile\(store='memory://'\)"):
        counting(checkpointer=object())


def test_a_configurable_dict_is_a_thread() -> None:
    app: Any = counting(store="memory://")
    with pytest.raises(InvalidRequest, match="thread='my-thread'"):
        app.invoke({"n": 1}, {"configurable": {"thread_id": "a"}})


def test_a_thread_of_another_type_is_refused() -> None:
    app: Any = counting(store="memory://")
    with pytest.raises(InvalidRequest, match="a str or a ThreadKey, not int"):
        app.invoke({"n": 1}, 7)


@pytest.mark.parametrize(
    ("habit", "instead"),
    [("get_state", "app.state"), ("get_state_history", "app.history"), ("get_graph", "app.draw")],
)
def test_a_method_under_its_old_name_says_the_new_one(habit: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=instead):
        getattr(counting(), habit)


def test_any_other_attribute_is_just_not_there() -> None:
    assert not hasattr(counting(), "nonsense")


def test_none_as_input_is_resume() -> None:
    app = counting(store="memory://")
    with pytest.raises(Exception, match="nothing is saved"):
        app.invoke(None, thread="a")


def test_a_router_may_return_a_bool() -> None:
    graph = StateGraph(Count)
    graph.add_node("up", up)
    graph.add_edge(START, "up")

    def enough(state: Count) -> bool:
        return state["n"] >= 3

    graph.add_conditional_edges("up", enough, {True: END, False: "up"})
    assert graph.compile().invoke({"n": 0})["n"] == 3


def test_one_node_to_stop_at_may_stand_alone() -> None:
    assert counting(store="memory://", interrupt_before="up").invoke({"n": 0}).next == ("up",)
