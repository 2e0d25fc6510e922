"""Finding a graph in another process, by its name in the user's own module.

The process driving a run looks through the modules it has loaded for the app, or the
graph, with the fingerprint and the run's functions. The other process imports that module,
and compares. So imports are named by the running code, never by anything stored.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import msgspec

from milecastle.errors import InvalidRequest, MilecastleError
from milecastle.graph.builder import GraphBuilder
from milecastle.graph.functions import plain_function
from milecastle.graph.structure import CompiledGraph


class Reference(msgspec.Struct, frozen=True):
    """A graph, app or, with the name of its ``flow``, step of a module."""

    module: str
    attribute: str
    flow: str = ""


def reference_to(graph: CompiledGraph, flow: str = "") -> Reference:
    """A graph's import reference; ``InvalidRequest`` if no module has it under a name."""
    for module in _modules(graph):
        for name, value in list(vars(module).items()):
            found = graph_of(value, flow)
            if found is None or found.fingerprint != graph.fingerprint:
                continue
            if [*_placed(found)] == [*_placed(graph)]:  # a fingerprint has only functions' names
                return Reference(module.__name__, name, flow)
    if flow:
        raise InvalidRequest(
            f"step '{graph.name}' runs in other processes, which cannot find it: define it at the "
            "top level of a module, with @step(run_on=...)"
        )
    raise InvalidRequest(
        f"nodes of the graph '{graph.name}' run in other processes, which cannot find it: assign "
        "the app, or its StateGraph, to a name at the top level of a module"
    )


def _modules(graph: CompiledGraph) -> Iterator[ModuleType]:
    names = [
        getattr(plain_function(node.function), "__module__", "") for node in graph.nodes.values()
    ]
    loaded = dict(sys.modules)
    for name in dict.fromkeys([*names, "__main__", *loaded]):
        module = loaded.get(name)
        if isinstance(module, ModuleType):
            yield module


def _placed(graph: CompiledGraph) -> Iterator[int]:
    for node in graph.nodes.values():
        if node.subgraph is not None:
            yield from _placed(node.subgraph.graph)
        elif node.policy.run_on is not None:
            yield id(node.function)


def graph_of(value: object, flow: str = "") -> CompiledGraph | None:
    if flow:
        make = getattr(type(value), "graph_in", None)
        return make(value, flow) if make else None
    if isinstance(value, GraphBuilder):
        try:
            value = cast("Any", value).compile()
        except MilecastleError:
            return None
    graph = getattr(value, "graph", None) if hasattr(type(value), "runner") else None
    return graph if isinstance(graph, CompiledGraph) else None


def find_graph(reference: Reference, fingerprint: str) -> CompiledGraph:
    place = f"{reference.module}:{reference.attribute}"
    module = importlib.import_module(reference.module)  # noqa: TID251 - named by the code that runs
    graph = graph_of(getattr(module, reference.attribute, None), reference.flow)
    if graph is None or graph.fingerprint != fingerprint:
        raise InvalidRequest(
            f"{place} is another graph in the process that should run its nodes: it was changed, "
            "or is made in another way when the module is imported"
        )
    return graph
