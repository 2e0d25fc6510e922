"""Applying updates: merge node results into the state, as operations for the log.

Rules:

- Values are never copied and never changed in place; an update makes a new outer dict.
- A step's updates are applied in declaration order.
- Two updates of one step may meet in a channel only if it has a reducer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from milecastle.codec.deltas import Operations
from milecastle.codec.plain import kind_of
from milecastle.engine.remembering import Writes, packed, unpacked
from milecastle.engine.routing import refuse_undeclared
from milecastle.engine.tasks import refuse_unfit
from milecastle.errors import InvalidRequest, InvalidUpdate
from milecastle.graph.messages import Upsert
from milecastle.graph.schema import Channel, StateSchema
from milecastle.graph.sending import Command, Send
from milecastle.graph.structure import CompiledGraph
from milecastle.model.manifest import START
from milecastle.model.reducers import LAST, Reducer, append
from milecastle.support.printable import quoted

UPDATE: Final = "update_state"
"""Represents a node when a user gives an update."""

_NO_NODES: Final = {START: "the input", UPDATE: "the update"}
_FEW: Final = 8
_MISSING: Final = object()
GOTO: Final = "__goto__"
FAILED: Final = "__failure__"
MEMORY: Final = "__memory__"
_IMMUTABLE: Final = frozenset({int, str, float, bool, bytes, type(None)})

Target = str | Send | None


class ReducerFailed(Exception):
    """A reducer raised ``cause`` on ``node``'s update. Never raised to a caller directly."""

    def __init__(self, node: str, channel: Channel, cause: Exception) -> None:
        super().__init__(f"the reducer '{channel.reducer.name}' of '{channel.name}' failed")
        self.node = node
        self.channel = channel.name
        self.cause = cause


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """A task's outcome: its update, and its targets if it names them.

    ``failure`` is why it leads there: the node, the error's type and the message. ``memory``
    is its writes to long-term memory.
    """

    update: Mapping[str, Any]
    goto: tuple[str | Send, ...] | None = None
    failure: tuple[str, str, str] | None = None
    memory: Writes = ()


def pack(outcome: Outcome) -> Mapping[str, Any]:
    """As one update; the rest is under names a state cannot have."""
    if outcome.goto is None and not outcome.memory:
        return outcome.update
    found: dict[str, Any] = {**outcome.update}
    if outcome.goto is not None:
        found[GOTO] = pack_goto(outcome.goto)
    if outcome.failure is not None:
        found[FAILED] = list(outcome.failure)
    if outcome.memory:
        found[MEMORY] = packed(outcome.memory)
    return found


def unpack(kept: Mapping[str, Any]) -> Outcome:
    if GOTO not in kept and MEMORY not in kept:
        return Outcome(kept)
    update = {name: value for name, value in kept.items() if name not in (GOTO, FAILED, MEMORY)}
    failure, memory = kept.get(FAILED), unpacked(kept.get(MEMORY, ()))
    goto: tuple[str | Send, ...] | None = None
    if GOTO in kept:
        goto = tuple(cast("list[str | Send]", unpack_goto(kept[GOTO])))
    return Outcome(update, goto, None if failure is None else tuple(failure), memory)


def pack_goto(targets: Sequence[Target]) -> list[Any]:
    return [
        [target.node, dict(target.update)] if isinstance(target, Send) else target
        for target in targets
    ]


def unpack_goto(kept: Sequence[Any]) -> list[Target]:
    return [
        target if target is None or isinstance(target, str) else Send(*target) for target in kept
    ]


def read_outcome(
    graph: CompiledGraph, node: str, returned: Any, values: Mapping[str, Any]
) -> Outcome:
    """A node's result: an update, a ``Command``, or ``Send``s.

    Targets leading nowhere are refused here, before anything is stored: the node is repeated on
    resume.
    """
    kind = kind_of(returned)
    if kind is dict:
        return Outcome(returned)
    if kind is Send:
        return Outcome({}, _targets(graph, node, (returned,)))
    if kind is list and returned and all(kind_of(member) is Send for member in returned):
        return Outcome({}, _targets(graph, node, returned))
    if kind is not Command:
        return Outcome(read_update(graph.schema, node, returned, values))
    goto = returned.goto
    if not isinstance(goto, str | Send | list | tuple):
        raise InvalidUpdate(
            f"node '{node}' returned a Command with goto={type(goto).__name__}; goto= takes the "
            "name of a node, a Send, or a list of them",
            node=node,
        )
    named = _targets(graph, node, (goto,) if isinstance(goto, str | Send) else cast("Any", goto))
    return Outcome(read_update(graph.schema, node, returned.update, values), named or None)


def _targets(graph: CompiledGraph, node: str, goto: Collection[Any]) -> tuple[str | Send, ...]:
    for target in goto:
        if isinstance(target, Send):
            if not isinstance(cast("Any", target.update), Mapping):
                kind = type(target.update).__name__
                raise InvalidUpdate(
                    f"node '{node}' returned a Send that holds {kind}; it takes a dict to lay over "
                    "the state",
                    node=node,
                )
        elif not isinstance(target, str):
            raise InvalidUpdate(
                f"node '{node}' returned a Command whose goto= holds {type(target).__name__}; "
                "goto= takes the name of a node, a Send, or a list of them",
                node=node,
            )
    named = tuple(goto)
    refuse_undeclared(graph, node, named)
    refuse_unfit(graph, [target for target in named if isinstance(target, Send)])
    return named


def prepared(schema: StateSchema, returned: Any) -> Any:
    if not schema.prepares:
        return returned
    if kind_of(returned) is Command:
        return msgspec.structs.replace(returned, update=prepared(schema, returned.update))
    if not isinstance(returned, Mapping):
        return returned
    ready = {**cast("Mapping[str, Any]", returned)}
    for name in schema.prepares:
        prepare = schema.channels[name].reducer.prepare
        if name in ready and prepare is not None:
            ready[name] = prepare(ready[name])
    return ready


