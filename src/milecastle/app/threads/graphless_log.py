"""A thread's log without a graph: states are plain dicts, addressed by ``ThreadKey``.

It writes the same log as apps. ``CheckpointStore`` is this with upkeep and encryption; the
keyring stores its keys by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from milecastle.app.clock import SystemClock
from milecastle.app.environment import describe_environment
from milecastle.app.threads.archived import refuse_archived, whole_history
from milecastle.app.threads.children import delete_with_children
from milecastle.app.threads.closing import close_children, supersede_running
from milecastle.app.threads.pruning import prune_thread
from milecastle.codec.deltas import LogCodec, Operations, operations_between
from milecastle.codec.envelope import Sealers
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.journal import Journal, Standing
from milecastle.engine.position import Position, restore
from milecastle.engine.reserved_channels import NAMES, branched
from milecastle.errors import Conflict, InvalidRequest
from milecastle.graph.schema import recorded_misfits
from milecastle.model.checkpoint import Checkpoint, CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey, checks_keys, refuse_own, refuse_reserved
from milecastle.model.manifest import Manifest
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.clock import Clock
from milecastle.ports.store import Store
from milecastle.support.printable import quoted

State = dict[str, Any]


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    values: State
    step: int
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    route: tuple[str, ...] = ()
    reserved: State = {}


@checks_keys
class GraphlessLog:
    """Checkpoints in a store, written and read one by one."""

    def __init__(
        self,
        store: Store,
        *,
        types: Iterable[type] = (),
        clock: Clock | None = None,
        sealers: Sealers | None = None,
    ) -> None:
        self.store = store
        self._clock = clock or SystemClock()
        registry = TypeRegistry.for_annotations(types, files=store.file_storage is not None)
        self._codec = LogCodec(ValueCodec(registry), sealers=sealers)

    def put(
        self,
        key: ThreadKey,
        state: Mapping[str, Any],
        *,
        next: Sequence[str] = (),
        nodes: Sequence[str] = (),
        step: int | None = None,
        head: int | None = None,
        delta: bool = False,
    ) -> Checkpoint[State]:
        """Append a checkpoint. ``head`` is the seq it must follow (0 for a new thread).

        Without ``head`` it follows the current head; with it, a different head raises ``Conflict``.
        With ``delta`` only differences from the state before are stored: for a list, the items
        after the first difference.
        """
        refuse_own(key.thread)
        return self.__put__(key, state, next, nodes, step, head, delta=delta)

    def __put__(
        self,
        key: ThreadKey,
        state: Mapping[str, Any],
        next: Sequence[str] = (),
        nodes: Sequence[str] = (),
        step: int | None = None,
        head: int | None = None,
        *,
        delta: bool = False,
    ) -> Checkpoint[State]:
        """``put`` under any name, for integrations: not for users."""
        found = self._read(key)
        position = found[1] if found else Position(values={})
        if head is not None and head != position.seq:
            raise Conflict(
                tenant=key.tenant, thread=key.thread, expected=head + 1, head=position.seq
            )
        made = _Draft(
            values=_checked(state),
            step=position.step + 1 if step is None else step,
            nodes=tuple(nodes),
            next=tuple(next),
        )
        codec = found[0] if found else self._codec.for_thread(key, new=True)
        changes = None
        if delta and not position.reserved:
            changes = operations_between(position.values, made.values, codec)
        return self._append(key, codec, position, made, position.entry, changes)

    def get_latest(self, key: ThreadKey) -> Checkpoint[State] | None:
        """The thread's newest checkpoint, or ``None``."""
        return self._get(key, None)

    def get_by_id(self, key: ThreadKey, checkpoint_id: str) -> Checkpoint[State] | None:
        """A checkpoint in this thread, or ``None``."""
        seq = self.store.locate(key, checkpoint_id)
        if seq is None:
            refuse_archived(self.store, key)
        return None if seq is None else self._get(key, seq)

    def list_history(
        self, key: ThreadKey, limit: int | None = None
    ) -> Iterator[CheckpointMetadata]:
        """The thread's checkpoints, newest first. No state is decoded."""
        self._refuse_reserved(key.tenant)
        for entry in whole_history(self.store, key, limit=limit):
            yield CheckpointMetadata.of(key, entry)

    def update_state(self, key: ThreadKey, parent_id: str, *, new_state: Mapping[str, Any]) -> str:
        """Append a checkpoint branching off the parent with a new state; return its id.

        ``new_state`` replaces the parent's state: there are no reducers here, unlike in
        ``App.update_state``. The next nodes are the parent's. A missing parent raises
        ``InvalidRequest``.
        """
        refuse_own(key.thread)
        head = self.store.head(key)
        seq = self.store.locate(key, parent_id)
        found = None if seq is None else self._read(key, seq)
        if head is None or found is None:
            raise InvalidRequest(f"thread '{key.thread}' has no checkpoint with id {parent_id}")
        codec, parent = found
        values, reserved = _checked(new_state), branched(parent.reserved)
        made = Position(values=values, entry=parent.entry, reserved=reserved)
        return self._append(key, codec, parent, made, head).id

    def list_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads by thread id, each with the status at its log's head."""
        self._refuse_reserved(tenant)
        return self.store.threads(tenant, status=status, limit=limit, after=after)

    def delete_thread(self, key: ThreadKey) -> bool:
        """Remove a thread and its subgraphs' threads; return whether it existed."""
        self._refuse_reserved(key.tenant)
        return delete_with_children(self.store, key)

    def prune(self, key: ThreadKey, *, keep_last: int) -> int:
        """Delete the oldest checkpoints, keeping at least ``keep_last``.

        Return how many were deleted.
        """
        self._refuse_reserved(key.tenant)
        return prune_thread(self.store, self._codec, key, keep_last=keep_last)

    def close(self) -> None:
        self.store.close()

    def _refuse_reserved(self, tenant: str) -> None:
        refuse_reserved(tenant)

    def _read(self, key: ThreadKey, seq: int | None = None) -> tuple[LogCodec, Position] | None:
        """A thread's reader and writer, and one checkpoint.

        ``None`` if it has none.
        """
        self._refuse_reserved(key.tenant)
        chain = self.store.read(key, seq)
        if chain is None:
            return None
        codec = self._codec.for_thread(key)
        return codec, restore(chain, codec)

    def _get(self, key: ThreadKey, seq: int | None) -> Checkpoint[State] | None:
        found = self._read(key, seq)
        if found is None or found[1].entry is None:
            return None
        return self._checkpoint(key, found[1].entry, found[1].values)

    def _checkpoint(self, key: ThreadKey, entry: Entry, values: State) -> Checkpoint[State]:
        run = self.store.run(key, entry.run_id)
        known = CheckpointMetadata.of(key, entry)
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        return Checkpoint(**fields, state=values, metadata=run.metadata if run else {})

    def _refuse_misfits(self, key: ThreadKey, parent: Entry | None, made: Standing) -> None:
        fingerprint = parent.fingerprint if parent else ""
        stored = self.store.manifest(key, fingerprint) if fingerprint else None
        if stored is None:
            return
        manifest = Manifest.from_bytes(stored)
        nodes = {node.name for node in manifest.nodes}
        unknown = [name for name in made.next if name not in nodes]
        if unknown:
            raise InvalidRequest(
                f"the graph of thread '{key.thread}' has no node {quoted(*unknown)} to run next; "
                f"it has {', '.join(map(repr, sorted(nodes)))}"
            )
        reasons = recorded_misfits(manifest, made.values)
        if reasons:
            raise InvalidRequest(
                f"the state does not match the graph of thread '{key.thread}': {'; '.join(reasons)}"
            )

    def _append(
        self,
        key: ThreadKey,
        codec: LogCodec,
        parent: Position,
        made: Standing,
        head: Entry | None,
        changes: Operations | None = None,
    ) -> Checkpoint[State]:
        """Append to a thread whose head, read no later than ``parent``, is ``head``.

        Without ``changes`` to the parent's state, the whole state is stored.
        """
        self._refuse_misfits(key, parent.entry, made)
        journal = Journal(
            record=self._record(key, parent.entry, bool(made.next or made.route)),
            codec=codec,
            clock=self._clock,
            position=parent,
            head=head.seq if head else 0,
            head_id=head.id if head else None,
            rollup_after=self.store.rollup_after,
        )
        if changes is None:
            journal.restart()
        else:
            journal.note(changes)
        if head is not None:
            supersede_running(self.store, codec, journal, head)
            close_children(self.store, self._codec, self._clock, key)
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


def _checked(state: Mapping[Any, Any]) -> State:
    if not isinstance(cast("object", state), Mapping):
        raise InvalidRequest(f"a state is a dict, not {type(state).__name__}")
    for name in state:
        if not isinstance(name, str):
            raise InvalidRequest(f"the keys of a state are str, not {type(name).__name__}")
        if name in NAMES:
            raise InvalidRequest(f"'{name}' is a name that a state cannot have: it is reserved")
    return dict(state)
