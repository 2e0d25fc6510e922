"""The compiled graph: nothing that can be reached from it can be changed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, GenericAlias, MappingProxyType, NoneType
from typing import Annotated, Any, TypedDict, cast

import msgspec
import pytest

from milecastle import END, START, StateGraph, append
from milecastle.graph.structure import CompiledGraph
from milecastle.model.policies import Settings
from tests.unit.graph.checking import compiled

UNCHANGING = (
    *(str, int, float, bytes, NoneType, type, GenericAlias, Enum, FunctionType),
    msgspec.UnsetType,
)


class State(TypedDict):
    n: int
    log: Annotated[list[str], append]


@dataclass
class Record:
    n: int = 0


async def later(state: State) -> Any:
    return {"log": ["a"]}


def step(state: State) -> Any:
    return {"n": 1}


def route(state: State) -> str:
    return "step" if state["n"] else END


def rich(state: Any = State) -> CompiledGraph:
    graph = StateGraph(state)
    graph.add_node(later, version="1")
    graph.add_node(step, inline=True)
    graph.add_edges(START, "later")
    graph.add_edge("later", "step", when=lambda state: True)
    graph.add_edge("later", END)
    graph.add_conditional_edges("step", route)
    return compiled(graph, interrupt_before=["step"], interrupt_after=["later"])


def changeable(found: Any, path: str = "graph") -> Iterator[str]:
    """The paths of everything that is not known to be unchanging."""
    if isinstance(found, msgspec.Struct):
        if not found.__struct_config__.frozen:
            yield path
        for name in found.__struct_fields__:
            yield from changeable(getattr(found, name), f"{path}.{name}")
    elif isinstance(found, Settings):
        with pytest.raises(AttributeError):
            setattr(found, next(iter(vars(type(found))["__annotations__"])), None)
    elif isinstance(found, MappingProxyType):
        for key, value in cast("Mapping[str, Any]", found).items():
            yield from changeable(value, f"{path}[{key!r}]")
    elif isinstance(found, tuple | frozenset):
        for value in cast("Iterable[Any]", found):
            yield from changeable(value, f"{path}[]")
    elif not isinstance(found, (*UNCHANGING, BuiltinFunctionType)):
        yield f"{path}: {type(found).__name__}"


@pytest.mark.parametrize("state", [State, Record])
def test_nothing_that_a_compiled_graph_holds_can_be_changed(state: Any) -> None:
    graph = StateGraph(state)
    graph.add_node("a", print)
    graph.add_edges(START, "a", END)
    assert list(changeable(compiled(graph))) == []
    assert list(changeable(rich())) == []


def test_a_change_would_be_seen() -> None:
    class Loose(msgspec.Struct):
        items: list[int]

    assert list(changeable(Loose([]))) == ["graph", "graph.items: list"]


def test_its_fields_cannot_be_set() -> None:
    graph: Any = rich()
    with pytest.raises(AttributeError):
        graph.name = "another"
    with pytest.raises(AttributeError):
        graph.nodes["step"].version = "2"


@pytest.mark.parametrize(
    "mapping",
    [
        rich().nodes,
        rich().order,
        rich().exits,
        rich().schema.channels,
        rich().schema.defaults,
        rich().exits["step"].routers[0].targets,
    ],
)
def test_its_mappings_cannot_be_assigned(mapping: Mapping[str, Any]) -> None:
    target: Any = mapping
    with pytest.raises(TypeError):
        target["new"] = 1
    with pytest.raises(TypeError):
        del target[next(iter(mapping), "new")]


def test_everything_can_be_looked_up() -> None:
    graph = rich()
    assert dict(graph.order) == {"later": 0, "step": 1}
    assert list(graph.exits) == [START, "later", "step"]
    assert (graph.interrupt_before, graph.interrupt_after) == (
        frozenset({"step"}),
        frozenset({"later"}),
    )
    assert (graph.nodes["later"].version, graph.nodes["step"].policy.inline) == ("1", True)
    assert graph.is_async
    assert graph.name == "State"
    assert graph.fingerprint == graph.manifest.fingerprint


def test_a_graph_of_plain_functions_is_not_async() -> None:
    graph = StateGraph(State)
    graph.add_node(step)
    graph.add_edges(START, "step", END)
    assert not compiled(graph).is_async


def test_many_threads_may_compile_and_use_one_builder() -> None:
    graph = StateGraph(State)
    graph.add_node(step)
    graph.add_edges(START, "step", END)
    found: list[str] = []

    def use() -> None:
        own = compiled(graph)
        own.schema.present(own.schema.initial())
        found.append(own.fingerprint)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
