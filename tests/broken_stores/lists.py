"""Stores that break a promise on listing: history, runs, failures, threads, manifests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec.structs

from milecastle.errors import Corrupted, StoreError, Unavailable
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.store import Batch, Chain
from tests.broken_stores.store import BrokenStore

ANY_LIMIT = "test_a_limit_may_be_any_number"


class ListsOldestFirst(
    BrokenStore, caught_by=("test_history_is_listed_newest_first",), seen_by_model=True
):
    """As they were written."""

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Turn the page round."""
        return iter(list(super().history(key, limit=limit, before=before))[::-1])


class ListsPayloads(
    BrokenStore, caught_by=("test_history_has_everything_but_payloads",), seen_by_model=True
):
    """Lists everything that it has."""

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Give the entries themselves."""
        for entry in super().history(key, limit=limit, before=before):
            chain = self.read(key, entry.seq)
            yield chain.entries[-1] if chain else entry


class IgnoresTheLimit(BrokenStore, caught_by=("test_history_is_limited",)):
    """All is all."""

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """List everything."""
        return super().history(key, before=before)


class ListsBeforeAgain(BrokenStore, caught_by=("test_history_is_paged",), seen_by_model=True):
    """Off by one."""

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """List ``before`` too."""
        return super().history(key, limit=limit, before=None if before is None else before + 1)


class ListsWhatComesMeanwhile(
    BrokenStore, caught_by=("test_history_does_not_change_while_it_is_read",)
):
    """Counts from an end that moves."""

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Look again for each entry."""
        place = 0
        while place < len(found := list(super().history(key, limit=limit, before=before))):
            yield found[place]
            place += 1


class IsBusyWhileItLists(
    BrokenStore,
    caught_by=(
        "test_reading_is_fine_while_history_is_read",
        "test_a_history_may_be_left_unread",
    ),
):
    """One thing at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._listing = 0

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Be busy until the last entry was taken."""
        self._listing += 1
        yield from super().history(key, limit=limit, before=before)
        self._listing -= 1

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Refuse while listing."""
        self._check_idle()
        return super().read(key, seq)

    def commit(self, batch: Batch) -> None:
        """Refuse while listing."""
        self._check_idle()
        super().commit(batch)

    def _check_idle(self) -> None:
        if self._listing:
            raise Unavailable("a history is being read")


class ListsRunsByStart(
    BrokenStore, caught_by=("test_runs_are_listed_newest_first",), seen_by_model=True
):
    """The clock decides."""

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """Sort by the time of the start."""
        found = super().runs(key)
        return sorted(found, key=lambda run: (run.started_at, run.run_id))[::-1][:limit]


class ListsRunsAsRewritten(
    BrokenStore, caught_by=("test_runs_are_listed_newest_first",), seen_by_model=True
):
    """The run whose record changed last is the newest."""

    def commit(self, batch: Batch) -> None:
        """Put a record that changed at the end."""
        super().commit(batch)
        log = self._logs[batch.key]
        for run in batch.runs:
            log.runs[run.run_id] = log.runs.pop(run.run_id)


class KeepsTheFirstRecord(
    BrokenStore, caught_by=("test_a_later_record_of_a_run_replaces_the_earlier",)
):
    """A record is written once."""

    def commit(self, batch: Batch) -> None:
        """Drop records of runs that are known."""
        new = tuple(run for run in batch.runs if self.run(batch.key, run.run_id) is None)
        super().commit(msgspec.structs.replace(batch, runs=new))


class FindsAnyRun(
    BrokenStore,
    caught_by=(
        "test_a_run_is_found_in_its_thread_only",
        "test_nothing_of_another_tenant_is_found",
    ),
):
    """A run id is enough."""

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """Look into every thread."""
        found = (super(FindsAnyRun, self).run(each, run_id) for each in self._logs)
        return next((run for run in found if run is not None), None)


class KeepsOneFailure(BrokenStore, caught_by=("test_a_failure_belongs_to_one_run",)):
    """A thread has one failure."""

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """Give the last one."""
        log = self._logs.get(key)
        return list(log.failures.values())[-1] if log and log.failures else None


class ForgetsTheQuestions(
    BrokenStore, caught_by=("test_threads_are_listed_as_their_writers_said",), seen_by_model=True
):
    """Keeps the status alone."""

    def commit(self, batch: Batch) -> None:
        """Drop how many questions are open, and when the thread wakes."""
        line = batch.thread
        if line is not None:
            line = msgspec.structs.replace(line, questions=0, wake_at=None)
        super().commit(msgspec.structs.replace(batch, thread=line))


class ForgetsTheLane(
    BrokenStore,
    caught_by=("test_a_line_says_which_workers_may_run_its_thread",),
    seen_by_model=True,
):
    """Who runs a thread is not the store's business."""

    def commit(self, batch: Batch) -> None:
        """Drop which workers may run it."""
        line = batch.thread
        if line is not None:
            line = msgspec.structs.replace(line, lane="", due_at=None, worker="")
        super().commit(msgspec.structs.replace(batch, thread=line))


