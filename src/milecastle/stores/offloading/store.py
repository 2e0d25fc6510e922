"""The store around another one that has large values in object storage.

Large writes go to the object storage first; reads are restored. So
every store gets it with one logic, and the log inside has small entries.

Rules:

- An object is durable before the entry naming it is committed.
- Everything read is verified: a missing or changed object is ``Corrupted``, with its place.
- The objects of a tenant belong to one store: another one neither writes nor sweeps them.
- If the object storage cannot be reached, a batch with large values is refused with
  ``Unavailable`` and nothing of it is written; everything else works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec.structs

from milecastle.codec.envelope import frame_files, names_objects
from milecastle.errors import CodecError, Corrupted, InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.ports.buckets import Buckets
from milecastle.ports.files import FileStorage
from milecastle.ports.mailbox import (
    Debounce,
    Mailbox,
    Marks,
    NewRun,
    Sent,
    StoredMessage,
    each_unread,
    name_of,
)
from milecastle.ports.maintenance import Maintenance
from milecastle.ports.memory import MemoryItems
from milecastle.ports.notifying import Listen
from milecastle.ports.store import (
    Batch,
    Chain,
    CommitMany,
    Join,
    JoinedStore,
    Opened,
    PartOf,
    ReadMany,
    Store,
    Transact,
)
from milecastle.stores.offloading.files import StoredFile, TenantFiles, ensure, put_file
from milecastle.stores.offloading.objects import SharedObjects, object_path, pins_of
from milecastle.stores.offloading.ownership import Ownership
from milecastle.stores.offloading.payloads import (
    SEALED,
    ObjectReference,
    put_together,
    restore,
    sealed_references,
    take_apart,
    without_files,
)
from milecastle.stores.wrapping import ForwardingStore

PayloadRow = TypeVar("PayloadRow", Entry, TaskResult)

_PAGE = 256


@checks_keys
class OffloadingStore(ForwardingStore):
    """A store with large values in object storage. ``inner`` has the log."""

    def __init__(
        self, store: Store, objects: SharedObjects, ownership: Ownership | None = None
    ) -> None:
        super().__init__(store)
        self.inner = store
        self.objects = objects
        self._parts: dict[Store, OffloadingStore] = {}
        self.ownership = ownership or Ownership(store, objects.folder)

    @property
    def blocking(self) -> bool:
        return True

    def commit(self, batch: Batch) -> None:
        self.inner.commit(self.offloaded(batch))

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self.restored_chain(key, self.inner.read(key, seq))

    def open(self, key: ThreadKey) -> Opened | None:
        found = self.inner.open(key)
        return self.restored_opened(key, found) if found else None

    @property
    def writers(self) -> int:
        return self.inner.writers

    @property
    def commit_many(self) -> CommitMany | None:
        """Commit each batch, without those whose large values cannot be stored."""
        inner = self.inner.commit_many
        return None if inner is None else partial(self._commit_many, inner)

    def _commit_many(
        self, commit_many: CommitMany, batches: Sequence[Batch]
    ) -> Sequence[StoreError | None]:
        outcomes: list[StoreError | None] = [None] * len(batches)
        ready: dict[int, Batch] = {}
        began = monotonic()
        for at, batch in enumerate(batches):
            try:
                ready[at] = self.offloaded(batch)
            except StoreError as error:
                outcomes[at] = error
        try:
            self.check_patience(began)
        except StoreError as error:  # the first has waited for the others
            late = [
                at
                for at, batch in ready.items()
                if batch is not batches[at] or relies_on_files(batch)
            ]
            outcomes = [error if at in late else outcome for at, outcome in enumerate(outcomes)]
            ready = {at: batch for at, batch in ready.items() if at not in late}
        written = commit_many(list(ready.values())) if ready else ()
        for at, outcome in zip(ready, written, strict=True):
            outcomes[at] = outcome
        return outcomes

    @property
    def join(self) -> Join | None:
        inner = self.inner.join
        return None if inner is None else lambda given, key: _Joined(self, inner(given, key))

    @property
    def ring(self) -> Callable[[], None] | None:
        return self.inner.ring

    @property
    def part_of(self) -> PartOf | None:
        inner = self.inner.part_of
        return None if inner is None else partial(self._part_of, inner)

    def _part_of(self, part_of: PartOf, key: ThreadKey) -> OffloadingStore:
        part = part_of(key)
        return self._parts.get(part) or self._parts.setdefault(
            part, OffloadingStore(part, self.objects, self.ownership)
        )

    @property
    def read_many(self) -> ReadMany | None:
        """``open`` for each thread, if the inner store reads many."""
        read = self.inner.read_many
        if read is None:
            return None
        return lambda keys: {key: self.restored_opened(key, one) for key, one in read(keys).items()}

    @property
    def transact(self) -> Transact | None:
        """Store what is large in the batch of ``work`` before its transaction is committed."""
        inner = self.inner.transact
        if inner is None:
            return None
        return lambda key, work: inner(key, lambda connection: self.offloaded(work(connection)))

    @property
    def mailbox(self) -> Mailbox | None:
        """Messages to threads, with large values in objects, if the inner store has mailboxes."""
        inner = self.inner.mailbox
        return None if inner is None else _OffloadingMailbox(self, inner)

    @property
    def memory(self) -> MemoryItems | None:
        """Long-term memory of the inner store: its values are small."""
        return self.inner.memory

    @property
    def buckets(self) -> Buckets | None:
        """Buckets of the inner store."""
        return self.inner.buckets

    @property
    def maintenance(self) -> Maintenance | None:
        """That of the store inside; objects are verified when a thread is read."""
        return self.inner.maintenance

    @property
    def listen(self) -> Listen | None:
        """Call a function whenever a thread may have become due."""
        return self.inner.listen

    def restored_opened(self, key: ThreadKey, found: Opened) -> Opened:
        return Opened(self.restored_chain(key, found.chain) or found.chain, found.record)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self.restored_chain(key, self.inner.read_state(key, seq))

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        return self._restored(key, self.inner.results(key))

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        return self._restored(key, self.inner.entries(key, after=after, limit=limit))

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        began = monotonic()
        entries = self._offloaded_rows(key, rewritten)
        self.check_patience(began)
        return self.inner.prune(key, head=head, cut=cut, rewritten=entries)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        unshared = self._unshared(key)
        if not self.inner.delete(key, head=head, head_id=head_id):
            return False
        with suppress(Unavailable):  # the sweep finds what is left
            for name in unshared:
                self.objects.folder.remove(object_path(key.tenant, name))
        return True

    def _unshared(self, key: ThreadKey) -> set[str]:
        try:
            if next(self.objects.folder.list(pins_of(key)), None) is None:
                return set()
        except Unavailable:
            return set()
        return {name for _, payload in payloads_of(self.inner, key) for name in _sealed(payload)}

    @property
    def file_storage(self) -> FileStorage:
        return self

    def files(self, tenant: str, *, sealed: bool) -> TenantFiles:
        begin = partial(self.ownership.check, tenant)
        return TenantFiles(self.objects, tenant, sealed=sealed, begin=begin)

    def copy_file(self, tenant: str, digest: str, source: FileStorage) -> None:
        if not isinstance(source, OffloadingStore):
            raise InvalidRequest("files are copied between stores with object storage only")
        if not self.objects.known(tenant, digest):
            self.ownership.check(tenant)
            stored = StoredFile(source.objects, tenant, digest, f"file {digest} of the source")
            put_file(self.objects, tenant, stored.index, stored.chunk, f"file {digest}")

    def verify_file(self, tenant: str, digest: str, place: str) -> None:
        stored = StoredFile(self.objects, tenant, digest, place)
        for number in range(stored.index.count):
            stored.chunk(number)

    def offloaded(self, batch: Batch) -> Batch:
        """The batch with references in place of large values, already stored.

        The files it names are there, too.
        """
        began = monotonic()
        entries = self._offloaded_rows(batch.key, batch.entries)
        results = self._offloaded_rows(batch.key, batch.results)
        is_same = entries is batch.entries and results is batch.results
        if is_same and not relies_on_files(batch):
            return batch
        self.check_patience(began)
        return (
            batch
            if is_same
            else msgspec.structs.replace(batch, entries=tuple(entries), results=tuple(results))
        )

    def offloaded_message(self, key: ThreadKey, payload: bytes) -> bytes:
        began = monotonic()
        small = self._offloaded_payload(key, payload)
        if small is not payload or without_files(payload)[0]:
            self.check_patience(began)
        return small

    def _offloaded_payload(self, key: ThreadKey, payload: bytes) -> bytes:
        named, inside = without_files(payload)
        if named:
            self._begin(key)
        for digest in named:
            ensure(self.objects, key.tenant, digest, f"thread '{key.thread}', a new checkpoint")
        parts = take_apart(inside, self.objects.threshold)
        if parts is None:
            return payload
        self._begin(key)
        put = self.objects.put_unshared if parts.form == SEALED else self.objects.put
        small = put_together(parts, lambda value: put(key.tenant, value))
        return frame_files(named, small) if named else small

    def _begin(self, key: ThreadKey) -> None:
        self.ownership.check(key.tenant)
        self.objects.pin(key)

    def _offloaded_rows(self, key: ThreadKey, rows: Sequence[PayloadRow]) -> Sequence[PayloadRow]:
        payloads = [self._offloaded_payload(key, row.payload) for row in rows]
        if all(new is row.payload for new, row in zip(payloads, rows, strict=True)):
            return rows
        return [
            msgspec.structs.replace(row, payload=new)
            for new, row in zip(payloads, rows, strict=True)
        ]

    def check_patience(self, began: float) -> None:
        """Refuse to name objects that were seen so long ago the sweep may have judged them.

        ``began`` is when the first of them was looked for, in monotonic time.
        """
        if monotonic() - began > self.objects.patience:
            raise Unavailable(
                "storing large values took longer than "
                f"{self.objects.patience:g} seconds: nothing was written, try again"
            )

    def restored_chain(self, key: ThreadKey, chain: Chain | None) -> Chain | None:
        if chain is None:
            return None
        fetched: dict[str, bytes] = {}
        entries = self._restored(key, chain.entries, fetched)
        results = self._restored(key, chain.results, fetched)
        if entries is chain.entries and results is chain.results:
            return chain
        return Chain(tuple(entries), tuple(results))

    def restored_message(self, key: ThreadKey, waiting: StoredMessage) -> StoredMessage:
        if not names_objects(without_files(waiting.payload)[1]):
            return waiting
        place = f"thread '{key.thread}', {name_of(waiting)}"
        payload = self._restored_payload(key, waiting.payload, place, {})
        return msgspec.structs.replace(waiting, payload=payload)

    def _restored_payload(
        self, key: ThreadKey, payload: bytes, place: str, fetched: dict[str, bytes]
    ) -> bytes:
        def fetch(reference: ObjectReference) -> bytes:
            if reference.name not in fetched:
                fetched[reference.name] = self.objects.fetch(key.tenant, reference, place)
            return fetched[reference.name]

        try:
            named, inside = without_files(payload)
            whole = restore(inside, fetch)
            return frame_files(named, whole) if named else whole
        except CodecError as error:
            raise Corrupted(error.message, place=place) from None

    def _restored(
        self, key: ThreadKey, rows: Sequence[PayloadRow], fetched: dict[str, bytes] | None = None
    ) -> Sequence[PayloadRow]:
        if not any(map(_is_apart, rows)):
            return rows
        fetched = {} if fetched is None else fetched
        return [
            msgspec.structs.replace(
                row, payload=self._restored_payload(key, row.payload, _place(key, row), fetched)
            )
            if _is_apart(row)
            else row
            for row in rows
        ]


class _OffloadingMailbox:
    def __init__(self, store: OffloadingStore, inner: Mailbox) -> None:
        self._store = store
        self._inner = inner

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        run: NewRun | None = None,
        debounce: Debounce | None = None,
    ) -> Sent:
        small = self._store.offloaded_message(key, payload)
        return self._inner.send(key, topic, mark, small, graph, run, debounce)

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        found = self._inner.unread(key, topic=topic, after=after, limit=limit)
        return [self._store.restored_message(key, message) for message in found]

    def discard(self, key: ThreadKey, number: int) -> bool:
        return self._inner.discard(key, number)

    def marks(self, key: ThreadKey) -> Marks:
        return self._inner.marks(key)

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        began = monotonic()
        small = [
            msgspec.structs.replace(
                message, payload=self._store.offloaded_message(key, message.payload)
            )
            for message in messages
        ]
        if small:
            self._store.check_patience(began)
        self._inner.restore(key, small, marks)


def payloads_of(store: Store, key: ThreadKey) -> Iterator[tuple[str, bytes]]:
    """Every payload of a thread; messages first: one consumed meanwhile is in an entry then."""
    for message in each_unread(store.mailbox, key):
        yield name_of(message), message.payload
    page = store.entries(key, limit=_PAGE)
    while page:
        for entry in page:
            yield f"seq {entry.seq}", entry.payload
        page = store.entries(key, after=page[-1].seq, limit=_PAGE)
    for row in store.results(key):
        yield f"task '{row.task}'", row.payload


def relies_on_files(batch: Batch) -> bool:
    rows: list[Entry | TaskResult] = [*batch.entries, *batch.results]
    return any(without_files(row.payload)[0] for row in rows)


def _is_apart(row: Entry | TaskResult) -> bool:
    return names_objects(without_files(row.payload)[1])


def _sealed(payload: bytes) -> list[str]:
    with suppress(CodecError):
        return [reference.name for reference in sealed_references(payload)]
    return []


def _place(key: ThreadKey, row: Entry | TaskResult) -> str:
    task = f", task '{row.task}'" if isinstance(row, TaskResult) else ""
    return f"thread '{key.thread}', seq {row.seq}{task}"


class _Joined:
    """``JoinedStore`` with large values stored beforehand: the sweep removes unused ones."""

    def __init__(self, store: OffloadingStore, inner: JoinedStore) -> None:
        self._store = store
        self._inner = inner

    def commit(self, batch: Batch) -> None:
        self._inner.commit(self._store.offloaded(batch))

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        debounce: Debounce | None = None,
    ) -> Sent:
        small = self._store.offloaded_message(key, payload)
        return self._inner.send(key, topic, mark, small, graph, debounce)
