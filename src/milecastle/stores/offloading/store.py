"""The store around another one that has large values in object storage.

Large writes go to the object storage first; reads are restored. So
every store gets it with one logic, and the log inside has small entries.

Rules:

- An object is durable before the entry naming it is committed.
- Everything read is verified: a missing or changed object is ``Corrupted``, with its place.
- A tenant's objects belong to one store: another one neither writes nor sweeps them.
- If the object storage cannot be reached, a batch with large values is refused with
  ``Unavailable`` and not written at all; everything else works.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from time import monotonic

import msgspec.structs

from milecastle.codec.envelope import frame_files, names_archive, names_objects
from milecastle.errors import CodecError, Corrupted, InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.ports.buckets import Buckets
from milecastle.ports.cells import Cells
from milecastle.ports.fencing import check_oldest
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
from milecastle.stores.offloading.archive import ObjectArchive, spans_in
from milecastle.stores.offloading.files import StoredFile, TenantFiles, put_file
from milecastle.stores.offloading.objects import SharedObjects, object_path, pins_of
from milecastle.stores.offloading.payloads import (
    ObjectReference,
    restore,
    sealed_references,
    without_archive,
    without_files,
)
from milecastle.stores.offloading.prefix_owner import Ownership
from milecastle.stores.offloading.segments import SegmentSpan
from milecastle.stores.offloading.writing import PayloadRow, PayloadWriter
from milecastle.stores.wrapping import ForwardingStore

_PAGE = 256


@checks_keys
class OffloadingStore(ForwardingStore):
    def __init__(
        self, store: Store, objects: SharedObjects, ownership: Ownership | None = None
    ) -> None:
        super().__init__(store)
        self.inner = store
        self.objects = objects
        self._parts: dict[Store, OffloadingStore] = {}
        self.ownership = ownership or Ownership(store, objects.folder)
        self.writer = PayloadWriter(objects, self.ownership)

    @property
    def blocking(self) -> bool:
        return True

    def commit(self, batch: Batch) -> None:
        self.inner.commit(self.offloaded(batch))

    @property
    def archive(self) -> ObjectArchive:
        return ObjectArchive(self.inner, self.writer)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self.restored_chain(key, self._found(self.inner.read, key, seq))

    def _found(
        self,
        read: Callable[[ThreadKey, int | None], Chain | None],
        key: ThreadKey,
        seq: int | None,
    ) -> Chain | None:
        """A chain of the store inside or of its archive, between which it may be moved."""
        chain = read(key, seq)
        while chain is None and seq is not None and seq > 0:
            row = self.archive.first_from(key, seq + 1)
            with self._unless_moved(key, row, seq + 1):
                chain = self.archive.chain(key, row, seq) if row else None
            chain = chain or read(key, seq)
            if self.archive.first_from(key, seq + 1) == row:
                break
        return chain

    @contextmanager
    def _unless_moved(self, key: ThreadKey, row: Entry | None, seq: int) -> Generator[None]:
        """Pass over damage if the row above a seq changed: what it named may be elsewhere."""
        try:
            yield
        except Corrupted:
            if self.archive.first_from(key, seq) == row:
                raise

    def open(self, key: ThreadKey) -> Opened | None:
        found = self.inner.open(key)
        return self.restored_opened(key, found) if found else None

    @property
    def writers(self) -> int:
        return self.inner.writers

    @property
    def commit_many(self) -> CommitMany | None:
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
            self.writer.check_patience(began)
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
        read = self.inner.read_many
        if read is None:
            return None
        return lambda keys: {key: self.restored_opened(key, one) for key, one in read(keys).items()}

    @property
    def transact(self) -> Transact | None:
        inner = self.inner.transact
        if inner is None:
            return None
        return lambda key, work: inner(key, lambda connection: self.offloaded(work(connection)))

    @property
    def mailbox(self) -> Mailbox | None:
        inner = self.inner.mailbox
        return None if inner is None else _OffloadingMailbox(self, inner)

    @property
    def memory(self) -> MemoryItems | None:
        return self.inner.memory

    @property
    def buckets(self) -> Buckets | None:
        return self.inner.buckets

    @property
    def cells(self) -> Cells | None:
        return self.inner.cells

    @property
    def maintenance(self) -> Maintenance | None:
        """The inner store's; objects are verified when a thread is read."""
        return self.inner.maintenance

    @property
    def listen(self) -> Listen | None:
        return self.inner.listen

    def restored_opened(self, key: ThreadKey, found: Opened) -> Opened:
        return Opened(self.restored_chain(key, found.chain) or found.chain, found.record)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self.restored_chain(key, self._found(self.inner.read_state, key, seq))

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        found = self.inner.locate(key, checkpoint_id)
        while found is None:
            row = self.archive.oldest(key)
            if row is not None:
                with self._unless_moved(key, row, 0):
                    archived = self.archive.newest_first(key, row, row.seq)
                    found = next((one.seq for one in archived if one.id == checkpoint_id), None)
            if found is None:
                found = self.inner.locate(key, checkpoint_id)
            if self.archive.oldest(key) == row:
                break
        return found

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        last, left = before, limit
        for entry in self.inner.history(key, limit=limit, before=before):
            yield entry
            last, left = entry.seq, None if left is None else left - 1
        while last is not None and last > 1 and (left is None or left > 0):
            row, began = self.archive.first_from(key, last), last
            with self._unless_moved(key, row, last):
                for entry in self._history_below(key, row, last, left):
                    yield entry
                    last, left = entry.seq, None if left is None else left - 1
            if last == began and self.archive.first_from(key, last) == row:
                break

    def _history_below(
        self, key: ThreadKey, row: Entry | None, last: int, left: int | None
    ) -> Iterator[Entry]:
        """Entries below the last one that was read: archived, or moved back since."""
        if row is not None and names_archive(row.payload):
            yield from islice(self.archive.newest_first(key, row, last), left)
        else:
            yield from self.inner.history(key, limit=left, before=last)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        return self._restored(key, self.inner.results(key))

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        while True:
            found = self.inner.entries(key, after=after, limit=limit)
            row = next((entry for entry in found if names_archive(entry.payload)), None)
            if row is None:
                return self._restored(key, found)
            with self._unless_moved(key, row, row.seq):
                return self._restored(key, [*islice(self._whole(key, after, found), limit)])

    def _whole(self, key: ThreadKey, after: int, rows: Sequence[Entry]) -> Iterator[Entry]:
        """Rows, each after what is archived below it."""
        for row in rows:
            if names_archive(row.payload) and row.seq > after + 1:
                yield from self.archive.entries(key, row, after)
            yield row
            after = row.seq

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        began = monotonic()
        entries = self.writer.rows(key, rewritten)
        self.writer.check_patience(began)
        first = self.archive.oldest(key) if oldest is None else self._stored(key, head, oldest)
        forgotten = 0
        if first is not None and not archived:
            forgotten = self.archive.prune(key, first, head=head, cut=cut, rewritten=rewritten)
            if forgotten and cut <= first.seq:
                return forgotten
        dropped = self.inner.prune(
            key, head=head, cut=cut, rewritten=entries, oldest=first, archived=archived
        )
        return dropped + forgotten

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        began = monotonic()
        rows = self.writer.rows(key, entries)
        self.writer.check_patience(began)
        stored = self._stored(key, head, oldest)
        self.inner.put_back(key, head=head, oldest=stored, entries=rows)

    def _stored(self, key: ThreadKey, head: int, oldest: Entry) -> Entry:
        """The oldest entry as the store inside has it."""
        found = self.archive.oldest(key)
        shown = self._restored(key, [found])[0] if found else None
        check_oldest(key, head, oldest, shown)
        return found or oldest

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
        found = [payload for _, payload in payloads_of(self.inner, key)]
        segments = (span.name for payload in found for span in _spans(payload))
        return {*segments, *(name for payload in found for name in _sealed(payload))}

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
        entries = self.writer.rows(batch.key, batch.entries)
        results = self.writer.rows(batch.key, batch.results)
        is_same = entries is batch.entries and results is batch.results
        if is_same and not relies_on_files(batch):
            return batch
        self.writer.check_patience(began)
        return (
            batch
            if is_same
            else msgspec.structs.replace(batch, entries=tuple(entries), results=tuple(results))
        )

    def offloaded_message(self, key: ThreadKey, payload: bytes) -> bytes:
        began = monotonic()
        small = self.writer.payload(key, payload)
        if small is not payload or without_files(payload)[0]:
            self.writer.check_patience(began)
        return small

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
            named, inside = without_files(without_archive(payload))
            whole = restore(inside, fetch) if names_objects(inside) else inside
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
            self._store.writer.check_patience(began)
        self._inner.restore(key, small, marks)


def payloads_of(store: Store, key: ThreadKey) -> Iterator[tuple[str, bytes]]:
    """A thread's payloads; messages first: one consumed meanwhile is in an entry then."""
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
    return names_archive(row.payload) or names_objects(without_files(row.payload)[1])


def _spans(payload: bytes) -> Sequence[SegmentSpan]:
    with suppress(CodecError):
        return spans_in(payload)[0]
    return ()


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
