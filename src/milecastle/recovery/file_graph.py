"""A graph as a file run sees it: nodes in topological order, and what each reads and makes.

A file run needs to know before it starts what runs: edges are fixed and there is no loop. Each
step runs one layer: nodes that build on the same number of layers below them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.graph.compiled import CompiledGraph
from milecastle.graph.edges import PlainEdge, exits_of
from milecastle.graph.nodes import Node
from milecastle.model.manifest import END, START
from milecastle.recovery.declarations import Files, files_of
from milecastle.recovery.places import inside, parts_of, problem_of

__all__ = ["FileGraph", "read_file_graph"]


class FileGraph(msgspec.Struct, frozen=True, kw_only=True):
    """``before`` has the nodes right before each one, ``makers`` who makes which of its inputs.

    ``upstream`` is both together: the nodes whose outputs a node's task hash covers.
    """

    graph: CompiledGraph
    layers: tuple[tuple[str, ...], ...]
    before: Mapping[str, tuple[str, ...]]
    upstream: Mapping[str, tuple[str, ...]]
    makers: Mapping[str, Mapping[str, str]]
    files: Mapping[str, Files]

    @property
    def order(self) -> Iterator[str]:
        """All nodes, each after everything that it builds on."""
        return (name for layer in self.layers for name in layer)

    def ancestors(self, names: Iterator[str] | tuple[str, ...]) -> set[str]:
        """Everything that these nodes build on, without themselves."""
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            for name in self.before[waiting.pop()]:
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return seen

    def layered(self, nodes: Mapping[str, Node]) -> CompiledGraph:
        """The graph to run: one layer after the other, with these nodes."""
        edges: list[PlainEdge] = []
        last = START
        for layer in self.layers:
            edges += [PlainEdge(last, name) for name in layer]
            edges += [PlainEdge(name, END) for name in layer[1:]]
            last = layer[0]
        edges.append(PlainEdge(last, END))
        exits = exits_of((START, *nodes), edges, ())
        config = msgspec.structs.replace(
            self.graph.config, max_steps=len(self.layers) + 1, cycle_detection=False
        )
        return msgspec.structs.replace(self.graph, nodes=nodes, exits=exits, config=config)


def read_file_graph(graph: CompiledGraph, root: Path, workspace: Path) -> FileGraph:
    """Look a graph over; ``InvalidRequest`` lists everything that keeps it from a file run."""
    problems = _problems_of_edges(graph)
    before = _before(graph)
    layers = _layers(graph, before)
    looping = set(graph.nodes) - {name for layer in layers for name in layer}
    if looping:
        names = ", ".join(sorted(map(repr, looping)))
        problems.append(f"{names} lie on a loop, or behind one: a file run has no loops")
    files = {
        name: declared
        for name, node in graph.nodes.items()
        if (declared := files_of(node.function)) is not None
    }
    made = _made(files, inside(workspace, root), problems)
    makers = {name: _makers(name, declared, made) for name, declared in files.items()}
    found = FileGraph(
        graph=graph,
        layers=layers,
        before=before,
        upstream={
            name: tuple(dict.fromkeys((*before[name], *makers.get(name, {}).values())))
            for name in graph.nodes
        },
        makers=makers,
        files=files,
    )
    problems += _problems_of_makers(found)
    if problems:
        raise InvalidRequest(f"graph '{graph.name}' cannot be a file run: " + "; ".join(problems))
    return found


def _problems_of_edges(graph: CompiledGraph) -> list[str]:
    sources = dict.fromkeys(edge.source for edge in graph.manifest.edges if edge.kind != "fixed")
    problems = [
        f"node '{name}' chooses what runs next: a file run has fixed edges only" for name in sources
    ]
    if graph.interrupt_before or graph.interrupt_after:
        problems.append("it has interrupts: a file run does not wait for a person")
    return problems


def _before(graph: CompiledGraph) -> dict[str, tuple[str, ...]]:
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in graph.manifest.edges:
        if (
            edge.target in before
            and edge.source != START
            and edge.source not in before[edge.target]
        ):
            before[edge.target].append(edge.source)
    return {name: tuple(found) for name, found in before.items()}


def _layers(
    graph: CompiledGraph, before: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Layer by layer, each in the order of declaration; what lies on a loop is left out."""
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    waiting: dict[str, int] = {}
    for name, sources in before.items():
        waiting[name] = len(sources)
        for source in sources:
            after[source].append(name)
    layers: list[tuple[str, ...]] = []
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        layers.append(tuple(sorted(ready, key=graph.order.__getitem__)))
        reached: list[str] = []
        for name in ready:
            for target in after[name]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    reached.append(target)
        ready = reached
    return tuple(layers)


def _made(
    files: Mapping[str, Files], workspace: tuple[str, ...] | None, problems: list[str]
) -> dict[tuple[str, ...], str]:
    """Who makes which path; what does not go together is added to the problems."""
    made: dict[tuple[str, ...], str] = {}
    for node, declared in files.items():
        for path in declared.outputs:
            if why := problem_of(path, workspace):
                problems.append(f"the output '{path}' of node '{node}' {why}")
            other = made.setdefault(parts_of(path), node)
            if other != node:
                problems.append(f"nodes '{other}' and '{node}' both make '{path}'")
    for parts, node in made.items():
        for length in range(1, len(parts)):
            if (holder := made.get(parts[:length])) is not None:
                path, folder = "/".join(parts), "/".join(parts[:length])
                problems.append(
                    f"the output '{path}' of node '{node}' lies in '{folder}' of node '{holder}'"
                )
    return made


def _makers(node: str, declared: Files, made: Mapping[tuple[str, ...], str]) -> dict[str, str]:
    """Which of a node's inputs are made by a node, and by which."""
    found: dict[str, str] = {}
    for path in declared.inputs:
        parts = parts_of(path)
        for length in range(len(parts), 0, -1):
            maker = made.get(parts[:length])
            if maker is not None:
                found[path] = maker
                break
    return found


def _problems_of_makers(found: FileGraph) -> list[str]:
    problems: list[str] = []
    for node, makers in found.makers.items():
        ancestors: set[str] | None = None
        for path, maker in makers.items():
            if maker in found.before[node]:
                continue
            if ancestors is None:
                ancestors = found.ancestors((node,))
            if maker == node:
                problems.append(f"node '{node}' reads '{path}' and makes it too")
            elif maker not in ancestors:
                problems.append(
                    f"node '{node}' reads '{path}', which node '{maker}' makes, and no way leads "
                    f"from '{maker}' to '{node}': add an edge"
                )
    return problems
