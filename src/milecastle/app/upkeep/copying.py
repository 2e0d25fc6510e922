"""Copying threads from one store to another: every entry byte for byte, and all its records.

Rules:

- All writes go through ``commit`` and its fence: nothing in the target is overwritten, and a
  concurrent writer wins or loses like any other.
- A copy continues where an earlier one stopped. The target's head must be an entry of the source.
- Entries come first, records last: a thread is listed in the target once its history is complete.
- References to objects are never copied: a source whose large values are in object storage must be
  opened with it. Files are copied before the entries naming them, encrypted or not as they are.
- Messages and used marks are read while the head stays the same, so none is unread in the copy that
  a copied entry consumed.
- A pruned log starts above seq 1, and a store does not let a writer start there. So *fillers*,
  entries without a payload, take the place of dropped ones, and are pruned at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import msgspec.structs

from milecastle.app.threads.children import children_of, every_thread
from milecastle.app.threads.tagging import require_tags, tags_at
from milecastle.codec.envelope import (
    names_archive,
    names_files,
    names_objects,
    unframe,
    unframe_files,
)
from milecastle.errors import Conflict, InvalidRequest, NoObjects, ThreadNotFound
from milecastle.model.checkpoint import SNAPSHOT, Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.model.tags import TagChange
from milecastle.ports.claims import ClaimStore
from milecastle.ports.fencing import conflict
from milecastle.ports.mailbox import INPUTS, Marks, StoredMessage, each_unread
from milecastle.ports.store import Batch, Store, offers

_PAGE = 256
_PAGE_BYTES = 16 << 20
_THREADS = 1000
_FILLER = "dropped-"


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts: threads checked, threads changed, checkpoints copied."""

    threads: int
    changed: int
    checkpoints: int


def copy_threads(
    source: Store,
    target: Store,
    tenant: str,
    *,
    threads: Iterable[str] | None = None,
    batch: int | None = None,
) -> CopyReport:
    """Copy a tenant's threads, or those named, to another store; histories are byte-equal.

    A second copy adds new entries, and drops those the source dropped. ``batch`` is the number of
    checkpoints per commit: by default 256, and 1 for files, so each is one line.

    Raises:
        Conflict: the target has something else under a thread's name.
        InvalidRequest: a named thread is not in the source.
    """
    if source is target:
        raise InvalidRequest("a store cannot be copied to itself")
    size = batch
    if size is None:
        from milecastle.stores.jsonl import JsonlStore

        size = 1 if isinstance(target, JsonlStore) else _PAGE
    if size < 1:
        raise InvalidRequest(f"batch must be at least 1, not {size}")
    looked_at = changed = checkpoints = 0
    for key in _keys(source, tenant, threads):
        copy = _Copy(source, target, key, size)
        copy.run()
        looked_at += 1
        changed += copy.commits > 0
        checkpoints += copy.checkpoints
    return CopyReport(threads=looked_at, changed=changed, checkpoints=checkpoints)