def read_update(
    schema: StateSchema, node: str, returned: Any, values: Mapping[str, Any]
) -> Mapping[str, Any]:
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
    """A returned state's fields that differ from those the node received.

    They are compared with the values, because a node may have changed its input.
    """
    fields = schema.fields_of(returned)
    changed = {name: value for name, value in fields.items() if _may_differ(before[name], value)}
    for name in changed:
        if schema.channels[name].reducer is not LAST and fields[name] is not before[name]:
            raise InvalidUpdate(
                f"node '{node}' returned a whole {schema.state_type.__name__}, but '{name}' has a "
                f"reducer, so it is ambiguous what to add: return {{'{name}': ...}} instead",
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
    if len(updates) > 1:
        _refuse_two_writers(schema, updates)
    changed = False
    before = dict(values) if schema.is_guarded else values
    for node, update in _joined(schema, updates) if len(updates) > _FEW else updates:
        changed = apply_update(schema, values, node, update, operations) or changed
    if schema.is_guarded and updates:
        _refuse_unmade_by_any(schema, before, values, updates)
    return changed


def _joined(
    schema: StateSchema, updates: Sequence[tuple[str, Mapping[str, Any]]]
) -> Sequence[tuple[str, Mapping[str, Any]]]:
    rest: list[tuple[str, Mapping[str, Any]]] = []
    gathered: dict[str, list[Any]] = {}
    plain = {
        name
        for name, channel in schema.channels.items()
        if (channel.reducer.function is append or isinstance(channel.reducer.function, Upsert))
        and all(kind_of(update.get(name, [])) is list for _, update in updates)
    }
    if not plain:
        return updates
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
    """Apply one update to ``values``, an unshared outer dict; return whether anything changed.

    Its operations are added to ``operations``, if there is a log.
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
            given = value
            try:
                if reducer.delta is not None and old is not _MISSING:
                    reducer, given = reducer.delta(old, value)
                new = given if old is _MISSING else reducer.function(old, given)
            except Exception as error:
                raise _not_taken(node, channel, value, error) from error
            exact = reducer.empty is not None and kind_of(given) is reducer.empty
            stored = given if exact else _as_stored(reducer, given, new)
        values[name] = new
        if not changed:
            changed = old is _MISSING or _may_differ(old, new)
        if operations is not None:
            operations += (reducer.code, name, stored)
    return changed


def apply_guarded(
    schema: StateSchema,
    values: dict[str, Any],
    node: str,
    update: Mapping[str, Any],
    operations: Operations | None,
) -> bool:
    changed = apply_update(schema, values, node, update, operations)
    refuse_unmade(schema, values, node)
    return changed


def refuse_unmade(schema: StateSchema, values: dict[str, Any], node: str) -> None:
    refused = schema.refusal_of(values)
    if refused is not None:
        raise InvalidUpdate(
            f"{_who(node)} gave values that {schema.state_type.__name__} refuses with "
            f"{type(refused).__name__}",
            node=node,
        ) from refused


def _refuse_unmade_by_any(
    schema: StateSchema,
    before: dict[str, Any],
    values: dict[str, Any],
    updates: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    """``refuse_unmade`` after several tasks: name the first refused alone, or the last."""
    if schema.refusal_of(values) is None:
        return
    for node, update in updates:
        apply_guarded(schema, dict(before), node, update, None)
    refuse_unmade(schema, values, updates[-1][0])


def _as_stored(reducer: Reducer, update: Any, new: Any) -> Any:
    empty = reducer.empty
    if not reducer.code:
        return new
    return update if empty is None or type(update) is empty else cast("Any", empty)(update)


def _not_taken(
    node: str, channel: Channel, update: Any, error: Exception
) -> InvalidUpdate | ReducerFailed:
    if not channel.reducer.code or not isinstance(error, TypeError):
        return ReducerFailed(node, channel, error)
    return InvalidUpdate(
        f"{_who(node)} gave '{channel.name}' {type(update).__name__}, which its reducer "
        f"'{channel.reducer.name}' does not accept: {error}",
        node=node,
        key=channel.name,
    )


def as_request(what: str, error: InvalidUpdate | ReducerFailed) -> InvalidRequest:
    if isinstance(error, ReducerFailed):
        return InvalidRequest(
            f"the {what} does not match the state: {error} with {type(error.cause).__name__}"
        )
    return InvalidRequest(f"the {what} does not match the state: {error.message}")


def _may_differ(old: Any, new: Any) -> bool:
    """True if the value may have changed. A mutable object may have changed in place."""
    if old is new:
        return type(new) not in _IMMUTABLE
    try:
        return not bool(old == new)
    except Exception:  # values with their own equality, such as arrays
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
                    f"which has no reducer: annotate '{name}' with a reducer",
                    node=node,
                    key=name,
                )


def _who(node: str) -> str:
    return _NO_NODES.get(node) or f"node '{node}'"


def _unknown_key(node: str, name: object, channels: Mapping[str, Channel]) -> InvalidUpdate:
    known = ", ".join(repr(channel) for channel in channels)
    return InvalidUpdate(
        f"{_who(node)} gave the key {quoted(name)}, which the state does not have; it has {known}",
        node=node,
        key=name if isinstance(name, str) else None,
    )


def _wrong_type(node: str, channel: Channel, value: Any) -> InvalidUpdate:
    return InvalidUpdate(
        f"{_who(node)} gave '{channel.name}' {type(value).__name__}, but it is declared as "
        f"{channel.type_name}",
        node=node,
        key=channel.name,
    )
