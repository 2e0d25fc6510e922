"""Archived checkpoints in a store that was opened without its object storage.

A reader that finds nothing below the oldest row says so: it is refused like one of a large value.
"""

from __future__ import annotations

from collections.abc import Iterator

from milecastle.codec.envelope import names_archive
from milecastle.errors import NoObjects
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.reading import StoreReader


def refuse_archived(store: StoreReader, key: ThreadKey, seq: int = 1) -> None:
    """Raise ``NoObjects`` if the checkpoint at a seq is archived, and cannot be read."""
    oldest = next(iter(store.entries(key, limit=1)), None)
    if oldest is not None and seq < oldest.seq and names_archive(oldest.payload):
        raise NoObjects(
            f"checkpoints of thread '{key.thread}' below seq {oldest.seq} are archived, and the "
            "store was opened without its object storage: pass the objects= that they were "
            "archived with, or set MILECASTLE_OBJECTS for the command line"
        )


def whole_history(
    store: StoreReader, key: ThreadKey, *, limit: int | None = None, before: int | None = None
) -> Iterator[Entry]:
    """``StoreReader.history``; ends with ``NoObjects`` if it leaves out archived checkpoints."""
    last, count = before, 0
    for entry in store.history(key, limit=limit, before=before):
        yield entry
        last, count = entry.seq, count + 1
    if last is not None and last > 1 and (limit is None or count < limit):
        refuse_archived(store, key, last - 1)


def readable_history(
    store: StoreReader, key: ThreadKey, *, limit: int | None, before: int | None = None
) -> tuple[list[Entry], NoObjects | None]:
    """Entries for a list, and the error for those that are missing at its end."""
    found: list[Entry] = []
    try:
        for entry in whole_history(store, key, limit=limit, before=before):
            found.append(entry)  # noqa: PERF402
    except NoObjects as error:
        return found, error
    return found, None
