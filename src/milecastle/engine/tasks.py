"""A step's tasks: which nodes run, each with its input.

A node running once is a task under its own name; in a fan-out its tasks are counted, in the
order in which they were sent. That order is also the one in which updates are applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from milecastle.errors import RoutingError
from milecastle.graph.sending import Send
from milecastle.graph.structure import CompiledGraph, Node
from milecastle.model.manifest import END
from milecastle.support.printable import quoted


class Task(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One task in a step. ``update`` is applied to the state it receives.

    ``item`` is its place in a fan-out, else -1.
    """

    id: str
    node: Node
    update: Mapping[str, Any] | None = None
    item: int = -1

    def state(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, **self.update} if self.update else values


def task_id(name: str) -> str:
    """Task id for a node running once. Ids contain no ``/``, and no ``#`` from a name."""
    if "#" in name or "/" in name:
        return name.replace("#", "#h").replace("/", "#s")
    return name


def outcome_row(step: int, task: str) -> str:
    return f"{step}:{task}"


def received_row(step: int, task: str) -> str:
    return f"{step}@{task}"


def is_received_row(row: str) -> bool:
    return row.partition("@")[0].isdigit()


def held_messages(rows: Mapping[str, Mapping[str, Any]]) -> set[int]:
    return {one for row, kept in rows.items() if is_received_row(row) for one in kept["value"]}


def ready_nodes(graph: CompiledGraph, names: tuple[str, ...]) -> tuple[str, ...]:
    if not graph.defers:
        return names
    nodes = graph.nodes
    return tuple(name for name in names if not nodes[name].policy.defer) or names


def tasks_of(graph: CompiledGraph, names: Sequence[str], sends: Sequence[Any] | None) -> list[Task]:
    nodes = graph.nodes
    if not sends:
        return [Task(task_id(name), nodes[name]) for name in names]
    counts: Counter[str] = Counter()
    tasks: list[Task] = []
    wanted = frozenset(names)
    for name, update in zip(sends[::2], sends[1::2], strict=True):
        if name not in wanted:
            continue  # it is deferred, and waits for these
        if update is None:
            tasks.append(Task(task_id(name), nodes[name]))
        else:
            item = counts[name]
            tasks.append(Task(f"{task_id(name)}#{item}", nodes[name], update, item))
            counts[name] = item + 1
    return tasks


def as_sends(
    graph: CompiledGraph, names: Sequence[str], sends: Sequence[Send], values: Mapping[str, Any]
) -> list[Any] | None:
    """The next step's tasks as stored; ``None`` if ``names`` are all of them."""
    if not sends:
        return None
    refuse_unfit(graph, sends)
    _refuse_values(graph, sends, values)
    tasks: list[tuple[str, Mapping[str, Any] | None]] = [
        (name, None) for name in dict.fromkeys(names) if name != END
    ]
    tasks += [(send.node, send.update) for send in sends]
    tasks.sort(key=lambda task: graph.order[task[0]])
    return [part for task in tasks for part in task]


def refuse_unfit(graph: CompiledGraph, sends: Sequence[Send]) -> None:
    """Refuse a send no state can make valid: not a dict, an unknown key, a deferred node."""
    schema = graph.schema
    for send in sends:
        update = cast("Any", send.update)
        if not isinstance(update, Mapping):
            kind = type(update).__name__
            raise RoutingError(
                f"a Send to '{send.node}' contains {kind}; it takes a dict of state values",
                node=send.node,
            )
        given = cast("Mapping[str, Any]", update)
        unknown = [name for name in given if name not in schema.channels]
        if unknown and schema.form != "typed-dict":
            raise RoutingError(
                f"a Send to '{send.node}' gives {quoted(*unknown)}, which "
                f"{schema.state_type.__name__} does not have",
                node=send.node,
            )
        if graph.nodes[send.node].policy.defer:
            raise RoutingError(
                f"a Send to '{send.node}', which is deferred: connect it with an edge instead",
                node=send.node,
            )


def _refuse_values(graph: CompiledGraph, sends: Sequence[Send], values: Mapping[str, Any]) -> None:
    schema = graph.schema
    if not schema.is_guarded:
        return
    for send in sends:
        refused = schema.refusal_of({**values, **send.update})
        if refused is not None:
            raise RoutingError(
                f"a Send to '{send.node}' gives values that {schema.state_type.__name__} refuses "
                f"with {type(refused).__name__}",
                node=send.node,
            ) from refused
