"""Stores that break a promise on long-term memory. ``MemoryContract`` must catch each of them."""

from __future__ import annotations

import fnmatch
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Any, ClassVar

import msgspec.structs

from milecastle.errors import Conflict, MemoryChanged, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.memory import ItemPlace, MemoryWrite, StoredItem, namespace_of
from milecastle.ports.fencing import memory_changed
from milecastle.ports.store import Batch, CommitMany
from milecastle.stores.memory.items import ItemChanges, MemoryStoreItems, StoredItems
from tests.broken_stores.store import BrokenStore

__all__ = ["BROKEN_MEMORIES", "BrokenMemory"]


class BrokenMemory(BrokenStore):
    """The memory store, with ways round the rules of long-term memory."""

    Own: ClassVar[type[StoredItems]] = StoredItems
    Calls: ClassVar[type[MemoryStoreItems]] = MemoryStoreItems

    def __init__(self, *, now: Callable[[], int] | None = None) -> None:
        super().__init__(now=now)
        self._items = self.Own(self._claims.now)

    @property
    def memory(self) -> MemoryStoreItems:
        return self.Calls(self._lock, self._items, self._check_open)

    def dump(self) -> bytes:
        """All of its items."""
        return repr(self._items.stored).encode()


class _Prefixes(StoredItems):
    def is_under(self, path: bytes, prefix: bytes) -> bool:
        raise NotImplementedError

    def under(self, tenant: str, prefix: bytes) -> Iterator[StoredItem]:
        for item in super().under(tenant, b""):
            if self.is_under(item.path, prefix):
                yield item


_A_PREFIX = ("test_a_prefix_finds_its_labels_and_no_others",)


class TextPrefix(BrokenMemory, caught_by=_A_PREFIX):
    """Joins labels by dots, and compares the beginning of the text."""

    class Own(_Prefixes):
        def is_under(self, path: bytes, prefix: bytes) -> bool:
            return ".".join(namespace_of(path)).startswith(".".join(namespace_of(prefix)))


class Wildcards(BrokenMemory, caught_by=_A_PREFIX):
    """Takes characters of a label for wildcards, as LIKE does."""

    class Own(_Prefixes):
        def is_under(self, path: bytes, prefix: bytes) -> bool:
            pattern = prefix.decode().replace("%", "*").replace("_", "?") + "*"
            return fnmatch.fnmatchcase(path.decode(), pattern)


class FoldsCase(BrokenMemory, caught_by=_A_PREFIX):
    """Compares labels without case."""

    class Own(_Prefixes):
        def is_under(self, path: bytes, prefix: bytes) -> bool:
            return path.decode().lower().startswith(prefix.decode().lower())


class Normalises(BrokenMemory, caught_by=_A_PREFIX):
    """Takes a composed letter for a decomposed one."""

    class Own(_Prefixes):
        def is_under(self, path: bytes, prefix: bytes) -> bool:
            own, other = (unicodedata.normalize("NFC", one.decode()) for one in (path, prefix))
            return own.startswith(other)


_TENANTS = ("test_tenants_are_apart_in_every_call",)


class SharedWords(BrokenMemory, caught_by=_TENANTS):
    """Has one index of words for all tenants."""

    class Calls(MemoryStoreItems):
        def with_words(
            self, tenant: str, under: bytes, words: Sequence[str], *, limit: int
        ) -> Sequence[StoredItem]:
            every = {own for own, _ in self._items.stored}
            found = [
                super(SharedWords.Calls, self).with_words(own, under, words, limit=limit)
                for own in sorted(every)
            ]
            return [item for items in found for item in items][:limit]


class LimitBeforeTenant(BrokenMemory, caught_by=_TENANTS):
    """Reads as many items as wanted, and then drops those of other tenants."""

    class Calls(MemoryStoreItems):
        def scan(
            self, tenant: str, under: bytes, *, after: ItemPlace | None = None, limit: int
        ) -> Sequence[StoredItem]:
            first = set(sorted(self._items.stored)[:limit])
            found = super().scan(tenant, under, after=after, limit=limit)
            return [item for item in found if (tenant, item.place) in first]


class ErasesAllTenants(BrokenMemory, caught_by=_TENANTS):
    """Erases a subject of the same name in every tenant."""

    class Calls(MemoryStoreItems):
        def erase(self, tenant: str, subject: str) -> int:
            others = {own for own, _ in self._items.stored} - {tenant}
            for other in others:
                super().erase(other, subject)
            return super().erase(tenant, subject)


