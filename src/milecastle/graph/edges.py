"""Edges: the nodes after a node.

Rules:

- Edges without a condition are all taken: several start parallel branches.
- If any of a node's edges has a predicate, its edges are tried in the order they were added and the
  first match is taken; one without a predicate always matches.
- Router targets are taken in addition.
- At an exit point only the edge to the end is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from milecastle.errors import Place
from milecastle.graph.functions import is_async, name_of
from milecastle.model.manifest import END, EdgeInfo

T = TypeVar("T")


def reachable(ways: Mapping[T, Iterable[T]], start: Iterable[T]) -> set[T]:
    seen: set[T] = set()
    waiting = list(start)
    while waiting:
        for target in ways.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


class PlainEdge(msgspec.Struct, frozen=True):
    source: str
    target: str
    when: Callable[[Any], Any] | None = None
    place: Place | None = None

    @property
    def label(self) -> str:
        name = "" if self.when is None else name_of(self.when)
        return "" if name == "<lambda>" else name


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """A function naming the next node or nodes. ``targets`` maps its possible results.

    ``together`` holds the node sets it is seen to return in one list, ``sends`` those
    that it is seen to return as ``Send``. One that is not ``asked`` only declares where a node may
    lead without it: ``Command(goto=)``, ``on_error``.
    """

    source: str
    function: Callable[[Any], Any]
    targets: Mapping[Any, str]
    declared: bool = True
    is_async: bool = False
    together: tuple[frozenset[str], ...] = ()
    sends: frozenset[str] = frozenset()
    place: Place | None = None
    asked: bool = True
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or name_of(self.function)

    def label_of(self, target: str) -> str:
        keys = [_said(key) for key, to in self.targets.items() if to == target and key != to]
        return " | ".join(keys) or ("" if self.label == "<lambda>" else self.label)


class Branch(msgspec.Struct, frozen=True):
    target: str
    when: Callable[[Any], Any] | None
    is_async: bool = False


class Exits(msgspec.Struct, frozen=True):
    """All edges of one node, as lookup tables.

    ``straight`` is the whole next step when nothing has to be asked to know it; ``sole`` is the
    one sync router that alone decides. Most nodes have one or the other.
    """

    fixed: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    routers: tuple[Router, ...] = ()
    straight: tuple[str, ...] | None = None
    sole: Router | None = None


def followed(
    edges: Iterable[PlainEdge], routers: Iterable[Router], exit_points: Container[str]
) -> tuple[list[PlainEdge], list[Router]]:
    return (
        [
            edge
            for edge in edges
            if edge.source not in exit_points or (edge.target == END and edge.when is None)
        ],
        [router for router in routers if router.source not in exit_points or not router.asked],
    )


def exits_of(
    sources: Iterable[str], edges: Iterable[PlainEdge], routers: Iterable[Router]
) -> dict[str, Exits]:
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
    infos: list[EdgeInfo] = []
    fixed: set[tuple[str, str]] = set()
    for edge in edges:
        if edge.when is not None:
            infos.append(EdgeInfo(edge.source, edge.target, "when", edge.label))
        elif (edge.source, edge.target) not in fixed:
            fixed.add((edge.source, edge.target))
            infos.append(EdgeInfo(edge.source, edge.target, "fixed"))
    infos += [
        EdgeInfo(router.source, target, "router", router.label_of(target))
        for router in routers
        for target in dict.fromkeys(router.targets.values())
    ]
    return tuple(infos)


def _said(key: object) -> str:
    if isinstance(key, Enum):
        return key.name
    return key if isinstance(key, str) else repr(key)
