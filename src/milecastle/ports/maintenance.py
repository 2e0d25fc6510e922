"""Store maintenance, for ``milecastle verify``, ``repair``, ``migrate`` and ``doctor``.

Both ports are optional. A store with ``Store.maintenance`` is checked below what ``Store`` reads:
its files, its pages, its tables. Of one without it, the command line reads everything through
``Store`` and says it did no more.

Opening a store may migrate it, and ``doctor`` and ``migrate --print`` must change nothing. So a
store's factory may have an attribute ``unopened``: called with the URL, it returns an
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
    """A difference from the written data. ``code`` is the matching error's."""

    place: str
    problem: str
    code: str = Corrupted.code


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """Findings below one thread; without one, the thread is ready to be read.

    ``thread`` is ``None`` if the thread's id cannot be read. ``is_thread=False``: this is about the
    store as a whole, for example its file's pages.
    """

    thread: str | None = None
    findings: tuple[Finding, ...] = ()
    is_thread: bool = True


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``repair`` for one thread: nothing, unless ``file`` names a repaired one.

    ``kept`` is the damaged file's copy. ``findings`` cannot be repaired.
    """

    thread: str | None = None
    file: str | None = None
    kept: str = ""
    findings: tuple[Finding, ...] = ()


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """Table version, this library's version, and the SQL in between."""

    version: int
    latest: int
    sql: str = ""


class Check(msgspec.Struct, frozen=True):
    """One line in ``doctor``: subject, verdict, finding, advice."""

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
        """Apply missing migrations; return their SQL, "" if none."""
        ...

    def examine(self) -> Sequence[Check]:
        """Further checks at the store's location: permissions, disk, clock.

        A check named ``clock`` replaces the one that ``doctor`` makes. A check named ``store`` with
        the verdict ``ok`` is added to ``doctor``'s report about the opened store.
        """
        ...


class Maintenance(Unopened, Protocol):
    """A store that can check and repair its own files."""

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        """The tenant's threads, or the named ones, with the problems below them.

        An unlistable thread is reported, and the others are still inspected. The caller
        reads the threads with no findings through ``Store``: this need not read them again.
        """
        ...

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        """The tenant's threads, or the named ones, repaired if nothing is lost.

        Nothing acknowledged may be lost. A store that repairs itself yields nothing.
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
    """The threads a store lists: enough for ``verify`` if there is nothing below them."""
    if threads:
        return (Inspected(thread=name) for name in threads)
    return inspect_pages(lambda last: store.threads(tenant, limit=_PAGE, after=last))


def inspect_pages(list_page: Callable[[str | None], Sequence[ThreadInfo]]) -> Iterator[Inspected]:
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
