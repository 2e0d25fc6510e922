"""Basis for every drawing: a manifest's names and links, and notes on its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec.structs

from milecastle.graph.sending import Map
from milecastle.graph.structure import CompiledGraph
from milecastle.model.manifest import END, START, EdgeInfo, Manifest

SUBGRAPH: Final = "subgraph"
FAN_OUT: Final = "fan-out"
DEFERRED: Final = "deferred"
BEFORE: Final = "interrupt before"
AFTER: Final = "interrupt after"

Notes = Mapping[str, tuple[str, ...]]
"""What is noted of each node; nodes without notes may be missing."""


def notes_of(graph: CompiledGraph) -> Notes:
    fan_outs = _fan_outs(graph)
    notes = {
        name: tuple(
            note
            for note, holds in (
                (SUBGRAPH, node.subgraph is not None),
                (FAN_OUT, name in fan_outs),
                (DEFERRED, node.policy.defer),
                (BEFORE, name in graph.interrupt_before),
                (AFTER, name in graph.interrupt_after),
            )
            if holds
        )
        for name, node in graph.nodes.items()
    }
    return {name: found for name, found in notes.items() if found}


def _fan_outs(graph: CompiledGraph) -> set[str]:
    found: set[str] = set()
    for exits in graph.exits.values():
        for router in exits.routers:
            if isinstance(router.function, Map):
                found.add(router.function.node)
            found |= router.sends
    return found


class Link(NamedTuple):
    """All edges between two nodes. ``fixed`` if one is."""

    source: int
    target: int
    fixed: bool
    label: str


class Sketch(NamedTuple):
    names: tuple[str, ...]
    links: tuple[Link, ...]
    visits: Mapping[str, int] = MappingProxyType({})
    notes: Notes = MappingProxyType({})

    @property
    def first(self) -> int | None:
        return self.names.index(START) if START in self.names else None

    @property
    def last(self) -> int | None:
        return self.names.index(END) if END in self.names else None

    def caption(self, index: int) -> str:
        return {START: "start", END: "end"}.get(self.names[index], self.names[index])

    def counted(self, index: int) -> str:
        visits = self.visits.get(self.names[index], 0)
        return f"{self.caption(index)} \u00d7{visits}" if visits else self.caption(index)

    def noted(self, index: int) -> tuple[str, ...]:
        return self.notes.get(self.names[index], ())


def drawn_edges(manifest: Manifest) -> list[EdgeInfo]:
    """The edges as they are drawn, each once.

    One without a condition tried after one with a condition is taken otherwise.
    """
    asked: dict[str, set[str]] = {}
    edges: list[EdgeInfo] = []
    for edge in dict.fromkeys(manifest.edges):
        before = asked.setdefault(edge.source, set())
        if edge.kind == "when":
            before.add(edge.target)
        elif edge.kind == "fixed" and before - {edge.target}:
            edge = msgspec.structs.replace(edge, kind="when", label="otherwise")  # noqa: PLW2901
        edges.append(edge)
    return edges


def sketch(
    manifest: Manifest, visits: Mapping[str, int] | None = None, notes: Notes | None = None
) -> Sketch:
    names = _names(manifest)
    number = {name: index for index, name in enumerate(names)}
    parallel: dict[tuple[int, int], list[EdgeInfo]] = {}
    for edge in drawn_edges(manifest):
        parallel.setdefault((number[edge.source], number[edge.target]), []).append(edge)
    links: list[Link] = []
    for pair, edges in parallel.items():
        labels = dict.fromkeys(edge.label for edge in edges if edge.label)
        is_fixed = any(edge.kind == "fixed" for edge in edges)
        links.append(Link(*pair, is_fixed, " | ".join(labels)))
    return Sketch(names, tuple(links), visits or {}, notes or {})


def _names(manifest: Manifest) -> tuple[str, ...]:
    ends = [name for edge in manifest.edges for name in (edge.source, edge.target)]
    inner = [node.name for node in manifest.nodes] + ends
    names = [START] if START in ends else []
    names += [name for name in dict.fromkeys(inner) if name not in (START, END)]
    return tuple(names + ([END] if END in ends else []))
