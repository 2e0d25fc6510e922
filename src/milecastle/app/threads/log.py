"""Reading and writing threads outside a run: read, fork, update, delete.

Everything here is sync. The async API calls it off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any, NoReturn

import msgspec
import msgspec.structs

from milecastle.app.threads.archived import refuse_archived, whole_history
from milecastle.app.threads.closing import close_children, supersede_running
from milecastle.app.threads.compatibility import judge_compatibility
from milecastle.app.threads.tagging import tags_at
from milecastle.codec.deltas import LogCodec, Operations
from milecastle.codec.envelope import Sealers
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.applying import (
    UPDATE,
    ReducerFailed,
    apply_update,
    as_request,
    refuse_unmade,
)
from milecastle.engine.assignment import kept_in_lane
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position, restore
from milecastle.engine.renaming import under_new_names
from milecastle.engine.reserved_channels import (
    CALLS,
    branched,
    with_no_messages,
    without_children,
)
from milecastle.engine.waiting import open_interrupts
from milecastle.errors import InvalidRequest, InvalidUpdate, ResumeRefused, ThreadNotFound
from milecastle.graph.comparison import Renames
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import CheckpointMetadata, Entry, Source
from milecastle.model.children import PARENT
from milecastle.model.hosting import HOSTED
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey, refuse_own
from milecastle.model.notices import Notice
from milecastle.model.run import ANSWERED, RunRecord, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.clock import Clock
from milecastle.ports.store import Chain, Opened, Store
from milecastle.support.printable import quoted

At = int | str | None
"""A checkpoint of a thread: its seq, its id, or ``None`` for the head."""

Migrate = Callable[[dict[str, Any], tuple[str, ...]], tuple[dict[str, Any], Iterable[str]]]
"""A state and the nodes to run next, as the old graph left them; as this graph should find them."""


class Migration(msgspec.Struct, frozen=True):
    function: Migrate
    types: tuple[type, ...] = ()


def log_codec_for(
    graph: CompiledGraph,
    sealers: Sealers | None = None,
    types: Iterable[type] = (),
    *,
    files: bool = False,
    drops: bool = False,
) -> LogCodec:
    """Codec for plain data and the types this graph's state declares.

    ``types`` are former ones, which replace those with the same names. ``files`` says whether its
    store has files. ``drops`` reads objects without fields their classes no longer have.
    """
    registry = TypeRegistry.for_annotations(
        graph.annotations, files=files, former=types, drops=drops
    )
    return LogCodec(ValueCodec(registry), sealers=sealers)


def interrupts_at(position: Position, status: str) -> tuple[Interrupt, ...]:
    """A thread's waits: its open questions, or else the nodes it stopped at.

    Questions are open whatever the run's status: a user may have gone back to them.
    """
    found = open_interrupts(position.reserved, position.place)
    if found or status != "interrupted":
        return found
    return tuple(Interrupt(id=f"{position.place}:{name}", node=name) for name in position.next)


def recorded(key: ThreadKey, opened: Opened) -> RunRecord:
    if opened.record is None:
        _refuse_unrecorded(key, opened.chain.entries[-1])
    return opened.record


def _refuse_unrecorded(key: ThreadKey, entry: Entry) -> NoReturn:
    raise InvalidRequest(f"run {entry.run_id} of thread '{key.thread}' has no record")


def _notify_nobody(key: ThreadKey, notice: Notice) -> None: ...


class Threads:
    """One graph's threads in one store. ``encrypts``: each has its own key.

    ``notify`` submits a notice's deliveries.
    """

    def __init__(
        self, graph: CompiledGraph, store: Store, clock: Clock, sealers: Sealers | None = None
    ) -> None:
        self.graph = graph
        self.store = store
        self.clock = clock
        self.codec = log_codec_for(graph, sealers, files=store.file_storage is not None)
        self.migrations: dict[str, Migration] = {}
        self.notify: Callable[[ThreadKey, Notice], None] = _notify_nobody
        self.manifest = graph.manifest.to_bytes()
        self.encrypts = sealers is not None
        self._sealers = sealers
        self._unbound = self
        self._below: dict[int, Threads] = {}

    def for_thread(self, key: ThreadKey, chain: Chain | None) -> Threads:
        """The same with one thread's key loaded; a thread without a chain gets one.

        A chain whose end cannot be decrypted with it is refused immediately.
        """
        if self._sealers is None:
            return self
        bound = copy(self)
        bound._unbound, bound._sealers, bound.encrypts = self, None, False
        bound.codec = self.codec.for_thread(key, new=chain is None)
        if chain is not None:
            bound.codec.unseal_last(chain.entries)
        return bound

    @property
    def unbound(self) -> Threads:
        """The same without a thread's key: for other threads."""
        return self._unbound

    def below(self, graph: CompiledGraph) -> Threads:
        """A subgraph's threads, with the same migrations; its codec is built once."""
        above = self._unbound
        threads = above._below.get(id(graph))
        if threads is None:
            threads = Threads(graph, self.store, self.clock, above._sealers)
            above._below[id(graph)] = threads
        threads.migrations = self.migrations
        return threads

    def close_children(self, key: ThreadKey) -> None:
        close_children(self.store, self._unbound.codec, self.clock, key)

    def restore(self, chain: Chain, renames: Renames | None = None) -> Position:
        renamed: Mapping[str, str] = renames.channels if renames else {}
        found = restore(chain, self.codec, self.graph.schema, renamed=renamed)
        return self.not_hosted(under_new_names(found, renames) if renames else found)

    def not_hosted(self, position: Position) -> Position:
        if any(name in position.reserved for name in HOSTED):
            raise InvalidRequest(
                "the thread is one of another library's graph, and not of "
                f"{quoted(self.graph.name)}: use another thread, or that library"
            )
        return position

    def existing(self, key: ThreadKey, at: At = None) -> tuple[Position, Entry]:
        bound, chain = self._opened(key, at)
        return bound.restore(chain), chain.entries[-1]

    def names_thread(self, key: ThreadKey, name: str) -> bool:
        is_id = self.store.locate(key, name) is not None
        return not is_id and self.store.head(ThreadKey(key.tenant, name)) is not None

    def standing(self, key: ThreadKey, at: At = None) -> tuple[Position, Entry, RunRecord]:
        if at is not None:
            bound, chain = self._opened(key, at)
            record = self.record(key, chain.entries[-1])
        else:
            found = self.store.open(key)
            if found is None:
                raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
            bound, chain = self.for_thread(key, found.chain), found.chain
            record = recorded(key, found)
        position, _ = bound._named(key, chain)
        return position, position.entry or chain.entries[-1], record

    def record(self, key: ThreadKey, entry: Entry) -> RunRecord:
        record = self.store.run(key, entry.run_id)
        if record is None:
            _refuse_unrecorded(key, entry)
        return record

    def history(self, key: ThreadKey, limit: int | None) -> Iterator[CheckpointMetadata]:
        for entry in whole_history(self.store, key, limit=limit):
            yield CheckpointMetadata.of(key, entry)

    def refuse_foreign(self, record: RunRecord | None) -> None:
        """Refuse to change another graph's run, or another library's.

        Those have no fingerprint, whatever the name is. A run without a graph is from ``put``.
        """
        name = self.graph.name
        if record and record.graph and (record.graph != name or not record.fingerprint):
            raise ResumeRefused(
                record.key.thread,
                [f"it is of the graph {quoted(record.graph)}, and this app is of {quoted(name)}"],
                done="changed",
                advice="call the app of its graph",
            )

    def update(self, key: ThreadKey, update: Mapping[str, Any], at: At) -> CheckpointMetadata:
        head = self._newest(key, at)
        bound, chain = self._opened(key, at)
        entry = chain.entries[-1]
        self.refuse_foreign(self.record(key, entry))
        position, renames = bound._named(key, chain)
        if renames and position.entry:
            named = msgspec.structs.replace(position.entry, fingerprint=self.graph.fingerprint)
            position = msgspec.structs.replace(position, entry=named)
        if CALLS in position.reserved:
            raise InvalidRequest(
                f"thread '{key.thread}' is in a flow whose recorded calls depend on its arguments: "
                "fork it at its beginning, then update that"
            )
        operations: Operations = []
        values = dict(position.values)
        try:
            apply_update(
                self.graph.schema, values, UPDATE, self.graph.schema.read_input(update), operations
            )
            refuse_unmade(self.graph.schema, values, UPDATE)
        except (InvalidUpdate, ReducerFailed) as error:
            raise as_request("update", error) from error.__cause__
        return bound._append(
            key, head or entry, position, values, operations, "update", renamed=bool(renames)
        )

    def fork(self, key: ThreadKey, at: At, as_thread: ThreadKey | None) -> CheckpointMetadata:
        head = self._newest(key, at)
        bound, chain = self._opened(key, at)
        entry = chain.entries[-1]
        self.refuse_foreign(self.record(key, entry))
        # as stored: without start values of channels that are new in this graph
        position = self.not_hosted(restore(chain, bound.codec))
        target = as_thread or key
        if target != key:
            refuse_own(target.thread)
        if target != key and self.store.head(target) is not None:
            raise InvalidRequest(f"thread '{target.thread}' already exists; fork to another name")
        if target == key:
            return bound._append(key, head or entry, position, position.values, [], "fork")
        return self._found(key, target, position, entry)

    def _append(
        self,
        key: ThreadKey,
        head: Entry,
        position: Position,
        values: Mapping[str, Any],
        operations: Operations,
        source: Source,
        *,
        renamed: bool = False,
    ) -> CheckpointMetadata:
        """Append to the thread itself. An active run at the head loses it, and so do its subgraphs.

        ``head`` was read no later than ``position``: anything committed since is a conflict.
        """
        entry = position.entry or head
        record, known = self.record(key, entry), self.store.thread(key)
        journal = Journal(
            record=msgspec.structs.replace(record, fingerprint=entry.fingerprint),
            manifest=self.manifest if renamed else None,
            codec=self.codec,
            clock=self.clock,
            position=position,
            head=head.seq,
            head_id=head.id,
            rollup_after=self.store.rollup_after,
            announced=False,
        )
        if renamed:
            journal.restart()
        journal.inboxes = self.graph.schema.inboxes
        supersede_running(self.store, self.codec, journal, head)
        self.close_children(key)
        reserved = branched(position.reserved)
        journal.note([*operations, *without_children(position.reserved)])
        standing = Position(values=dict(values), entry=entry, reserved=reserved)
        return self._commit(journal, standing, source, "", known)

    def _found(
        self, key: ThreadKey, target: ThreadKey, position: Position, entry: Entry
    ) -> CheckpointMetadata:
        previous, now = self.record(key, entry), self.clock.now()
        waiting = bool(entry.next or entry.route)
        metadata = {  # without keys of answers: this thread was given none, and not spawned
            name: text
            for name, text in previous.metadata.items()
            if not name.startswith(ANSWERED) and name != PARENT
        }
        record = msgspec.structs.replace(
            previous,
            metadata=metadata,
            run_id=self.clock.new_id(),
            key=target,
            fingerprint=entry.fingerprint,
            status="interrupted" if waiting else "completed",
            retry_count=0,
            previous_run_id=previous.run_id,
            started_at=now,
            ended_at=None if waiting else now,
            wake_at=None,
            owner=None,
        )
        journal = Journal(
            record=record,
            codec=self.codec.for_thread(target, new=True),
            clock=self.clock,
            position=position,
            head=0,
            manifest=self.store.manifest(key, entry.fingerprint),
        )
        tags = tags_at(self.store, key)
        journal.tags = TagChange(add=tags) if tags else None
        note = f"from seq {entry.seq} of thread '{key.thread}'"
        reserved = with_no_messages(branched(position.reserved))
        standing = Position(values=position.values, entry=entry, reserved=reserved)
        return self._commit(journal, standing, "fork", note)

    def _opened(self, key: ThreadKey, at: At) -> tuple[Threads, Chain]:
        seq = self._seq(key, at)
        chain = self.store.read(key, seq)
        if chain is None:
            if self.store.head(key) is None:
                raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
            if seq is not None and seq > 0:
                refuse_archived(self.store, key, seq)
            raise InvalidRequest(f"thread '{key.thread}' has no checkpoint {at}")
        return self.for_thread(key, chain), chain

    def _named(self, key: ThreadKey, chain: Chain) -> tuple[Position, Renames]:
        renames = self.renames_at(key, chain.entries[-1])
        return self.restore(chain, renames), renames

    def renames_at(self, key: ThreadKey, entry: Entry) -> Renames:
        if entry.fingerprint == self.graph.fingerprint:
            return Renames()
        manifest = self.store.manifest(key, entry.fingerprint)
        return judge_compatibility(entry, manifest, self.graph).renames

    def _newest(self, key: ThreadKey, at: At) -> Entry | None:
        return None if at is None else self.store.head(key)

    def _commit(
        self,
        journal: Journal,
        standing: Position,
        source: Source,
        note: str,
        known: ThreadInfo | None = None,
    ) -> CheckpointMetadata:
        """``known`` is the index row so far: workers still wake or retry it."""
        batch = journal.append(standing, source, note)
        if known is not None and known.lane and batch.thread is not None:
            line = kept_in_lane(batch.thread, known)
            batch = msgspec.structs.replace(batch, thread=line)
        self.store.commit(batch)
        return CheckpointMetadata.of(journal.key, batch.entries[0])

    def _seq(self, key: ThreadKey, at: At) -> int | None:
        if not isinstance(at, str):
            return at
        seq = self.store.locate(key, at)
        if seq is None:
            refuse_archived(self.store, key)
            raise InvalidRequest(f"thread '{key.thread}' has no checkpoint with id {at}")
        return seq
