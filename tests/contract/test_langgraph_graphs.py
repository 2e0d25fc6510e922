"""Graphs of LangGraph on the saver: what they do is what they do on LangGraph's own saver."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.graph")

from milecastle.errors import Conflict
from milecastle.integrations.langgraph import MilecastleSaver
from milecastle.stores import SqliteStore

graphs: Any = pytest.importorskip("langgraph.graph")
memory: Any = pytest.importorskip("langgraph.checkpoint.memory")
types: Any = pytest.importorskip("langgraph.types")

ROOT = Path(__file__).resolve().parents[2]
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Items(TypedDict):
    items: Annotated[list[str], operator.add]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def saver(url: str) -> Generator[MilecastleSaver]:
    with MilecastleSaver(url) as made:
        yield made


def adds(text: str) -> Callable[[Items], Items]:
    def add(_: Items) -> Items:
        return {"items": [text]}

    return add


def nested(saver: Any) -> Any:
    """A graph with a subgraph that asks, two tasks at once, and a node after both."""

    def ask(_: Items) -> Items:
        return {"items": [types.interrupt("sure?")]}

    inner = graphs.StateGraph(Items)
    inner.add_node("first", adds("inner"))
    inner.add_node("ask", ask)
    inner.add_edge(graphs.START, "first")
    inner.add_edge("first", "ask")
    outer = graphs.StateGraph(Items)
    outer.add_node("left", adds("left"))
    outer.add_node("sub", inner.compile())
    outer.add_node("end", adds("end"))
    for name in ("left", "sub"):
        outer.add_edge(graphs.START, name)
        outer.add_edge(name, "end")
    return outer.compile(checkpointer=saver)


def course(make: Any, durability: str) -> list[Any]:
    """Ask, answer, fork from the past, and answer again, each by a new saver; what was seen."""
    seen: list[Any] = []

    def invoke(given: Any, config: Any = CONFIG) -> None:
        found = nested(make()).invoke(given, config, durability=durability)
        asked = [one.value for one in found.pop("__interrupt__", [])]  # their ids are random
        seen.append((found, asked))

    invoke({"items": ["in"]})
    state = nested(make()).get_state(CONFIG, subgraphs=True)
    seen += [state.next, [one.value for one in state.interrupts], state.tasks[0].error]
    inner = [one.state.values for one in state.tasks if one.state is not None]
    seen.append(inner)
    command = types.Command(resume="yes")
    invoke(command)
    app = nested(make())
    past = next(one for one in app.get_state_history(CONFIG) if one.next)
    seen.append([(one.values, one.next) for one in app.get_state_history(CONFIG)])
    fork = app.update_state(past.config, {"items": ["edit"]}, as_node="__start__")
    invoke(None, fork)
    invoke(command)
    seen.append([(one.values, one.next) for one in app.get_state_history(CONFIG)])
    return seen


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_interrupts_subgraphs_and_forks_are_as_on_their_saver(
    durability: str, url: str, saver: MilecastleSaver
) -> None:
    """Fails if a namespace, the writes of an interrupt or a fork are not read back."""
    theirs = memory.InMemorySaver()
    expected = course(lambda: theirs, durability)
    assert course(lambda: saver, durability) == expected
    saver.delete_thread("t")
    opened: list[MilecastleSaver] = []

    def fresh() -> MilecastleSaver:
        opened.append(MilecastleSaver(url))
        return opened[-1]

    assert course(fresh, durability) == expected
    for one in opened:
        one.close()


def loop(saver: Any, steps: int, after: Any = None) -> Any:
    """A graph that appends so many items, and calls a function in each step."""

    def add(state: Items) -> Items:
        if after is not None:
            after(len(state["items"]))
        return {"items": [str(len(state["items"]))]}

    def again(state: Items) -> str:
        return "add" if len(state["items"]) % steps else str(graphs.END)

    graph = graphs.StateGraph(Items)
    graph.add_node("add", add)
    graph.add_edge(graphs.START, "add")
    graph.add_conditional_edges("add", again)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_run_does_not_bring_its_deleted_thread_back(
    durability: str, url: str, saver: MilecastleSaver
) -> None:
    """Another process deletes it in the middle. Fails if late writes create it again."""
    loop(saver, 1).invoke({"items": []}, CONFIG)
    with MilecastleSaver(url) as other:

        def delete(count: int) -> None:
            if count == 3:
                other.delete_thread("t")

        with pytest.raises(Conflict):
            loop(saver, 8, delete).invoke({"items": []}, CONFIG, durability=durability)
        assert other.get_tuple(CONFIG) is None
        assert list(other.list(None)) == []
    with closing(SqliteStore(url.removeprefix("sqlite:///"))) as store:
        assert store.threads("default") == []
    assert loop(saver, 2).invoke({"items": []}, CONFIG)["items"] == ["0", "1"]


PROGRAM = """
import sys
from tests.contract.test_langgraph_graphs import CONFIG, loop
from milecastle.integrations.langgraph import MilecastleSaver
with MilecastleSaver(sys.argv[1]) as saver:
    print(len(loop(saver, int(sys.argv[2])).invoke({"items": []}, CONFIG)["items"]))
"""


def other_process(url: str, steps: int) -> int:
    command = [sys.executable, "-c", PROGRAM, url, str(steps)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def test_two_processes_write_to_one_thread_and_see_each_other(
    url: str, saver: MilecastleSaver
) -> None:
    """Fails if a saver answers from what it remembers, or if a writer replaces another."""
    app = loop(saver, 3)
    app.invoke({"items": []}, CONFIG)
    assert other_process(url, 5) == 5
    assert app.get_state(CONFIG).values["items"] == ["0", "1", "2", "3", "4"]
    with ThreadPoolExecutor() as pool:
        other = pool.submit(other_process, url, 25)
        while not other.done():
            loop(saver, 7).invoke({"items": []}, CONFIG)
    found = list(saver.list(CONFIG))
    assert len({one.checkpoint["id"] for one in found}) == len(found)
    for one in found:
        items = one.checkpoint["channel_values"].get("items", [])
        assert items == [str(number) for number in range(len(items))]
        assert one.parent_config is None or saver.get_tuple(one.parent_config) is not None
