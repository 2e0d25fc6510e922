"""Stores that break a promise on lists of a tenant: threads and runs by recency and by wake."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec.structs

from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.pages import Page
from milecastle.ports.store import Batch
from tests.broken_stores.store import BrokenStore

RECENT = "test_recent_threads_are_in_the_order_of_commits"
STATUS = "test_recent_threads_are_listed_by_status"
WAKE = "test_threads_are_listed_by_when_they_wake"
RUNS = "test_runs_of_a_tenant_are_in_the_order_of_commits"
PAGES = "test_lists_of_a_tenant_are_paged"
THERE = "test_lists_of_a_tenant_have_what_is_there"


class ListsThreadsByTheirStart(BrokenStore, caught_by=(RECENT,)):
    """Clocks agree."""

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """Sort by the time at which the run began."""
        page = super().recent_threads(tenant, status=status, limit=limit, after=after)
        items = tuple(sorted(page.items, key=lambda info: -info.started_at))
        return Page(items, page.after)


class MovesThreadsOnEveryStep(BrokenStore, caught_by=(RECENT,)):
    """Whatever is written is recent."""

    def commit(self, batch: Batch) -> None:
        """Write the line again with each batch."""
        log = self._logs.get(batch.key)
        info = batch.thread or (log.info if log else None)
        super().commit(msgspec.structs.replace(batch, thread=info))


class MovesThreadsThatArePruned(BrokenStore, caught_by=(RECENT,)):
    """What is written again is new."""

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
        """Forget where the thread was."""
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self._logs[key].told_at = 2**60
        return dropped


class ListsThreadsOfEveryStatus(BrokenStore, caught_by=(STATUS,)):
    """A status is a hint."""

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """List all."""
        return super().recent_threads(tenant, limit=limit, after=after)


class WakesTheLastFirst(BrokenStore, caught_by=(WAKE,)):
    """By when they wake, the other way round."""

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """Turn the page round."""
        page = super().waking_threads(tenant, until=until, limit=limit, after=after)
        return Page(page.items[::-1], page.after)


class WakesWhateverTheTime(BrokenStore, caught_by=(WAKE,)):
    """All that sleep may wake."""

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """Forget until when."""
        return super().waking_threads(tenant, limit=limit, after=after)


class ListsRunsByTheirStart(BrokenStore, caught_by=(RUNS,)):
    """Clocks agree."""

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        """Sort by the time at which they began."""
        page = super().recent_runs(tenant, status=status, limit=limit, after=after)
        return Page(tuple(sorted(page.items, key=lambda run: -run.started_at)), page.after)


class MovesRunsWithEachRecord(BrokenStore, caught_by=(RUNS,)):
    """The newest record is the newest run."""

    def commit(self, batch: Batch) -> None:
        """Forget the places of the runs that are written."""
        log = self._logs.get(batch.key)
        for run in batch.runs if log else ():
            if log is not None:
                log.places.pop(run.run_id, None)
        super().commit(batch)


class PagesByCounting(BrokenStore, caught_by=(PAGES,)):
    """A page begins where so many were listed before."""

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        """Count."""
        runs = super().recent_runs(tenant, status=status).items
        first = int(after or "0")
        last = len(runs) if limit is None else first + max(0, limit)
        return Page(runs[first:last], str(last) if last < len(runs) else None)


class ListsEveryTenant(BrokenStore, caught_by=(THERE,)):
    """One index for all."""

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """List the threads of every tenant."""
        tenants = sorted({key.tenant for key in self._logs})
        pages = [super(BrokenStore, self).recent_threads(one, status=status) for one in tenants]
        return Page(tuple(info for page in pages for info in page.items))
