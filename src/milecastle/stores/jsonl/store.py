"""The file store: a folder that is the workspace, with one readable log per thread.

::

    threads/<tenant>/<thread>.jsonl   the logs; they contain everything in the store
    runs/<run-id>/run.json            the same data for people: see ``runs``
    runs/<run-id>/failure.json

Rules:

- One line is one commit, or messages (``shapes``), chained to the line before (``lines``). It is
  written by one write, and synced, under the file's lock (``log``), before ``commit`` returns.
- Payloads are readable JSON wherever the same bytes can be restored from it (``payloads``).
- A torn last line and damage are distinguished, and both are ``Corrupted``; ``repair`` fixes the
  first. A list of threads warns of either (``listing``).
- File names follow ``names``, and the first line names the thread.
- Deleting leaves an empty log's header, written last: as long as anything else of a thread is
  left, its log exists. Pruning replaces the log with a shorter file.
- At most ``open_files`` logs are open; the least recently used one is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from milecastle.disk import files
from milecastle.disk.names import file_name
from milecastle.errors import CodecError, Corrupted, FormatTooNew, InvalidRequest
from milecastle.model.checkpoint import Entry, TaskResult, count_of_task
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.claims import dated, system_time
from milecastle.ports.fencing import check_cut, check_oldest, conflict, message_waits
from milecastle.ports.mailbox import is_kept
from milecastle.ports.maintenance import Check, Inspected, Maintenance, Repaired, finding_of
from milecastle.ports.pages import Page, PageKey, page_of
from milecastle.ports.store import Batch, Capabilities, Chain, Opened
from milecastle.stores.jsonl import reading
from milecastle.stores.jsonl.index import Index
from milecastle.stores.jsonl.listing import (
    SUFFIX,
    Found,
    Listed,
    found_in,
    info_of,
    keys_in,
    listed_of,
)
from milecastle.stores.jsonl.log import LogFile
from milecastle.stores.jsonl.mailbox import JsonlMailbox
from milecastle.stores.jsonl.pool import LogPool, unavailable
from milecastle.stores.jsonl.repair import copies_of, repair_file
from milecastle.stores.jsonl.runs import RunFolder
from milecastle.stores.jsonl.shapes import entry_of
from milecastle.stores.jsonl.writing import (
    check_fence,
    drop_all,
    drop_below,
    put_back,
    shape_of,
    with_message,
)

_PAGE: Final = 128

_FindListed = Callable[[ThreadKey], Listed | None]
_IsWanted = Callable[[Listed], bool]
_ListThreads = Callable[[str, int | None, str | None, _IsWanted], Sequence[ThreadInfo]]


@checks_keys
class JsonlStore(Capabilities):
    """Stores logs as files in ``root``, which the first write creates.

    ``open_files`` is the maximum number of open logs; ``lock_timeout`` is how many seconds a call
    waits for another process. ``now`` is its clock, in microseconds, for lines that are due at
    once. Workers do not share its threads: it has no claims.
    """

    blocking = True
    rollup_after = 128

    def __init__(
        self,
        root: str | Path,
        *,
        open_files: int = 128,
        lock_timeout: float = 10.0,
        now: Callable[[], int] = system_time,
    ) -> None:
        self._now = now
        self._root = Path(root).absolute()
        self._timeout = lock_timeout
        self._runs = RunFolder(self._root)
        self._pool = LogPool(self.path_of, open_files=open_files, timeout=lock_timeout)

    @property
    def root(self) -> Path:
        """The workspace."""
        return self._root

    def path_of(self, key: ThreadKey) -> Path:
        """A thread file's path, whether it exists or not."""
        folder = self._root / "threads" / file_name(key.tenant)
        return folder / (file_name(key.thread) + SUFFIX)

    # -- writing

    def commit(self, batch: Batch) -> None:
        while True:
            log = self._pool.find(batch.key)
            with log.guard:
                if log.closed:
                    continue
                try:
                    return self._commit(log, batch)
                except BaseException:
                    log.give_back()  # again: a signal may have interrupted the first time
                    raise

    def _commit(self, log: LogFile, batch: Batch) -> None:
        if batch.memory:
            raise InvalidRequest("files have no long-term memory: use SQLite or PostgreSQL")
        try:
            if log.poisoned:
                log.refuse_if_poisoned()
            if not log.take():
                self._begin(log, batch)
            check_fence(batch, log.index)
            if batch.thread is not None:
                batch = dated(with_message(batch, log.index), self._now())
            commit = shape_of(batch, log.index)
            if commit is not None:
                log.append(commit)
                if commit.runs or commit.failures:
                    self._project(batch)
        except OSError as error:
            unavailable(log.path, error)
        except UnicodeEncodeError:
            raise InvalidRequest("text with lone surrogates cannot be stored") from None
        finally:
            log.give_back()

    def _begin(self, log: LogFile, batch: Batch) -> None:
        check_fence(batch, Index())
        files.make_root(self._root)
        for folder in (log.path.parent.parent, log.path.parent):
            files.make_folder(folder)
        log.take(create=True)

    def _project(self, batch: Batch) -> None:
        with suppress(OSError):  # the commit is done; `write_runs` can recreate these
            for run in batch.runs:
                self._runs.write(run)
            if batch.failure is not None:
                self._runs.write_failure(batch.key, batch.failure)

    # -- reading

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        with self._pool.reading(key) as log:
            return _chain(log, seq)

    def open(self, key: ThreadKey) -> Opened | None:
        with self._pool.reading(key) as log:
            chain = _chain(log)
            return Opened(chain, reading.run_of(log, chain.entries[-1].run_id)) if chain else None

    def head(self, key: ThreadKey) -> Entry | None:
        with self._pool.reading(key) as log:
            return reading.entry_at(log, log.index.head, with_payload=False)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        with self._pool.reading(key) as log:
            return reading.results_of(log) if log.index.head else ()

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        with self._pool.reading(key) as log:
            entry = reading.entry_at(log, log.index.head if seq is None else seq)
            return Chain(reading.chain_of(log, entry)) if entry else None

    def count_results(self, key: ThreadKey, task: str) -> int:
        with self._pool.reading(key) as log:
            return count_of_task(task, log.index.results if log.index.head else ())

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        with self._pool.reading(key) as log:
            for seq in log.index.candidates(checkpoint_id):
                entry = reading.entry_at(log, seq, with_payload=False)
                if entry is not None and entry.id == checkpoint_id:
                    return seq
            return None

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
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
        with self._pool.reading(key) as log:
            return reading.entries_of(log, after, limit)

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        with self._pool.reading(key) as log:
            count = None if limit is None else max(0, limit)
            newest_first = list(log.index.runs)[::-1][:count]
            found = (reading.run_of(log, run_id) for run_id in newest_first)
            return [run for run in found if run is not None]

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        with self._pool.reading(key) as log:
            return reading.run_of(log, run_id)

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        with self._pool.reading(key) as log:
            run_id = log.index.digests.get(input_digest)
            return reading.run_of(log, run_id) if run_id else None

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
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
        return self._list(tenant, limit, after, lambda one: status in (None, one.info.status))

    @property
    def tags(self) -> JsonlTags:
        return JsonlTags(self._listed, self._list)

    @property
    def mailbox(self) -> JsonlMailbox:
        return JsonlMailbox(self._pool, self._now)

    def _listed(self, key: ThreadKey) -> Listed | None:
        self._pool.check_open()
        path = self.path_of(key)
        try:
            return listed_of(key, path, timeout=self._timeout)
        except OSError as error:
            unavailable(path, error)

    def _list(
        self, tenant: str, limit: int | None, after: str | None, is_wanted: _IsWanted
    ) -> Sequence[ThreadInfo]:
        self._pool.check_open()
        folder = self._root / "threads" / file_name(tenant)
        found: list[ThreadInfo] = []
        try:
            for key, path in keys_in(folder, tenant, timeout=self._timeout):
                if limit is not None and len(found) >= limit:
                    break
                if after is None or key.thread > after:
                    listed = listed_of(key, path, timeout=self._timeout)
                    if listed is not None and is_wanted(listed):
                        found.append(listed.info)
        except OSError as error:
            unavailable(folder, error)
        return found

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's threads, the one whose log was last written to first.

        By the file system's clock: nothing else says in which order files were written.
        """
        found = self._placed(tenant)
        lines = ((place, info) for place, info in found if status in (None, info.status))
        return page_of(lines, limit, after, down=True)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        found = [
            ((info.wake_at, info.key.thread, 0), info)
            for _, info in self._placed(tenant)
            if info.wake_at is not None and (until is None or info.wake_at <= until)
        ]
        return page_of(found, limit, after, down=False)

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        """The tenant's runs, newest first: each thread's in their order.

        Several threads' runs are merged by their start: nothing else is stored about it.
        """
        found: list[tuple[PageKey, RunRecord]] = []
        for _, info in self._placed(tenant):
            began = 0
            for number, run in enumerate(reversed(self.runs(info.key))):
                began = max(began, run.started_at)
                if status in (None, run.status):
                    found.append(((began, info.key.thread, number), run))
        return page_of(found, limit, after, down=True)

    def _placed(self, tenant: str) -> list[tuple[PageKey, ThreadInfo]]:
        self._pool.check_open()
        folder = self._root / "threads" / file_name(tenant)
        found: list[tuple[PageKey, ThreadInfo]] = []
        try:
            for key, path in keys_in(folder, tenant, timeout=self._timeout):
                info = info_of(key, path, timeout=self._timeout)
                if info is not None:
                    found.append(((path.stat().st_mtime_ns, key.thread, 0), info))
        except OSError as error:
            unavailable(folder, error)
        return found

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        with self._pool.reading(key) as log:
            return reading.thread_of(log)

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        with self._pool.reading(key) as log:
            return reading.manifest_at(log, fingerprint)

    # -- removing

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Remove the thread, with ``head`` only if that is still its head; a tombstone stays.

        Copies saved by repairs are removed too. If interrupted, call it again.
        """
        with self._pool.writing(key) as log:
            index = log.index
            if head is not None and head != index.head:
                raise conflict(key, head, index.head)
            if head_id is not None and not (index.head and index.is_head(head_id)):
                raise conflict(key, index.head + 1, index.head)
            row = reading.thread_of(log) if head is not None or head_id is not None else None
            if row is not None and is_kept(row, index.messages.is_unread):
                raise message_waits(key, index.head)
            self._sweep(log)
            if index.header is None or index.count == 1:
                return False
            drop_all(log, index.header, now=self._now())
            return index.holds_thread

    def _sweep(self, log: LogFile) -> None:
        """Remove, durably, all a thread's files except its log, whose lock is held.

        A log that is empty or was repaired does not name every run it had: they are
        searched for, and so the copies, which say it was repaired, go last.
        """
        index = log.index
        copies = copies_of(log.path)
        search = bool(copies) or index.count == 1
        self._runs.remove(log.key, {*index.runs, *index.failures}, search=search)
        for copy in copies:
            copy.unlink()
        if copies:
            files.sync_folder(log.path.parent)

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
        with self._pool.writing(key) as log:
            index = log.index
            if index.head != head:
                raise conflict(key, head, index.head)
            if oldest is not None:
                check_oldest(key, head, oldest, reading.entry_at(log, index.first))
            newest = reading.entry_at(log, head, with_payload=False)
            check_cut(key, newest.roll_seq if newest else 0, cut, rewritten)
            first = max(cut, index.first)
            changed = {entry.seq: entry for entry in rewritten if entry.seq >= first}
            if index.header is not None and (first > index.first or changed):
                drop_below(log, index.header, first, changed, 0 if archived else first)
            return first - index.first

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        with self._pool.writing(key) as log:
            index = log.index
            if index.header is None or index.head != head:
                raise conflict(key, head, index.head)
            check_oldest(key, head, oldest, reading.entry_at(log, index.first))
            put_back(log, index.header, entries)

    def close(self) -> None:
        self._pool.close()

    # -- maintenance

    @property
    def maintenance(self) -> Maintenance:
        return self

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        for log in self._logs(tenant, threads):
            try:
                if log.error is not None:
                    raise log.error
                if log.key is not None:
                    self.verify_thread(log.key)
            except (Corrupted, FormatTooNew, CodecError) as error:
                yield log.inspected(error)
            else:
                yield log.inspected()

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        for log in self._logs(tenant, threads):
            thread = log.key.thread if log.key else None
            try:
                kept = self.repair_thread(log.key) if log.key else repair_file(log.path)
            except (Corrupted, FormatTooNew) as error:
                yield Repaired(thread=thread, findings=(finding_of(error, str(log.path)),))
                continue
            if kept is None:
                yield Repaired(thread=thread)
                continue
            if log.key:
                self.write_runs(log.key)
            yield Repaired(thread=thread, file=str(log.path), kept=str(kept))

    def pending_migrations(self) -> None: ...

    def migrate(self) -> str:
        return ""

    def examine(self) -> tuple[Check, ...]:
        return ()

    def _logs(self, tenant: str, threads: Sequence[str]) -> Iterator[Found]:
        if not threads:
            folder = self._root / "threads" / file_name(tenant)
            return found_in(folder, tenant, timeout=self._timeout)
        keys = [ThreadKey(tenant, name) for name in threads]
        return (Found(key, self.path_of(key)) for key in keys)

    def verify_thread(self, key: ThreadKey) -> int:
        """Read a thread's file again, including payloads; return its line count.

        Raises: Corrupted: a line is damaged.
        """
        with self._pool.holding(key) as log:
            log.release()
            log.refresh()
            index = log.index
            for _ in reading.each_record(log, index.first, index.head, entry_of):
                pass
            reading.results_of(log)
            for span in dict.fromkeys(index.sent.values()):
                reading.messages_in(log, span)
            return index.count

    def repair_thread(self, key: ThreadKey) -> Path | None:
        """Remove a torn last line; return the saved copy, or ``None`` if nothing was torn.

        Raises:
            Corrupted: the file is damaged, which cannot be repaired.
        """
        with self._pool.holding(key) as log:
            log.refuse_if_poisoned()
            log.release()
            return repair_file(log.path, key, timeout=self._timeout)

    def write_runs(self, key: ThreadKey) -> int:
        """Recreate the thread's run files from its log; return how many runs it has."""
        with self._pool.writing(key) as log:  # or they could outlive a deletion
            for run_id in log.index.runs:
                run, failure = reading.run_of(log, run_id), reading.failure_of(log, run_id)
                if run is not None:
                    self._runs.write(run)
                if failure is not None:
                    self._runs.write_failure(key, failure)
            return len(log.index.runs)


@checks_keys
class JsonlTags:
    def __init__(self, listed: _FindListed, list_threads: _ListThreads) -> None:
        self._listed = listed
        self._list = list_threads

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for thread in threads:
            with suppress(InvalidRequest):  # no thread has such a name
                listed = self._listed(ThreadKey(tenant, thread))
                found |= {thread: listed.tags} if listed and listed.tags else {}
        return found

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        return self._list(tenant, limit, after, lambda one: tag in one.tags)


def _chain(log: LogFile, seq: int | None = None) -> Chain | None:
    head = log.index.head
    entry = reading.entry_at(log, head if seq is None else seq)
    if entry is None:
        return None
    results = reading.results_of(log) if entry.seq == head else ()
    return Chain(reading.chain_of(log, entry), results)
