"""What every drawing starts from: the names and the links of a manifest, by number."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from milecastle.model.manifest import END, START, EdgeInfo, Manifest

__all__ = ["Link", "Sketch", "sketch"]


class Link(NamedTuple):
    """All edges from one node to another. It is ``fixed`` when one of them is."""

    source: int
    target: int
    fixed: bool
    label: str


class Sketch(NamedTuple):
    """Names in drawing order, START first and END last where an edge uses them, and links."""

    names: tuple[str, ...]
    links: tuple[Link, ...]
    visits: Mapping[str, int] = MappingProxyType({})

    @property
    def first(self) -> int | None:
        """The number of START."""
        return self.names.index(START) if START in self.names else None

    @property
    def last(self) -> int | None:
        """The number of END."""
        return self.names.index(END) if END in self.names else None

    def caption(self, index: int) -> str:
        """What a reader calls the node."""
        return {START: "start", END: "end"}.get(self.names[index], self.names[index])

    def counted(self, index: int) -> str:
        """The caption, with how often the node was visited if that is known."""
        visits = self.visits.get(self.names[index], 0)
        return f"{self.caption(index)} \u00d7{visits}" if visits else self.caption(index)


def sketch(manifest: Manifest, visits: Mapping[str, int] | None = None) -> Sketch:
    """Number the nodes and merge edges that join the same two nodes."""
    names = _names(manifest)
    number = {name: index for index, name in enumerate(names)}
    parallel: dict[tuple[int, int], list[EdgeInfo]] = {}
    for edge in manifest.edges:
        parallel.setdefault((number[edge.source], number[edge.target]), []).append(edge)
    links = tuple(_link(*pair, edges) for pair, edges in parallel.items())
    return Sketch(names, links, visits or MappingProxyType({}))


def _names(manifest: Manifest) -> tuple[str, ...]:
    ends = [name for edge in manifest.edges for name in (edge.source, edge.target)]
    inner = [node.name for node in manifest.nodes] + ends
    names = [START] if START in ends else []
    names += [name for name in dict.fromkeys(inner) if name not in (START, END)]
    return tuple(names + ([END] if END in ends else []))


def _link(source: int, target: int, edges: list[EdgeInfo]) -> Link:
    labels = dict.fromkeys(edge.label for edge in edges if edge.label)
    return Link(source, target, any(edge.kind == "fixed" for edge in edges), " | ".join(labels))
