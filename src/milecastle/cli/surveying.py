"""All threads of a tenant, damaged ones too, in whatever store: for ``verify`` and ``repair``.

A list of threads stops at the first damage. Here a log that cannot even be named is a finding,
and the others are still gone through.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from milecastle.cli.care_documents import Damage
from milecastle.errors import Corrupted, FormatTooNew, MilecastleError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store

__all__ = ["Log", "damage_of", "page_damage", "survey"]

_PAGE = 1000


class Log(NamedTuple):
    """A thread to look at. Without a key, it is a file whose first line is damaged."""

    key: ThreadKey | None
    path: Path | None = None
    error: MilecastleError | None = None


def survey(store: Store, tenant: str) -> Iterator[Log]:
    """Every thread of a tenant."""
    from milecastle.stores.jsonl import JsonlStore

    return _files(store, tenant) if isinstance(store, JsonlStore) else _listed(store, tenant)


def _listed(store: Store, tenant: str) -> Iterator[Log]:
    last: str | None = None
    while True:
        try:
            page = store.threads(tenant, limit=_PAGE, after=last)
        except Corrupted as error:
            yield Log(None, None, error)
            return
        if not page:
            return
        yield from (Log(info.key) for info in page)
        last = page[-1].key.thread


def _files(store: Store, tenant: str) -> Iterator[Log]:
    from milecastle.stores.jsonl import JsonlStore
    from milecastle.stores.jsonl.listing import SUFFIX
    from milecastle.stores.jsonl.names import file_name

    if not isinstance(store, JsonlStore):
        return
    folder = store.root / "threads" / file_name(tenant)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            key = _key_of(path)
        except (Corrupted, FormatTooNew) as error:
            yield Log(None, path, error)
            continue
        if key is not None and store.path_of(key) == path:
            yield Log(key, path)


def _key_of(path: Path) -> ThreadKey | None:
    """Whose log a file is, by its first line; ``None`` if it is empty."""
    import os

    from milecastle.stores.jsonl import files
    from milecastle.stores.jsonl.lines import ROOT_CHECK, BrokenLine, lines
    from milecastle.stores.jsonl.opening import broken, open_header

    fd = files.open_log(path)
    try:
        first = next(lines(fd, 0, os.fstat(fd).st_size, ROOT_CHECK), None)
    except BrokenLine as error:
        raise broken(path, error, number=1) from None
    finally:
        os.close(fd)
    if first is None:
        return None
    header = open_header(path, first)
    return ThreadKey(header.tenant, header.thread)


def page_damage(store: Store) -> list[Damage]:
    """What SQLite itself finds wrong with the pages of its file."""
    from milecastle.stores.sqlite import SqliteStore

    if not isinstance(store, SqliteStore):
        return []
    import sqlite3
    from contextlib import closing

    try:
        place = Path(store.path).as_uri()
        with closing(sqlite3.connect(f"{place}?mode=ro", uri=True)) as connection:
            said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except sqlite3.Error as error:
        said = [str(error)]
    return [
        Damage(thread=None, place=store.path, problem=line, code=Corrupted.code)
        for line in said
        if line != "ok"
    ]


def damage_of(log: Log, error: MilecastleError) -> Damage:
    """An error as a line of the report."""
    place = error.place if isinstance(error, Corrupted) else str(log.path or "the store")
    return Damage(
        thread=log.key.thread if log.key else None,
        place=place,
        problem=error.message.removesuffix(f" at {place}"),
        code=error.code,
    )