class WritesBeforeTheFence(
    BrokenMemory,
    caught_by=(
        "test_memory_is_written_with_its_batch_or_not_at_all",
        "test_a_version_that_is_not_expected_refuses_all",
    ),
):
    """Writes memory, and then looks whether the batch is accepted."""

    def commit(self, batch: Batch) -> None:
        rest = msgspec.structs.replace(batch, memory=())
        found: StoreError | None = None
        for write in batch.memory:
            try:
                self.memory.write(batch.key.tenant, [write])
            except MemoryChanged as changed:
                found = changed
        if found is not None:
            raise found
        super().commit(rest)


class ForgetsTheGroup(BrokenMemory, caught_by=("test_a_refused_batch_of_a_group_leaves_nothing",)):
    """Writes the memory of all batches of a group, also of those that it refuses."""

    @property
    def commit_many(self) -> CommitMany:
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        outcomes: list[StoreError | None] = []
        for batch in batches:
            try:
                self.commit(batch)
                outcomes.append(None)
            except Conflict as conflict:
                self.memory.write(batch.key.tenant, batch.memory)
                outcomes.append(conflict)
        return outcomes


class CountsNothing(BrokenMemory, caught_by=("test_versions_count_writes",)):
    """Gives every item the version 1."""

    class Own(StoredItems):
        def changes(
            self, tenant: str, writes: Sequence[MemoryWrite], thread: str = "", seq: int = 0
        ) -> ItemChanges:
            found = super().changes(tenant, writes, thread, seq)
            return {
                place: item and msgspec.structs.replace(item, version=1)
                for place, item in found.items()
            }


class ReadsThenWrites(BrokenMemory, caught_by=("test_one_of_eight_writers_gets_the_version",)):
    """Compares the version, and writes later without comparing it again."""

    def _compared(self, tenant: str, writes: Sequence[MemoryWrite]) -> tuple[MemoryWrite, ...]:
        for write in writes:
            found = self.memory.get(tenant, *write.place)
            if write.if_version not in (None, found.version if found else 0):
                raise memory_changed(write)
        time.sleep(0.01)
        return tuple(msgspec.structs.replace(write, if_version=None) for write in writes)

    def commit(self, batch: Batch) -> None:
        memory = self._compared(batch.key.tenant, batch.memory)
        super().commit(msgspec.structs.replace(batch, memory=memory))


class DeletesAnyVersion(BrokenMemory, caught_by=("test_a_deletion_compares_the_version_too",)):
    """Compares the versions of puts only."""

    class Own(StoredItems):
        def changes(
            self, tenant: str, writes: Sequence[MemoryWrite], thread: str = "", seq: int = 0
        ) -> ItemChanges:
            free = [
                msgspec.structs.replace(write, if_version=None) if write.value is None else write
                for write in writes
            ]
            return super().changes(tenant, free, thread, seq)


class LocksInTheGivenOrder(
    BrokenMemory, caught_by=("test_writers_in_other_orders_are_all_served",)
):
    """Holds one item after the other, and gives up if another writer has the next one."""

    held: ClassVar[dict[ItemPlace, Lock]] = defaultdict(Lock)

    class Calls(MemoryStoreItems):
        def write(self, tenant: str, writes: Sequence[MemoryWrite]) -> None:
            with ExitStack() as stack:
                for write in writes:
                    lock = LocksInTheGivenOrder.held[write.place]
                    if not lock.acquire(timeout=0.05):
                        raise Unavailable("another writer has the item")
                    stack.callback(lock.release)
                    time.sleep(0.001)
                super().write(tenant, writes)


class ShortNames(BrokenMemory, caught_by=("test_the_longest_names_are_stored",)):
    """Refuses a path that is longer than its index takes."""

    class Calls(MemoryStoreItems):
        def write(self, tenant: str, writes: Sequence[MemoryWrite]) -> None:
            if any(len(write.path) > 1024 for write in writes):
                raise StoreError("the path is longer than a row of the index")
            super().write(tenant, writes)


class HidesOnlyInGet(BrokenMemory, caught_by=("test_an_item_whose_time_is_over_is_nowhere",)):
    """Lists items whose time is over."""

    class Own(StoredItems):
        def under(self, tenant: str, prefix: bytes) -> Iterator[StoredItem]:
            for (own, place), item in sorted(self.stored.items(), key=lambda one: one[0]):
                if own == tenant and place[0].startswith(prefix):
                    yield item


class GoesOnCounting(BrokenMemory, caught_by=("test_an_item_whose_time_is_over_is_nowhere",)):
    """Continues the version of an item whose time was over."""

    class Own(StoredItems):
        def get(self, tenant: str, place: ItemPlace) -> StoredItem | None:
            return self.stored.get((tenant, place))


