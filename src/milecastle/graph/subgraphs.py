"""A subgraph: a compiled graph that is a node of another.

What leads in and out, unless ``give`` and ``take`` say otherwise: the subgraph is given the keys
that both states have; what it changed in them is its update. For a key with a reducer that is
what it added: the end of a list, the changed entries of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from milecastle.errors import InvalidUpdate
from milecastle.graph.reducers import add, append, maximum, merge, minimum, union
from milecastle.graph.schema import Channel, StateSchema

if TYPE_CHECKING:
    from milecastle.graph.compiled import CompiledGraph

__all__ = ["Subgraph", "shared_keys", "unshareable_keys"]

_MISSING = object()


class Subgraph(msgspec.Struct, frozen=True):
    """A graph as a node. ``interval`` is how often its own threads are saved."""

    graph: CompiledGraph
    parent: StateSchema
    interval: int = 1
    give: Callable[[Any], Any] | None = None
    take: Callable[[Any], Any] | None = None

    def input(self, state: Any) -> Any:
        """What the subgraph is given of the parent's state."""
        if self.give is not None:
            return self.give(state)
        values = _values(self.parent, state)
        return {name: values[name] for name in self.graph.schema.channels if name in values}

    def update(self, node: str, state: Any, values: Mapping[str, Any]) -> Any:
        """The update of the parent's state that the subgraph's last state means."""
        if self.take is not None:
            return self.take(self.graph.schema.present(dict(values)))
        before = _values(self.parent, state)
        update: dict[str, Any] = {}
        for name in shared_keys(self.parent, self.graph.schema):
            if name not in values:
                continue
            old, new = before.get(name, _MISSING), values[name]
            if old is _MISSING or self.parent.channels[name].reducer.name == "last":
                if not _same(old, new):
                    update[name] = new
                continue
            added = _added(node, self.parent.channels[name], old, new)
            if added is not _MISSING:
                update[name] = added
        return update


def shared_keys(parent: StateSchema, child: StateSchema) -> list[str]:
    """The keys that both states have."""
    return [name for name in parent.channels if name in child.channels]


def unshareable_keys(parent: StateSchema, child: StateSchema) -> list[str]:
    """Shared keys whose reducer is the user's own: what was added to them cannot be told."""
    return [
        name
        for name in shared_keys(parent, child)
        if parent.channels[name].reducer.name != "last"
        and parent.channels[name].reducer.function not in _ADDED
    ]


def _values(schema: StateSchema, state: Any) -> dict[str, Any]:
    return state if schema.form == "typed-dict" else schema.fields_of(state)


def _same(old: Any, new: Any) -> bool:
    """Whether a value is as it was; one that was read back from a store is another object."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    kind = cast("object", type(old))
    if kind is list or kind is tuple:
        return len(old) == len(new) and all(map(_same, old, new))
    if kind is dict:
        return old.keys() == new.keys() and all(_same(old[name], new[name]) for name in old)
    try:
        return bool(old == new)
    except Exception:  # values with an equality of their own, such as arrays
        return False


def _added(node: str, channel: Channel, old: Any, new: Any) -> Any:
    if old is new:
        return _MISSING
    added = _ADDED[channel.reducer.function](old, new)
    if added is None:
        raise InvalidUpdate(
            f"the subgraph '{node}' changed what was already in '{channel.name}', and only what "
            "it adds can be told: give the node take= to say what its update is",
            node=node,
            key=channel.name,
        )
    return added


def _tail(old: Any, new: Any) -> Any:
    """The end of a sequence, if its beginning is as it was."""
    count = len(old)
    if new[:count] != old:
        return None
    return new[count:] or _MISSING


def _new_entries(old: Any, new: Any) -> Any:
    if any(name not in new for name in old):
        return None
    changed: dict[Any, Any] = {
        name: value for name, value in new.items() if name not in old or not _same(old[name], value)
    }
    return changed or _MISSING


def _new_members(old: Any, new: Any) -> Any:
    return None if old - new else (new - old or _MISSING)


def _sum_of_rest(old: Any, new: Any) -> Any:
    return _tail(old, new) if hasattr(old, "__len__") else new - old


_ADDED: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    append: _tail,
    merge: _new_entries,
    union: _new_members,
    add: _sum_of_rest,
    maximum: lambda _, new: new,
    minimum: lambda _, new: new,
}
"""What was added to the first value to make the second, by reducer function."""
