"""Edges: the ways on from a node.

Rules:

- Edges without a condition are all taken: several of them open parallel branches.
- If any edge of a node has a predicate, its edges are tried in the order added and the first
  that holds is taken; one without a predicate always holds.
- What routers return is taken besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from milecastle.graph.nodes import is_async, name_of
from milecastle.model.manifest import END, EdgeInfo
from milecastle.model.problem import Place

__all__ = ["Branch", "Exits", "PlainEdge", "Router", "edge_infos", "exits_of"]


class PlainEdge(msgspec.Struct, frozen=True):
    """A fixed edge, or a predicate edge when ``when`` is given."""

    source: str
    target: str
    when: Callable[[Any], Any] | None = None
    place: Place | None = None

    @property
    def label(self) -> str:
        """The predicate's name, for drawings."""
        name = "" if self.when is None else name_of(self.when)
        return "" if name == "<lambda>" else name


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """A function that names the next node or nodes. ``targets`` maps what it may return.

    ``together`` holds the sets of nodes that it is seen to return in one list. One that is not
    ``asked`` only tells where a node may lead by its own word: ``Command(goto=)``, ``on_error``.
    """

    source: str
    function: Callable[[Any], Any]
    targets: Mapping[Any, str]
    declared: bool = True
    is_async: bool = False
    together: tuple[frozenset[str], ...] = ()
    place: Place | None = None
    asked: bool = True
    name: str = ""

    @property
    def label(self) -> str:
        """The router's name, for drawings and messages."""
        return self.name or name_of(self.function)


class Branch(msgspec.Struct, frozen=True):
    """One predicate edge as it is evaluated; ``when`` is ``None`` for one that always holds."""

    target: str
    when: Callable[[Any], Any] | None
    is_async: bool = False


class Exits(msgspec.Struct, frozen=True):
    """All ways on from one node, as lookup tables.

    ``straight`` is the whole next step when nothing has to be asked to know it; ``sole`` is the
    one sync router that alone decides. Most nodes have one or the other.
    """

    fixed: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    routers: tuple[Router, ...] = ()
    straight: tuple[str, ...] | None = None
    sole: Router | None = None


def exits_of(
    sources: Iterable[str], edges: Iterable[PlainEdge], routers: Iterable[Router]
) -> dict[str, Exits]:
    """The ways on from each source, in the order added."""
    plain: dict[str, list[PlainEdge]] = {source: [] for source in sources}
    routed: dict[str, list[Router]] = {source: [] for source in plain}
    for edge in edges:
        plain[edge.source].append(edge)
    for router in routers:
        if router.asked:
            routed[router.source].append(router)
    rank = {source: number for number, source in enumerate(plain)}
    return {source: _exits(plain[source], routed[source], rank) for source in plain}


def _exits(edges: list[PlainEdge], routers: list[Router], rank: Mapping[str, int]) -> Exits:
    if any(edge.when is not None for edge in edges):
        branches = tuple(Branch(edge.target, edge.when, is_async(edge.when)) for edge in edges)
        return Exits(branches=branches, routers=tuple(routers))
    fixed = tuple(dict.fromkeys(edge.target for edge in edges))
    if not routers:
        nodes = sorted((target for target in fixed if target != END), key=rank.__getitem__)
        return Exits(fixed=fixed, straight=tuple(nodes))
    sole = routers[0] if not fixed and len(routers) == 1 and not routers[0].is_async else None
    return Exits(fixed=fixed, routers=tuple(routers), sole=sole)


def edge_infos(edges: Iterable[PlainEdge], routers: Iterable[Router]) -> tuple[EdgeInfo, ...]:
    """What the manifest says of the edges, in the order added; a fixed one counts once."""
    infos: list[EdgeInfo] = []
    fixed: set[tuple[str, str]] = set()
    for edge in edges:
        if edge.when is not None:
            infos.append(EdgeInfo(edge.source, edge.target, "when", edge.label))
        elif (edge.source, edge.target) not in fixed:
            fixed.add((edge.source, edge.target))
            infos.append(EdgeInfo(edge.source, edge.target, "fixed"))
    infos += [
        EdgeInfo(router.source, target, "router", router.label)
        for router in routers
        for target in dict.fromkeys(router.targets.values())
    ]
    return tuple(infos)
