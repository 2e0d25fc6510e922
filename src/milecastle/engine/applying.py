"""Applying updates: what nodes returned meets the state, and becomes operations for the log.

Rules:

- Values are never copied and never changed in place; an update makes a new outer dict.
- Updates of one step are applied in the order of the nodes' declaration.
- Two updates of one step may meet in a channel only if it has a reducer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from milecastle.codec.deltas import Operations
from milecastle.codec.plain import kind_of
from milecastle.errors import InvalidUpdate
from milecastle.graph.reducers import LAST, append
from milecastle.graph.schema import Channel, StateSchema
from milecastle.graph.sending import Command, Send
from milecastle.model.manifest import START

__all__ = ["UPDATE", "Outcome", "apply_update", "apply_updates", "read_outcome", "read_update"]

UPDATE: Final = "update_state"
"""Stands for a node where a person gives an update."""

_NO_NODES: Final = {START: "the input", UPDATE: "the update"}
_FEW: Final = 8
_MISSING: Final = object()
_IMMUTABLE: Final = frozenset({int, str, float, bool, bytes, type(None)})


class Outcome(msgspec.Struct, frozen=True):
    """What a task came to: its update, and where it leads if it says so itself.

    ``failure`` is why it leads there: the node, the type of its error and the message.
    """

    update: Mapping[str, Any]
    goto: tuple[str | Send, ...] | None = None
    failure: tuple[str, str, str] | None = None


def read_outcome(
    schema: StateSchema, node: str, returned: Any, values: Mapping[str, Any]
) -> Outcome:
    """What a node returned: an update, a ``Command``, or whom to send to."""
    kind = kind_of(returned)
    if kind is Send:
        return Outcome({}, (returned,))
    if kind is list and returned and all(kind_of(member) is Send for member in returned):
        return Outcome({}, tuple(returned))
    if kind is not Command:
        return Outcome(read_update(schema, node, returned, values))
    goto = returned.goto
    named = (goto,) if isinstance(goto, str | Send) else tuple(goto)
    return Outcome(read_update(schema, node, returned.update, values), named or None)


def read_update(
    schema: StateSchema, node: str, returned: Any, values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What a node returned, as an update of ``values``: a dict, nothing, or a changed state."""
    if type(returned) is dict:
        return cast("dict[str, Any]", returned)
    if returned is None:
        return {}
    if isinstance(returned, Mapping):
        return cast("Mapping[str, Any]", returned)
    if schema.form != "typed-dict" and isinstance(returned, schema.state_type):
        return _changed_fields(schema, node, returned, values)
    raise InvalidUpdate(
        f"node '{node}' returned {type(returned).__name__}; a node returns a dict with the keys "
        "that it updates, or None",
        node=node,
    )


