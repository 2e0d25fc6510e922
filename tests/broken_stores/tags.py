"""Stores that break a promise on tags."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

import msgspec.structs

from milecastle.errors import Unavailable
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory.store import MemoryTags
from tests.broken_stores.store import BrokenStore


class TagsLater(BrokenStore, caught_by=("test_tags_come_with_the_commit_of_a_run",)):
    """Takes tags only from batches of their own."""

    def commit(self, batch: Batch) -> None:
        """Leave them out of a step."""
        super().commit(msgspec.structs.replace(batch, tags=None) if batch.entries else batch)


class OnlyAddsTags(BrokenStore, caught_by=("test_tags_are_added_and_removed",), seen_by_model=True):
    """A tag stays."""

    def commit(self, batch: Batch) -> None:
        """Remove nothing."""
        tags = TagChange(batch.tags.add) if batch.tags else None
        super().commit(msgspec.structs.replace(batch, tags=tags))


class ForgetsTagsOnALine(
    BrokenStore, caught_by=("test_nothing_else_changes_tags",), seen_by_model=True
):
    """The line is written without them."""

    def commit(self, batch: Batch) -> None:
        """Begin again with each line."""
        super().commit(batch)
        if batch.thread is not None and batch.tags is None:
            self._logs[batch.key].tags = ()


class ForgetsPrunedTags(
    BrokenStore, caught_by=("test_nothing_else_changes_tags",), seen_by_model=True
):
    """Writes the thread again without them."""

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
        """Drop the tags too."""
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self._logs[key].tags = ()
        return dropped


class ListsTaggedByTime(BrokenStore, caught_by=("test_tagged_threads_are_listed_by_code_point",)):
    """In the order in which they began."""

    class _Tags(MemoryTags):
        def threads(
            self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
        ) -> Sequence[ThreadInfo]:
            """Sort by start."""
            found = super().threads(tenant, tag, limit=limit, after=after)
            return sorted(found, key=lambda info: info.started_at)

    @property
    def tags(self) -> MemoryTags:
        return self._Tags(self._logs_of)


class NormalisesTags(BrokenStore, caught_by=("test_tags_are_compared_by_code_point",)):
    """What looks alike is alike."""

    class _Tags(MemoryTags):
        def threads(
            self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
        ) -> Sequence[ThreadInfo]:
            """Look for the composed form."""
            return super().threads(tenant, unicodedata.normalize("NFC", tag), limit=limit)

    @property
    def tags(self) -> MemoryTags:
        return self._Tags(self._logs_of)


class SharesTagsAmongTenants(
    BrokenStore, caught_by=("test_tags_belong_to_one_tenant",), seen_by_model=True
):
    """A name is a name."""

    @property
    def tags(self) -> MemoryTags:
        """Look in every tenant."""
        return MemoryTags(lambda _: sorted(self._logs.items()))


class TagsWithoutAFence(
    BrokenStore, caught_by=("test_a_refused_batch_changes_no_tag",), seen_by_model=True
):
    """Takes the tags before it looks at the head."""

    def commit(self, batch: Batch) -> None:
        """Write tags whatever the head is."""
        log = self._logs.get(batch.key)
        if batch.tags and log and log.info:
            log.tags = batch.tags.applied(log.tags)
        super().commit(batch)


class KeepsTagsInMemory(BrokenStore, caught_by=("test_tags_outlast_a_crash",), seen_by_model=True):
    """Tags are an index, and are lost with it."""

    def crashed(self) -> Store:
        """Lose them."""
        for log in self._logs.values():
            log.tags = ()
        return self


class LeavesTags(BrokenStore, caught_by=("test_deleting_removes_tags",), seen_by_model=True):
    """Puts them beside the thread, and forgets them there."""

    def __init__(self) -> None:
        """Remember the tags of what is gone."""
        super().__init__()
        self._left: dict[ThreadKey, tuple[str, ...]] = {}

    def commit(self, batch: Batch) -> None:
        """Give them to whoever has the name."""
        super().commit(batch)
        if batch.key in self._left and batch.key in self._logs:
            self._logs[batch.key].tags = self._left.pop(batch.key)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Remove the rest."""
        if key in self._logs:
            self._left[key] = self._logs[key].tags
        return super().delete(key, head=head, head_id=head_id)


class TagsAnyName(
    BrokenStore, caught_by=("test_a_thread_without_a_line_gets_no_tags",), seen_by_model=True
):
    """A row is a row."""

    def commit(self, batch: Batch) -> None:
        """Tag what is not listed."""
        super().commit(batch)
        log = self._logs[batch.key]
        if batch.tags and log.info is None:
            log.tags = batch.tags.applied(log.tags)


class ListsTagsWhenClosed(BrokenStore, caught_by=("test_a_closed_store_lists_no_tags",)):
    """Answers from what it remembers."""

    class _Tags(MemoryTags):
        def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
            """Find nothing, and say nothing."""
            try:
                return super().of(tenant, threads)
            except Unavailable:
                return {}

    @property
    def tags(self) -> MemoryTags:
        return self._Tags(self._logs_of)
