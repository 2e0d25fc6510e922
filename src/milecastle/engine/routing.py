"""Routing: which nodes run next.

Predicates and routers are functions of the state, like reducers, and are called here; an async
one is called by the driver, as an effect.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, cast

from milecastle.engine.effects import Effect, Evaluate
from milecastle.errors import RoutingError
from milecastle.graph.compiled import CompiledGraph
from milecastle.graph.edges import Router
from milecastle.model.manifest import END

__all__ = ["Looked", "find_next", "in_order", "targets_of"]

Looked = tuple[str, str, bool]
"""An edge that was looked at: source, target, and whether it was taken."""


def find_next(
    graph: CompiledGraph, name: str, state: Any, looked: list[Looked]
) -> Generator[Effect, Any, list[str]]:
    """The targets that the edges of one node lead to; what was looked at is added to ``looked``."""
    exits = graph.exits[name]
    targets = list(exits.fixed)
    for branch in exits.branches:
        if branch.when is None:
            holds = True
        elif branch.is_async:
            holds = bool((yield Evaluate(branch.when, state)))
        else:
            holds = bool(branch.when(state))
        if holds:
            targets.append(branch.target)
            break
        looked.append((name, branch.target, False))
    for router in exits.routers:
        if router.is_async:
            returned = yield Evaluate(router.function, state)
        else:
            returned = router.function(state)
        targets += targets_of(router, returned)
    if not targets:
        raise RoutingError(
            f"no edge leads on from node '{name}': none of its predicates holds; add an edge "
            "without a predicate as the last one",
            node=name,
        )
    looked += [(name, target, True) for target in targets]
    return targets


def in_order(graph: CompiledGraph, targets: Sequence[str]) -> tuple[str, ...]:
    """The nodes of the next step, each once, in the order of their declaration."""
    if len(targets) == 1:
        return () if targets[0] == END else (targets[0],)
    return tuple(sorted({*targets} - {END}, key=graph.order.__getitem__))


def targets_of(router: Router, returned: Any) -> list[str]:
    """The nodes that a router's answer means; ``RoutingError`` if it was not declared."""
    target = router.targets.get(returned) if type(returned) is str else None
    if target is not None:
        return [target]
    names = cast("list[Any]", returned) if isinstance(returned, (list, tuple)) else [returned]
    return [_target(router, name) for name in names]


def _target(router: Router, name: Any) -> str:
    try:
        target = router.targets.get(name)
    except TypeError:  # not hashable, so not among the targets
        target = None
    if target is None:
        raise RoutingError(
            f"the router '{router.label}' of node '{router.source}' returned "
            f"{'a name' if isinstance(name, str) else type(name).__name__} that is "
            f"not among its targets ({', '.join(map(repr, router.targets))})",
            node=router.source,
        )
    return target