class _Copy:
    def __init__(self, source: Store, target: Store, key: ThreadKey, batch: int) -> None:
        self._source = source
        self._target = target
        self._key = key
        self._batch = batch
        self._fingerprints: set[str] = set()
        self.commits = 0
        self.checkpoints = 0

    def run(self) -> None:
        while True:
            head = self._source.head(self._key)
            if head:
                self._copy_log(head, self._source.results(self._key))
            elif there := self._target.head(self._key):
                raise self._conflict(1, there.seq)
            # before the records: a waiting input has one
            unread = list(each_unread(self._source.mailbox, self._key))
            mailbox = self._source.mailbox
            marks = mailbox.marks(self._key) if mailbox else Marks()
            records = self._source.runs(self._key)
            newest = self._source.head(self._key)
            if _id_of(newest) == _id_of(head):
                gone = {one.number for one in marks.consumed}  # also since ``unread`` was read
                unread = [message for message in unread if message.number not in gone]
                is_there = self._target.thread(self._key) is not None
                if is_there:  # the index row is written after what it waits for
                    self._copy_messages(unread, marks)
                self._copy_records(head.seq if head else 0, records[::-1])
                if not is_there:
                    self._copy_messages(unread, marks)
                return

    def _copy_messages(self, unread: Sequence[StoredMessage], marks: Marks) -> None:
        """Copy messages under their numbers, which the index row names, and the used marks."""
        target = self._target.mailbox
        if target is None:
            if unread:
                raise InvalidRequest(
                    f"thread '{self._key.thread}' has {len(unread)} unread messages or inputs: "
                    "the target has no mailboxes, and cannot keep them; let its run receive them, "
                    "or discard them"
                )
            return
        inputs = sum(message.topic == INPUTS for message in unread)
        if inputs and not offers(self._target, ClaimStore):
            raise InvalidRequest(
                f"thread '{self._key.thread}' has {inputs} inputs that wait for workers: the "
                "target is no store that workers share, and cannot keep them"
            )
        known = {message.number: message.mark for message in each_unread(target, self._key)}
        ours = {message.number: message.mark for message in unread}
        ours |= {one.number: one.mark for one in marks.consumed}
        if any(ours.get(number, mark) != mark for number, mark in known.items()):
            head = self._target.head(self._key)
            raise self._conflict(head.seq + 1 if head else 1, head.seq if head else 0)
        lacking = [message for message in unread if message.number not in known]
        # the source was pruned since it consumed these
        forgotten = [number for number in known if number <= marks.last and number not in ours]
        if not (lacking or forgotten) and target.marks(self._key) == marks:
            return
        self._copy_files(lacking)
        for start in range(0, len(lacking), _PAGE):
            target.restore(self._key, lacking[start : start + _PAGE])
        target.restore(self._key, (), marks)
        for number in forgotten:
            target.discard(self._key, number)
        self.commits += 1

    def _copy_log(self, head: Entry, results: Sequence[TaskResult]) -> None:
        oldest = self._entry_above(0)
        there = self._target.read(self._key)
        at = there.entries[-1] if there else None
        if there and at:
            self._check(at, head, oldest)
            here = [r for r in results if r.seq == at.seq and r not in there.results]
            if here:
                self._commit(Batch(key=self._key, head=at.seq, results=tuple(here)))
        if at is None or at.seq < oldest.seq:
            self._fill(at.seq if at else 0, oldest)
            at = None
        for page in self._pages(at, oldest, head.seq):
            self._append(page, results)
        first = self._entry_above(0).seq  # read again: it may have been pruned meanwhile
        if any(True for _ in self._target.history(self._key, limit=1, before=first)):
            self._drop_below(first, head.seq)

    def _check(self, there: Entry, head: Entry, oldest: Entry) -> None:
        if there.seq < oldest.seq:
            known = there.id == f"{_FILLER}{there.seq}"
        else:
            known = there.seq <= head.seq and _are_same(there, self._entry_above(there.seq - 1))
        if not known:
            raise self._conflict(head.seq + 1, there.seq)

    def _entry_above(self, seq: int) -> Entry:
        for entry in self._source.entries(self._key, after=seq, limit=1):
            return entry
        raise _changed(self._key)

    def _conflict(self, expected: int, head: int) -> Conflict:
        error = conflict(self._key, expected, head)
        error.add_note(
            "the target has a different history under this name: copy to another store, or delete "
            "that thread first"
        )
        return error

    def _fill(self, at: int, oldest: Entry) -> None:
        while at < oldest.seq - 1:
            last = min(at + 4 * _PAGE, oldest.seq - 1)
            entries = tuple(_filler(oldest, seq) for seq in range(at + 1, last + 1))
            self._commit(Batch(key=self._key, head=at, entries=entries))
            at = last

    def _pages(self, at: Entry | None, oldest: Entry, last: int) -> Iterator[Sequence[Entry]]:
        """Entries after ``at``, or from the oldest on, in pages.

        Pages are shorter if entries are large.
        A page starts with the last entry of the previous one. If that entry has changed, the thread
        was deleted and created again meanwhile, and the two are not mixed.
        """
        known, done, size = at or oldest, at.seq if at else oldest.seq - 1, 16
        while done < last:
            again = done + 1 - known.seq
            limit = again + min(size, last - done)
            found = self._source.entries(self._key, after=known.seq - 1, limit=limit)
            if len(found) <= again or not _are_same(known, found[0]):
                raise _changed(self._key)
            page = found[again:]
            yield page
            known, done = page[-1], page[-1].seq
            weight = sum(len(entry.payload) for entry in page)
            size = max(1, size // 2) if weight > _PAGE_BYTES else min(_PAGE, size * 2)

    def _append(self, page: Sequence[Entry], results: Sequence[TaskResult]) -> None:
        with_results = {result.seq for result in results}
        start = 0
        for place, entry in enumerate(page, 1):
            if (
                place == len(page)
                or place - start == self._batch
                or entry.seq in with_results
                or page[place].fingerprint != entry.fingerprint
            ):
                self._commit(
                    Batch(
                        key=self._key,
                        head=page[start].seq - 1,
                        entries=tuple(page[start:place]),
                        results=tuple(result for result in results if result.seq == entry.seq),
                        manifest=self._manifest(entry.fingerprint),
                    )
                )
                self.checkpoints += place - start
                start = place

    def _drop_below(self, first: int, head: int) -> None:
        count = head + 1 - first
        ours = self._source.history(self._key, limit=count, before=head + 1)
        theirs = self._target.history(self._key, limit=count, before=head + 1)
        rewritten = [
            self._entry_above(entry.seq - 1)
            for entry, there in zip(ours, theirs, strict=False)
            if entry.kind != there.kind
        ]
        self._copy_files(rewritten)
        self._target.prune(self._key, head=head, cut=first, rewritten=rewritten[::-1])
        self.commits += 1

    def _copy_records(self, head: int, records: Sequence[RunRecord]) -> None:
        """Write run records differing in the target, oldest first, with failures.

        Stores list runs in the order in which they were recorded. The thread's index line comes
        last.
        """
        waiting: list[RunRecord] = []
        for run in records:
            manifest = self._manifest(run.fingerprint)
            if manifest:
                self._commit(Batch(key=self._key, head=head, manifest=manifest))
            if self._target.run(self._key, run.run_id) == run:
                continue
            failure = self._source.failure(self._key, run.run_id)
            waiting.append(run)
            if failure is not None or len(waiting) == _PAGE:
                self._commit(Batch(key=self._key, head=head, runs=tuple(waiting), failure=failure))
                waiting = []
        info = self._source.thread(self._key)
        if waiting or info != self._target.thread(self._key):
            self._commit(Batch(key=self._key, head=head, runs=tuple(waiting), thread=info))
        self._copy_tags(head)

    def _copy_tags(self, head: int) -> None:
        ours, theirs = (tags_at(store, self._key) for store in (self._source, self._target))
        if ours != theirs:
            require_tags(self._target)
            lacking, left = set(ours) - set(theirs), set(theirs) - set(ours)
            change = TagChange(tuple(sorted(lacking)), tuple(sorted(left)))
            self._commit(Batch(key=self._key, head=head, tags=change))

    def _manifest(self, fingerprint: str) -> tuple[str, bytes] | None:
        if fingerprint in self._fingerprints:
            return None
        self._fingerprints.add(fingerprint)
        found = self._source.manifest(self._key, fingerprint)
        if found is None or self._target.manifest(self._key, fingerprint) is not None:
            return None
        return fingerprint, found

    def _commit(self, batch: Batch) -> None:
        self._copy_files((*batch.entries, *batch.results))
        self._target.commit(batch)
        self.commits += 1

    def _copy_files(self, rows: Iterable[Entry | TaskResult | StoredMessage]) -> None:
        for row in rows:
            digests, payload = (
                unframe_files(row.payload) if names_files(row.payload) else ((), row.payload)
            )
            if names_objects(payload) or names_archive(payload):
                unframe(payload)  # refuses it
            for digest in digests:
                source, target = self._source.file_storage, self._target.file_storage
                if source is None or target is None:
                    raise NoObjects(
                        f"thread '{self._key.thread}' names a file in object storage: open both "
                        "stores with objects="
                    )
                target.copy_file(self._key.tenant, digest, source)


def _keys(source: Store, tenant: str, threads: Iterable[str] | None) -> Iterator[ThreadKey]:
    if threads is None:
        yield from (info.key for info in every_thread(source, tenant, page=_THREADS))
        return
    for thread in threads:
        key = ThreadKey(tenant, thread)
        if source.head(key) is None and not source.runs(key, limit=1):
            raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
        yield key
        yield from (info.key for info in children_of(source, key))


def _changed(key: ThreadKey) -> InvalidRequest:
    return InvalidRequest(f"thread '{key.thread}' changed while it was being copied: copy it again")


def _id_of(entry: Entry | None) -> str | None:
    return entry.id if entry else None


def _are_same(there: Entry, here: Entry) -> bool:
    if there.kind == here.kind:
        return there == here
    return _bare(there) == _bare(here)


def _bare(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, kind=SNAPSHOT, base_seq=0, roll_seq=0, payload=b"")


def _filler(like: Entry, seq: int) -> Entry:
    return msgspec.structs.replace(
        like,
        seq=seq,
        id=f"{_FILLER}{seq}",
        parent_id=None,
        kind=SNAPSHOT,
        base_seq=seq,
        roll_seq=seq,
        payload=b"",
    )
