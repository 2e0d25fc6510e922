"""Bulk work and the types of states, compiled once for all simulated processes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from milecastle.codec import registry
from milecastle.engine.context import Context
from milecastle.fleet.bulk import Bulk, BulkState
from tests.simulation.fleet.virtual_loop import current_actor

__all__ = ["SharedBulk", "storable_types"]

_find_types = registry.storable_types
_types: dict[tuple[int, ...], tuple[list[object], list[type]]] = {}


def storable_types(annotations: Any) -> list[type]:
    """``codec.registry.storable_types``, by the identity of annotations, which are kept alive."""
    hints = list(annotations)
    found = _types.setdefault(tuple(map(id, hints)), (hints, []))
    if not found[1]:
        found[1][:] = _find_types(hints)
    return found[1]


class SharedBulk(Bulk):
    """Bulk work whose graph is compiled once: a node is that of the process that runs it."""

    def _graph(self) -> Any:
        name = self._app.graph.name
        connection: Any = self._store
        connection.process.bulks[name] = self
        return SimpleNamespace(compile=partial(_compiled, name))


@cache
def _compiled(name: str) -> Any:
    shared: Any = SimpleNamespace(_app=SimpleNamespace(graph=SimpleNamespace(name=name)))
    shared.find, shared.change = _node(name, "find"), _node(name, "change")
    kind: Any = Bulk
    return kind._graph(shared).compile()


def _node(graph: str, name: str) -> Callable[[BulkState, Context], Any]:
    def node(state: BulkState, ctx: Context) -> Any:
        return getattr(current_actor().bulks[graph], name)(state, ctx)

    return node
