"""A store used directly: put, get_latest, get_by_id, list_history, update_state and the rest.

States are plain dicts here; no graph is needed. It writes the same log that apps write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from milecastle.app.clock import SystemClock
from milecastle.app.copying import CopyReport, copy_threads
from milecastle.app.environment import describe_environment
from milecastle.app.erasure import ErasureReport, erase_threads
from milecastle.app.opening import find_store
from milecastle.app.pruning import prune_thread
from milecastle.app.retention import Retention, RetentionReport, apply_retention
from milecastle.codec.deltas import LogCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.hidden import branched
from milecastle.engine.journal import Journal, Standing
from milecastle.engine.position import Position, restore
from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.checkpoint import Checkpoint, CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.clock import Clock
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.keyring import Keyring

__all__ = ["CheckpointStore", "open_store"]

State = dict[str, Any]


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a caller asks for."""

    values: State
    step: int
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    route: tuple[str, ...] = ()
    hidden: State = {}


class CheckpointStore:
    """Checkpoints of threads, addressed by ``ThreadKey``.

    ``types`` are stored besides plain data: dataclasses, enums, pydantic models, structs.
    With ``encryption`` states are encrypted, and what is not is refused.
    """

    def __init__(
        self,
        store: Store,
        *,
        types: Iterable[type] = (),
        clock: Clock | None = None,
        encryption: Keyring | None = None,
    ) -> None:
        self.store = store
        self.encryption = encryption
        self._clock = clock or SystemClock()
        values = ValueCodec(TypeRegistry.for_annotations(types))
        self._codec = LogCodec(values, sealers=encryption)

    def put(
        self,
        key: ThreadKey,
        state: Mapping[str, Any],
        *,
        next: Sequence[str] = (),
        nodes: Sequence[str] = (),
        step: int | None = None,
        head: int | None = None,
    ) -> Checkpoint[State]:
        """Append a checkpoint. ``head`` is the seq that it must follow (0 for a new thread).

        Without ``head`` it follows whatever is there; with it, ``Conflict`` if that has moved.
        """
        position = self._position(key) or Position(values={})
        if head is not None and head != position.seq:
            raise Conflict(
                tenant=key.tenant, thread=key.thread, expected=head + 1, head=position.seq
            )
        made = _Draft(
            values=dict(state),
            step=position.step + 1 if step is None else step,
            nodes=tuple(nodes),
            next=tuple(next),
        )
        return self._append(key, position, made, position.seq)

    def get_latest(self, key: ThreadKey) -> Checkpoint[State] | None:
        """The thread's newest checkpoint, or ``None``."""
        return self._get(key, None)

    def get_by_id(self, key: ThreadKey, checkpoint_id: str) -> Checkpoint[State] | None:
        """One checkpoint of this thread, or ``None``."""
        seq = self.store.locate(key, checkpoint_id)
        return None if seq is None else self._get(key, seq)

    def list_history(
        self, key: ThreadKey, limit: int | None = None
    ) -> Iterator[CheckpointMetadata]:
        """The thread's checkpoints, newest first. No state is decoded."""
        for entry in self.store.history(key, limit=limit):
            yield CheckpointMetadata.of(key, entry)

    def update_state(self, key: ThreadKey, parent_id: str, new_state: Mapping[str, Any]) -> str:
        """Append a checkpoint that branches off the parent with another state; its id.

        It runs next what the parent would have run. ``InvalidRequest`` if there is no such parent.
        """
        seq = self.store.locate(key, parent_id)
        parent = None if seq is None else self._position(key, seq)
        if parent is None or parent.entry is None:
            raise InvalidRequest(f"thread '{key.thread}' has no checkpoint with id {parent_id}")
        newest = self.store.read(key)
        head = newest.entries[-1].seq if newest else 0
        made = Position(values=dict(new_state), entry=parent.entry, hidden=branched(parent.hidden))
        return self._append(key, parent, made, head).id

    def list_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads, by thread id."""
        return self.store.threads(tenant, status=status, limit=limit, after=after)

    def delete_thread(self, key: ThreadKey) -> bool:
        """Remove a thread and everything of it from this store; whether there was one."""
        return self.store.delete(key)

    def prune(self, key: ThreadKey, *, keep_last: int) -> int:
        """Drop the oldest checkpoints but at least ``keep_last``; how many were dropped."""
        return prune_thread(self.store, self._codec, key, keep_last=keep_last)

    def apply_retention(
        self, tenant: str, retention: Retention, *, dry_run: bool = False
    ) -> RetentionReport:
        """Let go of what a retention does not keep of a tenant's threads; what went.

        With ``dry_run`` nothing changes, and the report says what would go.
        """
        return apply_retention(
            self.store,
            self._codec,
            tenant,
            retention,
            now=self._clock.now(),
            dry_run=dry_run,
            encryption=self.encryption,
        )

    def erase(self, tenant: str, threads: Iterable[str]) -> ErasureReport:
        """Delete threads, whatever their state, and their keys; which were there."""
        now = self._clock.now()
        return erase_threads(self.store, tenant, threads, now=now, encryption=self.encryption)

    def copy_to(
        self,
        target: CheckpointStore,
        tenant: str,
        *,
        threads: Iterable[str] | None = None,
        batch: int | None = None,
    ) -> CopyReport:
        """Copy a tenant's threads, or those named, byte for byte; see ``copy_threads``."""
        return copy_threads(self.store, target.store, tenant, threads=threads, batch=batch)

    def close(self) -> None:
        """Release what the store holds."""
        self.store.close()

    def _position(self, key: ThreadKey, seq: int | None = None) -> Position | None:
        chain = self.store.read(key, seq)
        return restore(chain, self._codec.for_thread(key)) if chain else None

    def _get(self, key: ThreadKey, seq: int | None) -> Checkpoint[State] | None:
        position = self._position(key, seq)
        if position is None or position.entry is None:
            return None
        return self._checkpoint(key, position.entry, position.values)

    def _checkpoint(self, key: ThreadKey, entry: Entry, values: State) -> Checkpoint[State]:
        run = self.store.run(key, entry.run_id)
        known = CheckpointMetadata.of(key, entry)
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        return Checkpoint(**fields, state=values, metadata=run.metadata if run else {})

    def _append(
        self, key: ThreadKey, parent: Position, made: Standing, head: int
    ) -> Checkpoint[State]:
        journal = Journal(
            record=self._record(key, parent.entry, bool(made.next or made.route)),
            codec=self._codec.for_thread(key, new=parent.entry is None),
            clock=self._clock,
            position=parent,
            head=head,
        )
        journal.restart()
        batch = journal.append(made, "update")
        self.store.commit(batch)
        return self._checkpoint(key, batch.entries[0], made.values)

    def _record(self, key: ThreadKey, parent: Entry | None, waiting: bool) -> RunRecord:
        now = self._clock.now()
        return RunRecord(
            run_id=self._clock.new_id(),
            key=key,
            graph="",
            fingerprint=parent.fingerprint if parent else "",
            mode="incremental",
            status="interrupted" if waiting else "completed",
            retry_count=0,
            previous_run_id=parent.run_id if parent else None,
            started_at=now,
            ended_at=None if waiting else now,
            metadata=describe_environment(),
        )


def open_store(
    url: str, *, types: Iterable[type] = (), encryption: Keyring | None = None
) -> CheckpointStore:
    """Open the store that a name or a URL means, to use it without a graph."""
    return CheckpointStore(find_store(url), types=types, encryption=encryption)
