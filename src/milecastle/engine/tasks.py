"""The tasks of a step: which nodes run, each with what it is given.

A node that runs once is a task under its own name; in a fan-out its tasks are counted, in the
order in which they were sent. That order is also the one in which updates are applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from milecastle.errors import RoutingError
from milecastle.graph.compiled import CompiledGraph
from milecastle.graph.nodes import Node
from milecastle.graph.schema import StateSchema
from milecastle.graph.sending import Send
from milecastle.model.manifest import END

__all__ = ["Task", "as_sends", "outcome_row", "task_id", "tasks_of"]


class Task(msgspec.Struct, frozen=True, eq=False):
    """One task of a step. ``update`` is laid over the state that it is given."""

    id: str
    node: Node
    update: Mapping[str, Any] | None = None

    def state(self, schema: StateSchema, values: dict[str, Any]) -> Any:
        """The state as the node meets it."""
        return schema.present({**values, **self.update} if self.update else values)


def task_id(name: str) -> str:
    """The id of the task of a node that runs once. Ids hold no ``/``, and no ``#`` of a name."""
    if "#" in name or "/" in name:
        return name.replace("#", "#h").replace("/", "#s")
    return name


def outcome_row(step: int, task: str) -> str:
    """The name under which the outcome of a task is kept until its step is committed."""
    return f"{step}:{task}"


def tasks_of(graph: CompiledGraph, names: Sequence[str], sends: Sequence[Any] | None) -> list[Task]:
    """The tasks of a step, in the order in which their updates are applied."""
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
            tasks.append(Task(f"{task_id(name)}#{counts[name]}", nodes[name], update))
            counts[name] += 1
    return tasks


def as_sends(graph: CompiledGraph, names: Sequence[str], sends: Sequence[Send]) -> list[Any] | None:
    """How a checkpoint keeps the tasks of the next step; ``None`` if ``names`` say it all."""
    if not sends:
        return None
    _refuse_unfit(graph, sends)
    tasks: list[tuple[str, Mapping[str, Any] | None]] = [
        (name, None) for name in dict.fromkeys(names) if name != END
    ]
    tasks += [(send.node, send.update) for send in sends]
    tasks.sort(key=lambda task: graph.order[task[0]])
    return [part for task in tasks for part in task]


def _refuse_unfit(graph: CompiledGraph, sends: Sequence[Send]) -> None:
    schema = graph.schema
    for send in sends:
        update = cast("Any", send.update)
        if not isinstance(update, Mapping):
            kind = type(update).__name__
            raise RoutingError(
                f"a Send to '{send.node}' holds {kind}; it takes a dict to lay over the state",
                node=send.node,
            )
        given = cast("Mapping[str, Any]", update)
        unknown = [name for name in given if name not in schema.channels]
        if unknown and schema.form != "typed-dict":
            raise RoutingError(
                f"a Send to '{send.node}' gives {', '.join(map(repr, unknown))}, which "
                f"{schema.state_type.__name__} does not have",
                node=send.node,
            )
        if graph.nodes[send.node].policy.defer:
            raise RoutingError(
                f"a Send to '{send.node}', which is deferred: lead to it by an edge",
                node=send.node,
            )
