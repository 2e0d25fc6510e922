"""Maintenance of a store: what ``milecastle verify``, ``repair``, ``migrate`` and ``doctor`` ask.

Both ports are optional. A store with ``Store.maintenance`` is checked below what ``Store`` reads:
its files, its pages, its tables. Of one without it, the command line reads everything through
``Store`` and says that it did no more.

Opening a store may migrate it, and ``doctor`` and ``migrate --print`` must change nothing. So the
factory of a store may have an attribute ``unopened``: called with the URL, it returns an
``Unopened``. Without it, the store is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from milecastle.errors import Corrupted, MilecastleError
from milecastle.model.run import ThreadInfo

CheckVerdict = Literal["ok", "warning", "failed"]

_PAGE = 1000


class Finding(msgspec.Struct, frozen=True):
    """Something that differs from what was written. ``code`` is that of the matching error."""

    place: str
    problem: str
    code: str = Corrupted.code


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What was found below one thread; without a finding, the thread is ready to be read.

    ``thread`` is ``None`` if the thread's id cannot be read. ``is_thread=False``: this is about the
    store as a whole, for example the pages of its file.
    """

    thread: str | None = None
    findings: tuple[Finding, ...] = ()
    is_thread: bool = True


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """What ``repair`` did to one thread: nothing, unless ``file`` names what was repaired.

    ``kept`` is the copy of the damaged file. ``findings`` are what cannot be repaired.
    """

    thread: str | None = None
    file: str | None = None
    kept: str = ""
    findings: tuple[Finding, ...] = ()


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """The version of the tables, the version that this library writes, and the SQL in between."""

    version: int
    latest: int
    sql: str = ""


class Check(msgspec.Struct, frozen=True):
    """One line of ``doctor``: what was checked, the verdict, what was found, what to do."""

    name: str
    verdict: CheckVerdict
    found: str
    advice: str = ""


class Unopened(Protocol):
    """A store that need not be open for this. Only ``migrate`` changes anything."""

    def pending_migrations(self) -> Pending | None:
        """Which migrations are missing; ``None`` if this store has nothing to migrate.

        Raises:
            StoreError: it cannot be reached, or is not a store, or is newer than this library.
        """
        ...

    def migrate(self) -> str:
        """Apply what is missing and return the SQL that did it; "" if nothing was missing."""
        ...

    def examine(self) -> Sequence[Check]:
        """Further checks of the store's location: permissions, disk, clock.

        A check named ``clock`` replaces the one that ``doctor`` makes. A check named ``store`` with
        the verdict ``ok`` is added to what ``doctor`` reports about the opened store.
        """
        ...


class Maintenance(Unopened, Protocol):
    """A store that can check and repair what is below its threads."""

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        """Each thread of the tenant, or each that is named, with what is wrong below it.

        A thread that cannot be listed is reported, and the others are still inspected. The caller
        reads the threads that have no findings through ``Store``: this need not read them again.
        """
        ...

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        """Each thread of the tenant, or each that is named, repaired if that loses nothing.

        Nothing that was acknowledged may be lost. A store that repairs itself yields nothing.
        """
        ...


def finding_of(error: MilecastleError, place: str) -> Finding:
    """An error as a finding; at ``place`` unless the error names its own."""
    where = error.place if isinstance(error, Corrupted) else place
    return Finding(where, error.message.removesuffix(f" at {where}"), error.code)


class _Listing(Protocol):
    def threads(
        self, tenant: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]: ...


def inspect_listed(
    store: _Listing, tenant: str, threads: Sequence[str] = ()
) -> Iterator[Inspected]:
    """The threads that a store lists: all that ``verify`` yields where nothing is below them."""
    if threads:
        return (Inspected(thread=name) for name in threads)
    return inspect_pages(lambda last: store.threads(tenant, limit=_PAGE, after=last))


def inspect_pages(list_page: Callable[[str | None], Sequence[ThreadInfo]]) -> Iterator[Inspected]:
    """The same, by a function that lists the threads after one."""
    last: str | None = None
    while True:
        try:
            page = list_page(last)
        except Corrupted as error:
            yield Inspected(findings=(finding_of(error, "the store"),))
            return
        if not page:
            return
        yield from (Inspected(thread=info.key.thread) for info in page)
        last = page[-1].key.thread
