"""The builder: it writes down what users declare and judges nothing until ``compile()``.

Every declaration keeps its place in the user's file, so that all problems can be reported at
once, each with file and line. Only what is no name at all is refused on the spot, with a
``TypeError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec

from milecastle.graph.caller import caller, names_around
from milecastle.graph.edges import PlainEdge, Router
from milecastle.graph.nodes import is_async, name_of
from milecastle.graph.policy import NodePolicy
from milecastle.graph.sending import Map
from milecastle.model.manifest import END, START
from milecastle.model.policies import ExecutionConfig, Retry, Timeout
from milecastle.model.problem import Place

__all__ = ["Declared", "GraphBuilder", "NodeDeclaration"]

F = TypeVar("F", bound=Callable[..., Any])


class NodeDeclaration(msgspec.Struct, frozen=True):
    """A node as it was declared."""

    name: str
    function: Callable[..., Any]
    policy: NodePolicy
    place: Place


class Declared(msgspec.Struct):
    """Everything that was declared, in order.

    ``local_names`` are what the annotations of a state written inside a function may refer to.
    """

    state_type: type
    name: str
    local_names: Mapping[str, Any]
    place: Place
    nodes: list[NodeDeclaration] = []
    edges: list[PlainEdge] = []
    routers: list[Router] = []
    config: ExecutionConfig = ExecutionConfig()


class GraphBuilder:
    """Collects nodes and edges. The public face of it is ``milecastle.StateGraph``."""

    def __init__(self, state: type, *, name: str | None = None) -> None:
        self._declared = Declared(
            state_type=state,
            name=name or str(getattr(state, "__name__", "graph")),
            local_names=names_around(state),
            place=caller(),
        )

    def _add_node(
        self,
        name: str | Callable[..., Any],
        function: Any,
        *,
        version: str,
        retry: Retry | int | None,
        timeout: Timeout | float | None,
        goto: Iterable[str],
        **policy: Any,
    ) -> None:
        """Write a node down; what is said of it in short is spelt out."""
        if function is None:
            if isinstance(name, str):
                raise TypeError(f"add_node({name!r}) needs the node's function as well")
            name, function = name_of(name), name
        if isinstance(function, GraphBuilder):
            raise TypeError(f"node {name!r} is a graph: compile it first, graph.compile()")
        told = NodePolicy(
            version=_version(version),
            retry=Retry(attempts=retry) if isinstance(retry, int) else retry,
            timeout=Timeout(run=timeout) if isinstance(timeout, int | float) else timeout,
            goto=(goto,) if isinstance(goto, str) else tuple(map(_name, goto)),
            **policy,
        )
        self._declared.nodes.append(NodeDeclaration(_name(name), function, told, caller()))

    def add_edge(self, source: str, target: str, when: Callable[[Any], Any] | None = None) -> None:
        """Lead from ``source`` to ``target``, always or when the predicate holds.

        Edges without ``when`` are all taken. With any ``when``, edges of the source are tried in
        the order added and the first that holds is taken.
        """
        self._add_edge(source, target, when)

    def add_edges(self, *names: str) -> None:
        """Lead from each name to the one after it: ``add_edges(START, "a", "b", END)``."""
        if len(names) < 2:
            raise TypeError("add_edges needs at least two names: where from and where to")
        for source, target in pairwise(names):
            self._add_edge(source, target)

    def add_conditional_edges(
        self,
        source: str,
        router: Callable[[Any], Any],
        targets: Iterable[str] | Mapping[Any, str] | None = None,
    ) -> None:
        """Lead from ``source`` to what the router returns: a node, several, or ``END``.

        ``targets`` lists the nodes that it may return, or maps what it returns (a name, a bool,
        any value that can be a key) to nodes. It may be left out when the router's return
        annotation is a ``Literal`` of them, or when it returns nothing but plain names.
        """
        if not callable(router):
            raise TypeError(f"a router is a function of the state, not {type(router).__name__}")
        edge = Router(
            source=_name(source),
            function=router,
            targets=_as_mapping(targets),
            declared=targets is not None,
            is_async=is_async(router),
            place=caller(),
        )
        self._declared.routers.append(edge)

    def map(
        self,
        source: str,
        node: str,
        *,
        over: str | Callable[[Any], Iterable[Any]],
        item: str,
    ) -> None:
        """After ``source``, run ``node`` once for each member of a list, side by side.

        ``over`` is the key of the list, or a function of the state that gives one. Each task
        finds its member in its state, under ``item``. Their updates are applied in the order of
        the list. If the list is empty, the run goes on as if ``node`` had run.
        """
        self._declared.routers.append(
            Router(
                source=_name(source),
                function=Map(_name(node), cast("Any", over), _name(item)),
                targets=MappingProxyType({node: node}),
                name=f"each of {over}" if isinstance(over, str) else "each",
                place=caller(),
            )
        )

    def set_entry_point(self, name: str) -> None:
        """Start here: the same as an edge from ``START``."""
        self._add_edge(START, name)

    def set_exit_point(self, name: str) -> None:
        """End here: the same as an edge to ``END``."""
        self._add_edge(name, END)

    def with_default_config(self, config: ExecutionConfig) -> None:
        """The guards of every run of this graph, unless a call sets its own."""
        self._declared.config = config

    def _add_edge(self, source: str, target: str, when: Callable[[Any], Any] | None = None) -> None:
        if when is not None and not callable(when):
            raise TypeError(f"when= takes a function of the state, not {type(when).__name__}")
        self._declared.edges.append(PlainEdge(_name(source), _name(target), when, caller()))


def _as_mapping(targets: Iterable[str] | Mapping[Any, str] | None) -> Mapping[Any, str]:
    if targets is None:
        return MappingProxyType({})
    if isinstance(targets, str):
        targets = [targets]
    if not isinstance(targets, Mapping):
        return MappingProxyType({_name(target): target for target in targets})
    given = cast("Mapping[Any, str]", targets)
    return MappingProxyType({returned: _name(target) for returned, target in given.items()})


def _name(given: object) -> str:
    if isinstance(given, str):
        return given
    advice = f": write {name_of(given)!r}" if callable(given) else ""
    raise TypeError(f"a node goes by its name, a str, not {type(given).__name__}{advice}")


def _version(given: object) -> str:
    if isinstance(given, str):
        return given
    raise TypeError(f"the version of a node is a str, not {type(given).__name__}")
