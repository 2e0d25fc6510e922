"""The file store: a folder that is the workspace, with one readable log per thread.

::

    threads/<tenant>/<thread>.jsonl   the logs; everything that a store keeps is in them
    runs/<run-id>/run.json            the same facts once more, for people: see ``runs``
    runs/<run-id>/failure.json

Rules:

- One line is one commit (``shapes``), chained to the line before (``lines``). It is written by
  one write, and synced, under the file's lock (``log``), before ``commit`` returns.
- Payloads are readable JSON wherever the very same bytes can be made of it again (``payloads``).
- A torn last line and damage are told apart, and both are ``Corrupted``; ``repair`` mends the
  first. A list of threads warns of either (``listing``).
- File names follow ``names``, and whose file it is stands in its first line.
- Deleting leaves the header of an empty log, and puts it there last: as long as anything else
  is left of a thread, its log says so. Pruning puts a shorter file in place of the log.
- At most ``open_files`` logs are open; the one that was not used for longest is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import Final

from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import Entry
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch, Chain
from milecastle.stores.jsonl import files, reading
from milecastle.stores.jsonl.batches import check_fence, conflict, shape_of
from milecastle.stores.jsonl.index import Index
from milecastle.stores.jsonl.listing import SUFFIX, info_of, keys_in
from milecastle.stores.jsonl.log import Log
from milecastle.stores.jsonl.names import file_name
from milecastle.stores.jsonl.pool import LogPool, unavailable
from milecastle.stores.jsonl.repair import copies_of, repair_file
from milecastle.stores.jsonl.rewriting import drop_all, drop_below
from milecastle.stores.jsonl.runs import RunFolder
from milecastle.stores.jsonl.shapes import entry_of

__all__ = ["JsonlStore"]

_PAGE: Final = 128


class JsonlStore:
    """Keeps logs as files in ``root``, which is made by the first write.

    ``open_files`` bounds how many logs are open at once; ``lock_timeout`` is how many seconds a
    call waits for another process.
    """

    blocking = True
    rollup_after = 128

    def __init__(
        self, root: str | Path, *, open_files: int = 128, lock_timeout: float = 10.0
    ) -> None:
        self._root = Path(root).absolute()
        self._timeout = lock_timeout
        self._runs = RunFolder(self._root)
        self._pool = LogPool(self.path_of, open_files=open_files, timeout=lock_timeout)

    @property
    def root(self) -> Path:
        """The workspace."""
        return self._root

    def path_of(self, key: ThreadKey) -> Path:
        """The file of a thread, whether it is there or not."""
        folder = self._root / "threads" / file_name(key.tenant)
        return folder / (file_name(key.thread) + SUFFIX)

    # -- writing

    def commit(self, batch: Batch) -> None:
        """Append the batch, durably, or raise ``Conflict`` and change nothing."""
        log = self._pool.enter(batch.key)
        try:
            if log.poisoned:
                log.refuse_if_poisoned()
            if not log.take():
                self._begin(log, batch)
            try:
                check_fence(batch, log.index)
                commit = shape_of(batch, log.index)
                if commit is not None:
                    log.append(commit)
                    if commit.runs or commit.failures:
                        self._project(batch)
            finally:
                log.give_back()
        except OSError as error:
            unavailable(log.path, error)
        except UnicodeEncodeError:
            raise InvalidRequest("text with lone surrogates cannot be stored") from None
        finally:
            log.guard.release()

    def _begin(self, log: Log, batch: Batch) -> None:
        """Make the thread's file, unless the batch cannot be a thread's first."""
        check_fence(batch, Index())
        files.make_root(self._root)
        for folder in (log.path.parent.parent, log.path.parent):
            files.make_folder(folder)
        log.take(create=True)

    def _project(self, batch: Batch) -> None:
        with suppress(OSError):  # the commit stands; `write_runs` makes these anew
            for run in batch.runs:
                self._runs.write(run)
            if batch.failure is not None:
                self._runs.write_failure(batch.key, batch.failure)

    # -- reading

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        with self._pool.reading(key) as log:
            head = log.index.head
            entry = reading.entry_at(log, head if seq is None else seq)
            if entry is None:
                return None
            results = reading.results_of(log) if entry.seq == head else ()
            return Chain(reading.chain_of(log, entry), results)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``."""
        with self._pool.reading(key) as log:
            for seq in log.index.candidates(checkpoint_id):
                entry = reading.entry_at(log, seq, with_payload=False)
                if entry is not None and entry.id == checkpoint_id:
                    return seq
            return None

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads; read in pages."""
        self._pool.check_open()
        listed: str | None = None
        left = limit
        while left is None or left > 0:
            wanted = _PAGE if left is None else min(left, _PAGE)
            with self._pool.reading(key) as log:
                header = log.index.header
                if header is None or listed not in (None, header.log):
                    return  # deleted meanwhile
                listed = header.log
                page = list(reading.page_of(log, wanted, before))
            yield from page
            if len(page) < wanted:
                return
            before = page[-1].seq
            left = None if left is None else left - wanted

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads."""
        with self._pool.reading(key) as log:
            return reading.entries_of(log, after, limit)

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first."""
        with self._pool.reading(key) as log:
            count = None if limit is None else max(0, limit)
            found = (reading.run_of(log, run_id) for run_id in log.index.newest_runs()[:count])
            return [run for run in found if run is not None]

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        with self._pool.reading(key) as log:
            return reading.run_of(log, run_id)

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
        with self._pool.reading(key) as log:
            return reading.failure_of(log, run_id)

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads by thread id. Logs are not read for it, only their ends."""
        self._pool.check_open()
        folder = self._root / "threads" / file_name(tenant)
        found: list[ThreadInfo] = []
        try:
            for key, path in keys_in(folder, tenant, timeout=self._timeout):
                if limit is not None and len(found) >= limit:
                    break
                if after is None or key.thread > after:
                    info = info_of(key, path, timeout=self._timeout)
                    if info is not None and status in (None, info.status):
                        found.append(info)
        except OSError as error:
            unavailable(folder, error)
        return found

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A manifest that was committed to this thread, or ``None``."""
        with self._pool.reading(key) as log:
            return reading.manifest_at(log, fingerprint)

    # -- removing

    def delete(self, key: ThreadKey, *, head: int | None = None) -> bool:
        """Remove the thread, with ``head`` only if that is still its head; a tombstone stays.

        Copies that repairs kept go too. Who was interrupted calls it again.
        """
        with self._pool.writing(key) as log:
            index = log.index
            if head is not None and head != index.head:
                raise conflict(key, head, index.head)
            self._sweep(log)
            if index.header is None or index.count == 1:
                return False
            drop_all(log, index.header, now=time_ns() // 1000)
            return index.holds_thread

    def _sweep(self, log: Log) -> None:
        """Remove, durably, what there is of a thread beside its log, whose lock is held.

        A log that is empty or was repaired does not name every run that it had: they are
        searched for, and so the copies, which say that it was repaired, go last.
        """
        index = log.index
        copies = copies_of(log.path)
        search = bool(copies) or index.count == 1
        self._runs.remove(log.key, {*index.runs, *index.failures}, search=search)
        for copy in copies:
            copy.unlink()
        if copies:
            files.sync_folder(log.path.parent)

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``."""
        with self._pool.writing(key) as log:
            index = log.index
            if index.head != head:
                raise conflict(key, head, index.head)
            newest = reading.entry_at(log, head, with_payload=False)
            limit = newest.roll_seq if newest else 0
            if max([cut, *(entry.seq for entry in rewritten)]) > limit:
                raise InvalidRequest(
                    f"thread '{key.thread}' cannot be pruned above seq {limit}: "
                    "its writer may still roll up what is there"
                )
            first = max(cut, index.first)
            changed = {entry.seq: entry for entry in rewritten if entry.seq >= first}
            if index.header is not None and (first > index.first or changed):
                drop_below(log, index.header, first, changed)
            return first - index.first

    def close(self) -> None:
        """Close every file; every later call raises ``Unavailable``."""
        self._pool.close()

    # -- caring for files

    def verify(self, key: ThreadKey) -> int:
        """Read all of a thread's file anew, payloads too; how many lines it has.

        Raises:
            Corrupted: one of them is not what was written.
        """
        with self._pool.holding(key) as log:
            log.release()
            index = log.refresh()
            for _ in reading.each_record(log, index.first, index.head, entry_of):
                pass
            reading.results_of(log)
            return index.count

    def repair(self, key: ThreadKey) -> Path | None:
        """Cut off a torn last line; the copy that was kept, or ``None`` if all was well.

        Raises:
            Corrupted: the file is damaged, which nothing mends.
        """
        with self._pool.holding(key) as log:
            log.refuse_if_poisoned()
            log.release()
            return repair_file(log.path, key, timeout=self._timeout)

    def write_runs(self, key: ThreadKey) -> int:
        """Make the files of the thread's runs anew from its log; how many runs it has."""
        with self._pool.writing(key) as log:  # or they could outlive a deletion
            for run_id in log.index.runs:
                run, failure = reading.run_of(log, run_id), reading.failure_of(log, run_id)
                if run is not None:
                    self._runs.write(run)
                if failure is not None:
                    self._runs.write_failure(key, failure)
            return len(log.index.runs)
