from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from milecastle.codec.deltas import LogCodec, Operations
from milecastle.engine.cycles import Guard
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.engine.received import ReadUnread
from milecastle.engine.remembering import MemoryOf
from milecastle.engine.reserved_channels import Reserved
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import Source
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionConfig, ExecutionOptions
from milecastle.model.reducers import SET
from milecastle.ports.clock import Clock
from milecastle.ports.mailbox import Sent
from milecastle.ports.task import NewChild

SendMessage = Callable[[str, Any, str, str, Mapping[str, str]], Sent]
"""Send a value to a thread, with a topic, and the name that identifies the message."""

Spawn = Callable[[ThreadKey, str, Any, Any, Sequence[NewChild]], None]
"""Submit children of a thread, its run and its config: of an app, or of a graph by its name."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run's instructions.

    ``update`` is an input to apply first (``None``: continue from the position). ``opening`` is the
    source for an entry to append before continuing, with ``note`` for the history. ``has_readers``:
    events are wanted. ``feeding``: emitted values are published to readers in other processes.
    ``streaming``: the stream's mode. ``answers`` are new, by label: the opening entry stores
    them. ``fresh_attempts`` says the user decided to retry, so attempts are reset. ``recall``
    reads the step's task rows. ``released`` are subgraph tasks that no longer wait.
    ``accept_changes`` resumes subgraphs although their states no longer match their graphs.
    ``ended`` is how a subgraph's run stopped that need not be run again. ``leave`` saves a
    portable file where the run stops, if files are wanted. ``root`` is the graph's fingerprint
    that was called, if that is another, and ``path`` are the nodes leading from it to this
    subgraph. ``parent`` is the run and the task a subgraph runs in. ``queues`` commits the opening
    and leaves the rest to a worker. ``options`` are the call's, also for its
    subgraphs. ``rewrites`` writes the step's task rows again, with the opening: they have
    other names. ``look`` reads the thread's messages and ``send`` sends to other threads, if the
    store has mailboxes; ``spawn`` starts children; ``memory`` is long-term memory by tenant.
    ``arrived`` are the labels of waits a message has
    ended, and ``timed_out`` those whose deadlines have passed: the opening entry stores them.
    ``answered_by`` says who gave the answers. ``replay`` reads a flow's recorded calls when it is
    only replayed: it ends at the first unrecorded call.
    """

    graph: CompiledGraph
    config: ExecutionConfig
    run_id: str
    position: Position
    clock: Clock
    journal: Journal | None = None
    interval: int = 1
    update: Mapping[str, Any] | None = None
    opening: Source | None = None
    note: str = ""
    node_config: Any = None
    has_readers: bool = False
    feeding: bool = False
    streaming: str | None = None
    answers: Mapping[str, Any] = {}
    answered_by: Mapping[str, list[Any]] = {}
    released: tuple[str, ...] = ()
    fresh_attempts: bool = False
    accept_changes: bool = False
    recall: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None
    ended: Ending | None = None
    leave: Callable[[Ending, Mapping[str, Mapping[str, Any]]], None] | None = None
    root: str = ""
    path: tuple[str, ...] = ()
    parent: tuple[str, str] | None = None
    queues: bool = False
    options: ExecutionOptions | None = None
    rewrites: bool = False
    look: ReadUnread | None = None
    send: SendMessage | None = None
    spawn: Spawn | None = None
    memory: MemoryOf | None = None
    arrived: frozenset[str] = frozenset()
    timed_out: Mapping[str, int] = {}
    replay: LogCodec | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A run's ending: the values and the position.

    ``interrupts`` are its waits; ``wake_at`` is when a sleeping one may resume. ``config`` is what
    its nodes received.
    """

    status: Literal["completed", "interrupted", "sleeping", "queued", "cancelled"]
    values: dict[str, Any]
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    time: int
    interrupts: tuple[Interrupt, ...] = ()
    wake_at: int | None = None
    reserved: Reserved = {}
    config: Any = None


class Progress:
    """The thread's state as this run sees it, and its next nodes.

    ``nodes`` produced the state, ``next`` are to run, ``route`` are nodes whose edges are still
    to be evaluated. ``reserved`` has the checkpoint's channels besides the state.
    """

    __slots__ = ("guard", "next", "nodes", "reserved", "route", "since", "step", "values")

    def __init__(self, plan: RunPlan) -> None:
        position = plan.position
        entry = position.entry
        self.guard = Guard(plan.config)
        self.values = position.values
        self.reserved: Reserved = dict(position.reserved)
        self.step = entry.step if entry else 0
        self.next: tuple[str, ...] = entry.next if entry else ()
        self.route: tuple[str, ...] = entry.route if entry else ()
        self.nodes: tuple[str, ...] = entry.nodes if entry else ()
        self.since = entry.created_at if entry else plan.clock.now()

    def hide(self, name: str, value: Any) -> Operations:
        """Set a reserved channel, or drop it with ``None``; return the operation to log."""
        if value is not None:
            self.reserved[name] = value
        elif self.reserved.pop(name, None) is None:
            return []
        return [SET, name, value]
