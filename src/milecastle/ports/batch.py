"""Batches and chains: a commit's writes, and a read's result."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.memory import MemoryWrite
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.model.tags import TagChange


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything one commit writes to one thread.

    ``head`` is the seq the writer expects to be the newest; the first entry, if there is
    one, is ``head + 1``. The same fence applies to a batch without entries. ``head_id`` is the id
    of the entry there, if the writer knows it.
    ``results`` are written under the new head after the batch; a step has one for each task.
    ``manifest`` is given with its fingerprint the first time a run uses it.
    ``thread`` is the thread's line in the index, if it changes: on transitions, not on steps.
    ``tags`` are those the thread gets and loses. They come with a ``thread``, or alone: a step
    is not looked through for them.
    ``unless`` is an input's digest that no run in the thread may have yet: if one has it, the
    batch is refused with ``Conflict``. It comes with ``runs``.
    ``consumes`` are the numbers of messages and inputs this batch applies (``Mailbox``).
    ``memory`` are the long-term memory items it writes (``MemoryItems``), with its entries.
    """

    key: ThreadKey
    head: int
    head_id: str | None = None
    entries: tuple[Entry, ...] = ()
    results: tuple[TaskResult, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    failure: Failure | None = None
    manifest: tuple[str, bytes] | None = None
    thread: ThreadInfo | None = None
    tags: TagChange | None = None
    unless: str | None = None
    consumes: tuple[int, ...] = ()
    memory: tuple[MemoryWrite, ...] = ()


class Chain(msgspec.Struct, frozen=True):
    """Everything needed to rebuild one checkpoint, oldest first; the last entry is the checkpoint.

    The first entry is a snapshot. ``results`` are those of tasks the last entry names as
    next and that finished before the step was committed, in no promised order; only the chain
    of the head has any.
    """

    entries: tuple[Entry, ...]
    results: tuple[TaskResult, ...] = ()


class Opened(NamedTuple):
    """The head's chain, and the record of the run that wrote it, if any.

    Both were read at one moment: no commit came between them.
    """

    chain: Chain
    record: RunRecord | None
