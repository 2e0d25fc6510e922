"""Lists and histories are read from the store's replica, if it has one."""

from __future__ import annotations

from typing import NamedTuple

from milecastle.model.keys import ThreadKey
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Store


class ReadSource(NamedTuple):
    """What a list is read from, and for how many seconds it may have been out of date."""

    store: StoreReader
    behind: float = 0.0


def source_of(store: Store, key: ThreadKey | None = None) -> ReadSource:
    """The replica, or the store itself; with ``key`` also if the replica lacks the thread."""
    replica = store.replica
    if replica is None:
        return ReadSource(store)
    behind = replica.behind()
    if behind and key is not None and replica.head(key) is None:
        return ReadSource(store)
    return ReadSource(replica, behind)


def behind_words(seconds: float) -> str:
    """A line for people; "" if the list is up to date."""
    if not seconds:
        return ""
    lag = "less than a second" if seconds < 1 else f"{seconds:,.0f} s"
    return f"read from a replica that is {lag} behind"