def _changed_fields(
    schema: StateSchema, node: str, returned: Any, before: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a returned state that are not the ones that the node was given.

    They are compared with the values, because a node may have changed the state it was given.
    """
    fields = schema.fields_of(returned)
    changed = {name: value for name, value in fields.items() if _may_differ(before[name], value)}
    for name in changed:
        if schema.channels[name].reducer is not LAST and fields[name] is not before[name]:
            raise InvalidUpdate(
                f"node '{node}' returned a whole {schema.state_type.__name__}, but '{name}' has a "
                f"reducer, so it is not clear what to add: return {{'{name}': ...}} instead",
                node=node,
                key=name,
            )
    return {name: value for name, value in changed.items() if schema.channels[name].reducer is LAST}


def apply_updates(
    schema: StateSchema,
    values: dict[str, Any],
    updates: Sequence[tuple[str, Mapping[str, Any]]],
    operations: Operations | None,
) -> bool:
    """Apply the updates of one step to ``values``; whether anything changed."""
    if len(updates) > 1:
        _refuse_two_writers(schema, updates)
    changed = False
    for node, update in _joined(schema, updates) if len(updates) > _FEW else updates:
        changed = apply_update(schema, values, node, update, operations) or changed
    return changed


def _joined(
    schema: StateSchema, updates: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The same updates with long runs of appends made one: a list is then copied only once."""
    rest: list[tuple[str, Mapping[str, Any]]] = []
    gathered: dict[str, list[Any]] = {}
    plain = {
        name
        for name, channel in schema.channels.items()
        if channel.reducer.function is append
        and all(kind_of(update.get(name, [])) is list for _, update in updates)
    }
    for node, update in updates:
        kept = {name: value for name, value in update.items() if name not in plain}
        for name in plain.intersection(update):
            gathered.setdefault(name, []).extend(update[name])
        if kept:
            rest.append((node, kept))
    return [*rest, *((START, {name: members}) for name, members in gathered.items())]


def apply_update(
    schema: StateSchema,
    values: dict[str, Any],
    node: str,
    update: Mapping[str, Any],
    operations: Operations | None,
) -> bool:
    """Apply one update to ``values``, an outer dict of its own; whether anything changed.

    What it did is added to ``operations``, if somebody keeps a log.
    """
    channels = schema.channels
    changed = False
    for name, value in update.items():
        channel = channels.get(name)
        if channel is None:
            raise _unknown_key(node, name, channels)
        reducer = channel.reducer
        old = values.get(name, _MISSING)
        if reducer is LAST:
            if channel.classes is not None and not isinstance(value, channel.classes):
                raise _wrong_type(node, channel, value)
            stored = new = value
        else:
            if old is _MISSING and reducer.empty is not None:
                old = reducer.empty()
            try:
                new = value if old is _MISSING else reducer.function(old, value)
            except TypeError as error:
                raise _not_taken(node, channel, value, error) from error
            exact = reducer.empty is not None and kind_of(value) is reducer.empty
            stored = value if exact else _as_stored(channel, value, new)
        values[name] = new
        if not changed:
            changed = _may_differ(old, new)
        if operations is not None:
            operations += (reducer.code, name, stored)
    return changed


def _as_stored(channel: Channel, update: Any, new: Any) -> Any:
    """What a log keeps: the update of a built-in reducer, the outcome of a user's own."""
    empty = channel.reducer.empty
    if not channel.reducer.code:
        return new
    return update if empty is None or type(update) is empty else cast("Any", empty)(update)


def _not_taken(node: str, channel: Channel, update: Any, error: TypeError) -> InvalidUpdate:
    return InvalidUpdate(
        f"{_who(node)} gave '{channel.name}' {type(update).__name__}, which its "
        f"reducer '{channel.reducer.name}' does not take: {error}",
        node=node,
        key=channel.name,
    )


def _may_differ(old: Any, new: Any) -> bool:
    """Whether the value may have changed. A mutable object may have been changed in place."""
    if old is new:
        return type(new) not in _IMMUTABLE
    try:
        return not bool(old == new)
    except Exception:  # values with an equality of their own, such as arrays
        return True


def _refuse_two_writers(
    schema: StateSchema, updates: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    writers: dict[str, str] = {}
    for node, update in updates:
        for name in update:
            other = writers.setdefault(name, node)
            channel = schema.channels.get(name)
            if other != node and channel is not None and channel.reducer is LAST:
                raise InvalidUpdate(
                    f"nodes '{other}' and '{node}' ran in the same step and both wrote '{name}', "
                    "which has no reducer: annotate it with one",
                    node=node,
                    key=name,
                )


def _who(node: str) -> str:
    return _NO_NODES.get(node) or f"node '{node}'"


def _unknown_key(node: str, name: object, channels: Mapping[str, Channel]) -> InvalidUpdate:
    known = ", ".join(repr(channel) for channel in channels)
    return InvalidUpdate(
        f"{_who(node)} gave the key {name!r}, which the state does not have; it has {known}",
        node=node,
        key=str(name),
    )


def _wrong_type(node: str, channel: Channel, value: Any) -> InvalidUpdate:
    return InvalidUpdate(
        f"{_who(node)} gave '{channel.name}' {type(value).__name__}, and it is declared "
        f"as {channel.type_name}",
        node=node,
        key=channel.name,
    )