class ReadingExtends(BrokenMemory, caught_by=("test_reading_extends_nothing_and_touch_does",)):
    """Lets the time of an item begin again whenever it is read."""

    class Calls(MemoryStoreItems):
        def get(self, tenant: str, path: bytes, key: str) -> StoredItem | None:
            super().touch(tenant, [(path, key)])
            return super().get(tenant, path, key)


class TouchesNothing(BrokenMemory, caught_by=("test_reading_extends_nothing_and_touch_does",)):
    """Does not let a time begin again."""

    class Calls(MemoryStoreItems):
        def touch(self, tenant: str, places: Sequence[ItemPlace]) -> None:
            return None


class SweepsByName(
    BrokenMemory, caught_by=("test_a_sweep_removes_what_is_over_and_nothing_fresh",)
):
    """Notes which items are over, and later removes what has their names."""

    class Calls(MemoryStoreItems):
        def sweep(self, tenant: str, *, limit: int) -> int:
            with self._lock:
                over = [
                    place
                    for place, item in self._items.stored.items()
                    if place[0] == tenant and not item.is_live(self._items.now())
                ][:limit]
            time.sleep(0.01)
            with self._lock:
                self._items.apply(dict.fromkeys(over))
            return len(over)


class LimitBeforeTime(BrokenMemory, caught_by=("test_limits_apply_last",)):
    """Drops items whose time is over after it has read as many as wanted."""

    class Calls(MemoryStoreItems):
        def scan(
            self, tenant: str, under: bytes, *, after: ItemPlace | None = None, limit: int
        ) -> Sequence[StoredItem]:
            found = [
                item
                for (own, place), item in sorted(self._items.stored.items(), key=lambda one: one[0])
                if own == tenant and place[0].startswith(under) and (not after or place > after)
            ]
            return [item for item in found[:limit] if item.is_live(self._items.now())]


class RanksByName(BrokenMemory, caught_by=("test_items_with_most_words_come_first",)):
    """Gives items with some words by their names."""

    class Calls(MemoryStoreItems):
        def with_words(
            self, tenant: str, under: bytes, words: Sequence[str], *, limit: int
        ) -> Sequence[StoredItem]:
            found = super().with_words(tenant, under, words, limit=999)
            return sorted(found, key=lambda item: item.place)[:limit]


class _WordIndex(StoredItems):
    """Has an index of words beside the items, which nothing leaves."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__(now)
        self.index: dict[str, set[tuple[str, ItemPlace]]] = {}

    def apply(self, changes: ItemChanges) -> None:
        super().apply(changes)
        for place, item in changes.items():
            for word in item.words if item else ():
                self.index.setdefault(word, set()).add(place)


class LeavesWords(
    BrokenMemory,
    caught_by=(
        "test_replaced_and_deleted_items_leave_no_words",
        "test_erased_subjects_leave_nothing",
    ),
):
    """Leaves the words of replaced, deleted and erased items in their index."""

    Own = _WordIndex

    def dump(self) -> bytes:
        assert isinstance(self._items, _WordIndex)
        return super().dump() + repr(self._items.index).encode()


class ErasesOne(BrokenMemory, caught_by=("test_erased_subjects_leave_nothing",)):
    """Erases the values of a subject and keeps their vectors."""

    class Calls(MemoryStoreItems):
        def erase(self, tenant: str, subject: str) -> int:
            stored, count = self._items.stored, 0
            for place, item in list(stored.items()):
                if place[0] == tenant and item.subject == subject and item.value:
                    stored[place] = msgspec.structs.replace(item, value=b"", words=())
                    count += 1
            return count


class GoesWithItsThread(BrokenMemory, caught_by=("test_threads_go_and_memory_stays",)):
    """Deletes the items that a thread wrote with the thread."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        for place, item in list(self._items.stored.items()):
            if place[0] == key.tenant and item.thread == key.thread:
                del self._items.stored[place]
        return super().delete(key, head=head, head_id=head_id)


class LosesFields(BrokenMemory, caught_by=("test_an_item_is_returned_as_it_was_written",)):
    """Does not say which thread wrote an item."""

    class Own(StoredItems):
        def changes(
            self, tenant: str, writes: Sequence[MemoryWrite], thread: str = "", seq: int = 0
        ) -> ItemChanges:
            return super().changes(tenant, writes)


class AnswersWhenClosed(BrokenMemory, caught_by=("test_a_closed_store_has_no_memory",)):
    """Answers from its memory after it was closed."""

    @property
    def memory(self) -> MemoryStoreItems:
        return MemoryStoreItems(self._lock, self._items, lambda: None)


def _memories() -> list[type[BrokenMemory]]:
    known: list[Any] = BrokenStore.known
    return [store for store in known if issubclass(store, BrokenMemory)]


BROKEN_MEMORIES = _memories()
