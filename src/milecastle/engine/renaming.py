"""Renaming: a thread's position after its nodes and channels got other names.

Tasks are named after their nodes, and so are their rows, their questions and their sleeps. A
subgraph's thread keeps its name: it is looked for under its node's former names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec.structs

from milecastle.engine.applying import FAILED, GOTO
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import (
    ANSWERED_BY,
    ANSWERS,
    BEGAN,
    FAILURE,
    GOTOS,
    SENDS,
    TIMED_OUT,
    WAITS,
    Reserved,
)
from milecastle.engine.tasks import task_id
from milecastle.graph.comparison import Renames

Rename = Callable[[str], str]


def under_new_names(position: Position, renames: Renames) -> Position:
    """The position under the new names; ``values`` have them already.

    The entry writing it is a new beginning of the chain, not of the step.
    """
    if position.entry is None:
        return position
    node = _lookup(renames.nodes)
    entry = msgspec.structs.replace(
        position.entry,
        nodes=tuple(map(node, position.nodes)),
        next=tuple(map(node, position.next)),
        route=tuple(map(node, position.route)),
    )
    reserved = _reserved(position.reserved, renames)
    if position.next:
        reserved[BEGAN] = [position.settled, position.settled_id]
    results = {
        row_renamed(row, renames): _outcome(row, kept, renames)
        for row, kept in position.results.items()
    }
    return msgspec.structs.replace(position, entry=entry, reserved=reserved, results=results)


def task_renamed(task: str, renames: Renames) -> str:
    names = {task_id(old): task_id(new) for old, new in renames.nodes.items()}
    if task in names:
        return names[task]
    node, mark, number = task.rpartition("#")
    return f"{names[node]}#{number}" if mark and number.isdigit() and node in names else task


def label_renamed(label: str, renames: Renames) -> str:
    task, mark, rest = label.partition("/")
    return f"{task_renamed(task, renames)}{mark}{rest}"


def row_renamed(row: str, renames: Renames) -> str:
    step = len(row) - len(row.lstrip("0123456789"))
    return row[: step + 1] + label_renamed(row[step + 1 :], renames)


def _lookup(names: Mapping[str, str]) -> Rename:
    return lambda name: names.get(name, name)


def _reserved(reserved: Reserved, renames: Renames) -> Reserved:
    node, found = _lookup(renames.nodes), dict(reserved)
    if SENDS in reserved:
        sends = reserved[SENDS]
        pairs = zip(sends[::2], sends[1::2], strict=True)
        found[SENDS] = [part for to, item in pairs for part in (node(to), _update(item, renames))]
    for name in (WAITS, ANSWERS, TIMED_OUT, ANSWERED_BY):
        if name in reserved:
            found[name] = {
                label_renamed(label, renames): _wait(kept, renames) if name == WAITS else kept
                for label, kept in reserved[name].items()
            }
    if FAILURE in reserved:
        found[FAILURE] = {
            renames.nodes.get(whose) or task_renamed(whose, renames): why
            for whose, why in reserved[FAILURE].items()
        }
    if GOTOS in reserved:
        found[GOTOS] = {
            node(source): _goto(targets, renames) for source, targets in reserved[GOTOS].items()
        }
    return found


def _wait(kept: list[Any], renames: Renames) -> list[Any]:
    task, question, *rest = kept
    if question is not None:
        node, *asked = question
        question = [renames.nodes.get(node, node), *asked]
    return [task_renamed(task, renames), question, *rest]


def _update(update: Any, renames: Renames) -> Any:
    if update is None:
        return None
    return {renames.channels.get(name, name): value for name, value in update.items()}


def _goto(targets: list[Any], renames: Renames) -> list[Any]:
    return [_target(target, renames) for target in targets]


def _target(target: Any, renames: Renames) -> Any:
    if target is None:
        return None
    if isinstance(target, str):
        return renames.nodes.get(target, target)
    node, update = target
    return [renames.nodes.get(node, node), _update(update, renames)]


def _outcome(row: str, kept: dict[str, Any], renames: Renames) -> dict[str, Any]:
    if row.lstrip("0123456789")[:1] != ":":
        return kept
    found = _update(kept, renames)
    if GOTO in kept:
        found[GOTO] = _goto(kept[GOTO], renames)
    if FAILED in kept:
        node, *why = kept[FAILED]
        found[FAILED] = [renames.nodes.get(node, node), *why]
    return dict(found)
