"""Routing: choosing the next nodes.

Predicates and routers are functions on the state, like reducers, and are called here; an async
one is called by the driver, as an effect.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, cast

from milecastle.engine.effects import Effect, Evaluate
from milecastle.errors import RoutingError
from milecastle.graph.edges import Router
from milecastle.graph.sending import Beyond, Command, Goto, Send
from milecastle.graph.structure import CompiledGraph
from milecastle.model.manifest import END

Looked = tuple[str, str, bool]
"""An edge that was looked at: source, target, and whether it was taken."""


class Way:
    __slots__ = ("looked", "names", "sends", "updates")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sends: list[Send] = []
        self.updates: list[Mapping[str, Any]] = []
        self.looked: list[Looked] = []

    def take(self, source: str, target: str | Send) -> None:
        name = target
        if isinstance(target, Send):
            self.sends.append(target)
            name = target.node
        else:
            self.names.append(target)
        self.looked.append((source, cast("str", name), True))


NOT_ASKED: Final = object()


def find_next(
    graph: CompiledGraph, name: str, state: Any, way: Way, answer: Any = NOT_ASKED
) -> Generator[Effect, Any, None]:
    exits = graph.exits[name]
    before = len(way.looked)
    for target in exits.fixed:
        way.take(name, target)
    for branch in exits.branches:
        if branch.when is None:
            holds = True
        elif branch.is_async:
            holds = bool((yield Evaluate(branch.when, state)))
        else:
            holds = bool(branch.when(state))
        if holds:
            way.take(name, branch.target)
            break
        way.looked.append((name, branch.target, False))
    for router in exits.routers:
        if answer is not NOT_ASKED:
            returned = answer
        elif router.is_async:
            returned = yield Evaluate(router.function, state)
        else:
            returned = router.function(state)
        yield from _follow_router(graph, router, returned, state, way)
    if not any(taken for _, _, taken in way.looked[before:]):
        _end_or_refuse(graph, name)


def _follow_router(
    graph: CompiledGraph, router: Router, returned: Any, state: Any, way: Way
) -> Generator[Effect, Any, None]:
    if isinstance(returned, Command):
        if returned.update is not None:
            way.updates.append(returned.update)
        returned = cast("Any", returned.goto)
    if isinstance(returned, Beyond):
        way.looked.append((router.source, returned.node, True))
        yield from find_next(graph, returned.node, state, way)
        return
    for target in listed(returned):
        way.take(router.source, _target(router, target))


def follow_goto(graph: CompiledGraph, name: str, goto: Sequence[str | Send], way: Way) -> None:
    refuse_undeclared(graph, name, goto)
    for target in goto:
        way.take(name, target)


def refuse_undeclared(graph: CompiledGraph, name: str, goto: Sequence[str | Send]) -> None:
    declared = graph.gotos.get(name, frozenset())
    for target in goto:
        to = cast("Any", target.node if isinstance(target, Send) else target)
        if not isinstance(to, str) or to not in declared:
            # What it returned may come from the state, so only its type is reported.
            what = "a name" if isinstance(to, str) else type(to).__name__
            raise RoutingError(
                f"node '{name}' returned a Command to {what} that it did not declare (declared: "
                f"{', '.join(map(repr, sorted(declared))) or 'none'}): "
                "add_node(..., goto=[...]) or annotate it with Command[Literal[...]]",
                node=name,
            )


def listed(goto: Goto | Any) -> list[Any]:
    return list(cast("list[Any]", goto)) if isinstance(goto, list | tuple) else [goto]


def in_order(graph: CompiledGraph, targets: Sequence[str]) -> tuple[str, ...]:
    if len(targets) == 1:
        return () if targets[0] == END else (targets[0],)
    return tuple(sorted({*targets} - {END}, key=graph.order.__getitem__))


def _end_or_refuse(graph: CompiledGraph, name: str) -> None:
    """A node that routes only by ``Command`` may end the graph; others may not."""
    exits = graph.exits[name]
    if not exits.branches and not exits.routers:
        return
    why = "its router returned no target" if exits.routers else "none of its predicates is true"
    what = "return END" if exits.routers else "add a last edge without a predicate"
    raise RoutingError(f"there is no next node after '{name}': {why}; {what}", node=name)


def _target(router: Router, target: Any) -> str | Send:
    name = target.node if isinstance(target, Send) else target
    try:
        found = router.targets.get(name)
    except TypeError:  # not hashable, so not among the targets
        found = None
    if isinstance(target, Send) and name in router.targets.values():
        return target
    if found is None or isinstance(target, Send):
        raise RoutingError(
            f"the router '{router.label}' of node '{router.source}' returned "
            f"{'a name' if isinstance(name, str) else type(name).__name__} that is "
            f"not one of its targets ({', '.join(map(repr, router.targets))})",
            node=router.source,
        )
    return found
