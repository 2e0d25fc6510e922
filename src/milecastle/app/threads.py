"""Reading and writing threads outside of a run: look at them, branch off, update, delete.

Everything here is sync. The async face calls it off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec.structs

from milecastle.codec.deltas import LogCodec, Operations
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.sealing import Sealers
from milecastle.codec.values import ValueCodec
from milecastle.engine.applying import UPDATE, apply_update
from milecastle.engine.hidden import branched, without_children
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position, restore
from milecastle.errors import InvalidRequest, InvalidUpdate
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import CheckpointMetadata, Entry, Source
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus
from milecastle.ports.clock import Clock
from milecastle.ports.store import Chain, Store

if TYPE_CHECKING:
    from milecastle.app.migrating import Migration

__all__ = ["At", "Threads", "log_codec_for"]

At = int | str | None
"""A checkpoint of a thread: its seq, its id, or ``None`` for the head."""


def log_codec_for(
    graph: CompiledGraph, sealers: Sealers | None = None, types: Iterable[type] = ()
) -> LogCodec:
    """The codec that admits plain data and the types that this graph's state declares."""
    annotations = [*types, *(channel.annotation for channel in graph.schema.channels.values())]
    return LogCodec(ValueCodec(TypeRegistry.for_annotations(annotations)), sealers=sealers)


class Threads:
    """The threads of one graph in one store."""

    def __init__(
        self, graph: CompiledGraph, store: Store, clock: Clock, sealers: Sealers | None = None
    ) -> None:
        self.graph = graph
        self.store = store
        self.clock = clock
        self.codec = log_codec_for(graph, sealers)
        self.migrations: dict[str, Migration] = {}
        self._sealers = sealers

    def for_thread(self, key: ThreadKey, chain: Chain | None) -> Threads:
        """The same with one thread's key at hand; a thread without a chain is given one.

        A chain whose end does not open with it is refused at once.
        """
        if self._sealers is None:
            return self
        bound = Threads(self.graph, self.store, self.clock)
        bound.migrations = self.migrations
        bound.codec = self.codec.for_thread(key, new=chain is None)
        if chain is not None:
            head = chain.entries[-1]
            bound.codec.unseal(head.payload, head.seq, head.kind)
        return bound

    def restore(self, chain: Chain) -> Position:
        """Where the thread stands at the end of a chain, its state decoded."""
        return restore(chain, self.codec, self.graph.schema)

    def existing(self, key: ThreadKey, at: At = None) -> tuple[Position, Entry]:
        """Where the thread stands, or stood at a checkpoint; it must be there."""
        chain = self.store.read(key, self._seq(key, at))
        if chain is None:
            what = "checkpoints" if at is None else f"checkpoint {at}"
            raise InvalidRequest(f"thread '{key.thread}' has no {what}")
        return self.for_thread(key, chain).restore(chain), chain.entries[-1]

    def record(self, key: ThreadKey, entry: Entry) -> RunRecord:
        """The record of the run that wrote an entry."""
        record = self.store.run(key, entry.run_id)
        if record is None:
            raise InvalidRequest(f"run {entry.run_id} of thread '{key.thread}' has no record")
        return record

    def status(self, key: ThreadKey, entry: Entry) -> RunStatus:
        """What became of the run, seen from this checkpoint."""
        status = self.record(key, entry).status
        if not entry.next and not entry.route:
            return "completed"
        return "interrupted" if status == "completed" else status

    def history(self, key: ThreadKey, limit: int | None) -> Iterator[CheckpointMetadata]:
        """The thread's checkpoints, newest first, without decoding any state."""
        for entry in self.store.history(key, limit=limit):
            yield CheckpointMetadata.of(key, entry)

    def update(self, key: ThreadKey, update: Mapping[str, Any], at: At) -> CheckpointMetadata:
        """Append a checkpoint: the one at ``at`` with an update on top."""
        position, entry = self.existing(key, at)
        operations: Operations = []
        values = dict(position.values)
        try:
            apply_update(
                self.graph.schema,
                values,
                UPDATE,
                self.graph.schema.read_input(update),
                operations,
            )
        except InvalidUpdate as error:
            raise InvalidRequest(f"the update does not fit the state: {error.message}") from None
        return self._append(key, position, entry, values, operations, "update")

    def fork(self, key: ThreadKey, at: At, as_thread: ThreadKey | None) -> CheckpointMetadata:
        """Append a checkpoint that goes on from an older one, here or as a thread of its own."""
        position, entry = self.existing(key, at)
        target = as_thread or key
        if target != key and self.store.read(target) is not None:
            raise InvalidRequest(f"thread '{target.thread}' exists already; fork to another name")
        if target == key:
            return self._append(key, position, entry, position.values, [], "fork")
        return self._found(key, target, position, entry)

    def _append(
        self,
        key: ThreadKey,
        position: Position,
        entry: Entry,
        values: Mapping[str, Any],
        operations: Operations,
        source: Source,
    ) -> CheckpointMetadata:
        """Append to the thread itself, on whatever its head is now; the run stays as it is."""
        head = self.store.read(key)
        record = self.record(key, entry)
        journal = Journal(
            record=msgspec.structs.replace(record, fingerprint=entry.fingerprint),
            codec=self.codec.for_thread(key),
            clock=self.clock,
            position=position,
            head=head.entries[-1].seq if head else 0,
            announced=False,
        )
        hidden = branched(position.hidden)
        journal.note([*operations, *without_children(position.hidden)])
        standing = Position(values=dict(values), entry=entry, hidden=hidden)
        return self._commit(journal, standing, source, "")

    def _found(
        self, key: ThreadKey, target: ThreadKey, position: Position, entry: Entry
    ) -> CheckpointMetadata:
        """Begin another thread where this one stood; it waits to be resumed."""
        previous = self.record(key, entry)
        record = msgspec.structs.replace(
            previous,
            run_id=self.clock.new_id(),
            key=target,
            fingerprint=entry.fingerprint,
            status="interrupted",
            retry_count=0,
            previous_run_id=previous.run_id,
            started_at=self.clock.now(),
            ended_at=None,
            wake_at=None,
        )
        journal = Journal(
            record=record,
            codec=self.codec.for_thread(target, new=True),
            clock=self.clock,
            position=position,
            head=0,
            manifest=self.store.manifest(key, entry.fingerprint),
        )
        note = f"from seq {entry.seq} of thread '{key.thread}'"
        standing = Position(values=position.values, entry=entry, hidden=branched(position.hidden))
        return self._commit(journal, standing, "fork", note)

    def _commit(
        self, journal: Journal, standing: Position, source: Source, note: str
    ) -> CheckpointMetadata:
        batch = journal.append(standing, source, note)
        self.store.commit(batch)
        return CheckpointMetadata.of(journal.key, batch.entries[0])

    def _seq(self, key: ThreadKey, at: At) -> int | None:
        if not isinstance(at, str):
            return at
        seq = self.store.locate(key, at)
        if seq is None:
            raise InvalidRequest(f"thread '{key.thread}' has no checkpoint with id {at}")
        return seq
