"""A task as data: everything another process needs to run a node, and the outcome.

Nothing here refers to a live object of the run: the executor finds the function by the graph and
the node's name, and the port to the run by the run's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from milecastle.model.keys import ThreadKey
from milecastle.support.prepared import prepared


class Origin(msgspec.Struct, frozen=True):
    """A state's origin: the run and nodes that produced it, and when."""

    run_id: str
    nodes: tuple[str, ...]
    timestamp: datetime


class RunFacts(msgspec.Struct, frozen=True, eq=False):
    """Data shared by one run's tasks.

    ``fingerprint`` is the called graph's; ``path`` names the nodes leading from
    it to the subgraph whose run this is. ``thread`` is ``None`` without a store.
    """

    run_id: str
    fingerprint: str
    path: tuple[str, ...]
    thread: ThreadKey | None
    config: Any


@prepared
class TaskFacts(msgspec.Struct, frozen=True):
    origin: Origin
    failures: Mapping[str, Any]
    began: str


class RunTask(msgspec.Struct, eq=False):
    """One attempt at a task: run a node with these state values.

    ``id`` names the task within its step. ``facts`` are there if the node takes a context; any
    other task that needs them asks the port. ``call`` is a flow call's id, in a flow's step.
    """

    run: RunFacts
    node: str
    state: dict[str, Any]
    id: str
    step: int
    attempt: int = 1
    facts: TaskFacts | None = None
    call: str = ""


class Finished(msgspec.Struct, frozen=True):
    """A task that ended: its result or its error.

    ``refused`` says the error is not the node's own: its result cannot be used.
    """

    task: RunTask
    update: Any = None
    error: BaseException | None = None
    refused: bool = False
