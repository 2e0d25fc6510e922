"""Long-term memory in memory: all tenants' items, under the store's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

import msgspec.structs

from milecastle.model.keys import checks_keys
from milecastle.model.memory import ItemPlace, MemoryWrite, StoredItem
from milecastle.ports.fencing import check_version

TenantPlace = tuple[str, ItemPlace]
ItemChanges = Mapping[TenantPlace, StoredItem | None]
"""Items as they will be; ``None`` for those that are removed."""


class StoredItems:
    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.stored: dict[TenantPlace, StoredItem] = {}

    def get(self, tenant: str, place: ItemPlace) -> StoredItem | None:
        found = self.stored.get((tenant, place))
        return found if found and found.is_live(self.now()) else None

    def under(self, tenant: str, prefix: bytes) -> Iterator[StoredItem]:
        for own, place in sorted(self.stored):
            if own == tenant and place[0].startswith(prefix):
                found = self.get(tenant, place)
                if found is not None:
                    yield found

    def changes(
        self, tenant: str, writes: Sequence[MemoryWrite], thread: str = "", seq: int = 0
    ) -> ItemChanges:
        found: dict[TenantPlace, StoredItem | None] = {}
        now = self.now()
        for write in writes:
            old = self.get(tenant, write.place)
            check_version(write, old)
            found[tenant, write.place] = write.result(old, now, thread, seq)
        return found

    def apply(self, changes: ItemChanges) -> None:
        for place, item in changes.items():
            if item is None:
                self.stored.pop(place, None)
            else:
                self.stored[place] = item


@checks_keys
class MemoryStoreItems:
    def __init__(self, lock: Lock, items: StoredItems, check: Callable[[], None]) -> None:
        self._lock = lock
        self._items = items
        self._check = check

    def get(self, tenant: str, path: bytes, key: str) -> StoredItem | None:
        with self._lock:
            self._check()
            return self._items.get(tenant, (path, key))

    def scan(
        self, tenant: str, under: bytes, *, after: ItemPlace | None = None, limit: int
    ) -> Sequence[StoredItem]:
        with self._lock:
            self._check()
            found = [
                item
                for item in self._items.under(tenant, under)
                if after is None or item.place > after
            ]
        return found[: max(0, limit)]

    def paths(
        self, tenant: str, under: bytes, *, after: bytes = b"", limit: int
    ) -> Sequence[bytes]:
        with self._lock:
            self._check()
            found = {item.path for item in self._items.under(tenant, under) if item.path > after}
        return sorted(found)[: max(0, limit)]

    def with_words(
        self, tenant: str, under: bytes, words: Sequence[str], *, limit: int
    ) -> Sequence[StoredItem]:
        wanted = {*words}
        with self._lock:
            self._check()
            found = [
                (-count, item.place, item)
                for item in self._items.under(tenant, under)
                if (count := len(wanted.intersection(item.words)))
            ]
        return [item for _, _, item in sorted(found)[: max(0, limit)]]

    def write(self, tenant: str, writes: Sequence[MemoryWrite]) -> None:
        with self._lock:
            self._check()
            self._items.apply(self._items.changes(tenant, writes))

    def touch(self, tenant: str, places: Sequence[ItemPlace]) -> None:
        with self._lock:
            self._check()
            now = self._items.now()
            for place in places:
                found = self._items.get(tenant, place)
                if found is not None and found.ttl is not None:
                    later = msgspec.structs.replace(found, expires_at=now + found.ttl)
                    self._items.stored[tenant, place] = later

    def erase(self, tenant: str, subject: str) -> int:
        with self._lock:
            self._check()
            found = [
                place
                for place, item in self._items.stored.items()
                if place[0] == tenant and item.subject == subject
            ]
            self._items.apply(dict.fromkeys(found))
        return len(found)

    def sweep(self, tenant: str, *, limit: int) -> int:
        with self._lock:
            self._check()
            found = [
                place
                for place, item in self._items.stored.items()
                if place[0] == tenant and not item.is_live(self._items.now())
            ][: max(0, limit)]
            self._items.apply(dict.fromkeys(found))
        return len(found)