class TakesTheLineFromTheRun(
    BrokenStore, caught_by=("test_threads_are_listed_as_their_writers_said",)
):
    """The writer's word counts only without a record beside it."""

    def commit(self, batch: Batch) -> None:
        """Make the line of the record, if there is one."""
        line = ThreadInfo.of(batch.runs[-1]) if batch.runs and batch.thread else batch.thread
        super().commit(msgspec.structs.replace(batch, thread=line))


class ListsNothingWithoutAWriter(
    BrokenStore, caught_by=("test_a_thread_with_nothing_but_runs_is_listed",), seen_by_model=True
):
    """A thread is listed once a writer said what it is."""

    def commit(self, batch: Batch) -> None:
        """Make no line of a run record."""
        known = self.thread(batch.key)
        super().commit(batch)
        if batch.thread is None:
            self._logs[batch.key].info = known


class FindsAnyThread(BrokenStore, caught_by=("test_a_thread_is_found_under_its_own_key_only",)):
    """A name is enough."""

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        """Look at every tenant."""
        found = (log.info for known, log in self._logs.items() if known.thread == key.thread)
        return next(found, None)


class ListsTheLastWrittenRun(
    BrokenStore,
    caught_by=("test_a_run_record_alone_does_not_change_what_a_thread_is",),
    seen_by_model=True,
):
    """The run that was written last is what a thread is: a run that cannot be loaded hides it."""

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        """Take run id and status from what was written last."""
        info = super().thread(key)
        return None if info is None else self._last_written(info)

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """Take run id and status from what was written last."""
        found = super().threads(tenant, status=status, limit=limit, after=after)
        return [self._last_written(info) for info in found]

    def _last_written(self, info: ThreadInfo) -> ThreadInfo:
        run = list(self._logs[info.key].runs.values())[-1]
        return msgspec.structs.replace(info, run_id=run.run_id, status=run.status)


class SortsLikePeople(BrokenStore, caught_by=("test_threads_are_listed_by_code_point",)):
    """Case does not matter in a list."""

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """Sort by folded id."""
        found = super().threads(tenant, status=status, limit=limit, after=after)
        return sorted(found, key=lambda info: info.key.thread.casefold())


class IgnoresTheStatus(BrokenStore, caught_by=("test_threads_are_filtered_by_status",)):
    """Lists all."""

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """Leave the status aside."""
        return super().threads(tenant, limit=limit, after=after)


class LimitsBeforeItFilters(BrokenStore, caught_by=("test_threads_are_limited_after_filtering",)):
    """Counts what it does not list."""

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """Take a page, and filter it."""
        found = super().threads(tenant, limit=limit, after=after)
        return [info for info in found if status is None or info.status == status]


class LimitsFromTheEnd(BrokenStore, caught_by=(ANY_LIMIT,)):
    """Leaves as many out as a limit is below 0."""

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """Cut a list as Python does."""
        return super().runs(key)[:limit]


class LimitsWithinAWord(BrokenStore, caught_by=(ANY_LIMIT,)):
    """Counts in 64 bits."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Refuse what is more."""
        if limit is not None and limit.bit_length() > 63:
            raise StoreError("out of range")
        return super().entries(key, after=after, limit=limit)


class StumblesOverTheStatus(
    BrokenStore, caught_by=("test_a_status_that_no_run_has_lists_nothing",)
):
    """Hands it to a database as it is."""

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """Take text that cannot be stored for damage."""
        if status and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in status):
            raise Corrupted("a text that was never written", place="threads")
        return super().threads(tenant, status=status, limit=limit, after=after)


class ListsAfterAgain(BrokenStore, caught_by=("test_threads_are_paged",), seen_by_model=True):
    """Off by one."""

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """List ``after`` too."""
        found = super().threads(tenant, status=status)
        return [info for info in found if after is None or info.key.thread >= after][:limit]


class ListsTenantsThatBeginAlike(
    BrokenStore, caught_by=("test_threads_are_listed_for_one_tenant",)
):
    """A prefix will do."""

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """List every tenant that begins so."""
        tenants = sorted({key.tenant for key in self._logs if key.tenant.startswith(tenant)})
        found: list[ThreadInfo] = []
        for each in tenants:
            found += super().threads(each, status=status, after=after)
        return found[:limit]


class ReplacesManifests(BrokenStore, caught_by=("test_a_manifest_is_kept_once",)):
    """The last one counts."""

    def commit(self, batch: Batch) -> None:
        """Drop the one that is there."""
        if batch.manifest is not None:
            self._manifests.pop((batch.key.tenant, batch.manifest[0]), None)
        super().commit(batch)


class SharesManifests(
    BrokenStore, caught_by=("test_a_manifest_of_another_tenant_is_not_in_the_way",)
):
    """A fingerprint is a fingerprint."""

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """Give what any tenant stored."""
        found = (kept for (_, known), kept in self._manifests.items() if known == fingerprint)
        return next(found, None)
