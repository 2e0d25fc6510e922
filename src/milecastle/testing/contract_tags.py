"""Clauses on tags, for stores listing threads by tag; others skip them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec.structs
import pytest

from milecastle.errors import Conflict, Unavailable
from milecastle.model.checkpoint import DELTA, ROLLUP
from milecastle.model.run import ThreadInfo
from milecastle.model.tags import MAX_TAG_BYTES, TagChange
from milecastle.ports.store import Store
from milecastle.ports.tags import Tags
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import HARD_IDS, Writer, a_key

HARD_TAGS = tuple(tag for tag in HARD_IDS if len(tag.encode()) <= MAX_TAG_BYTES)


def tags_of(store: Store) -> Tags:
    if store.tags is None:
        pytest.skip("this store has no tags")
    return store.tags


def tagged(
    store: Store, thread: str, *tags: str, number: int = 1, tenant: str = "tenant"
) -> Writer:
    writer = Writer(a_key(thread, tenant), number)
    writer.append(store, source="input", runs=(writer.run,), tags=TagChange(add=tags))
    return writer


def change(
    store: Store, writer: Writer, add: Sequence[str] = (), remove: Sequence[str] = ()
) -> None:
    store.commit(writer.batch(tags=TagChange(tuple(add), tuple(remove))))


def names(found: Sequence[ThreadInfo]) -> list[str]:
    return [info.key.thread for info in found]


class TagClauses(ContractHooks):
    """Rule 14."""

    def test_tags_come_with_the_commit_of_a_run(self, store: Store) -> None:
        # Rule 14: they are read by thread, and the thread is found by each of them.
        tags = tags_of(store)
        writer = tagged(store, "a", "blue", "red")
        assert dict(tags.of("tenant", ["a", "b"])) == {"a": ("blue", "red")}
        for tag in ("blue", "red"):
            assert list(tags.threads("tenant", tag)) == [store.thread(writer.key)]
        assert list(tags.threads("tenant", "green")) == []

    def test_tags_are_added_and_removed(self, store: Store) -> None:
        # Rule 14: one that is there, or is not there, makes no difference.
        tags = tags_of(store)
        writer = tagged(store, "a", "blue")
        line = store.thread(writer.key)
        change(store, writer, ["red", "blue"], ["green"])
        assert dict(tags.of("tenant", ["a"])) == {"a": ("blue", "red")}
        change(store, writer, ["green"], ["blue"])
        assert dict(tags.of("tenant", ["a"])) == {"a": ("green", "red")}
        assert names(tags.threads("tenant", "blue")) == []
        assert names(tags.threads("tenant", "green")) == ["a"]
        change(store, writer, [], ["green", "red"])
        assert dict(tags.of("tenant", ["a"])) == {}
        assert names(tags.threads("tenant", "red")) == []
        assert store.thread(writer.key) == line

    def test_nothing_else_changes_tags(self, store: Store) -> None:
        # Rule 14: not a step, not a line, not pruning.
        tags = tags_of(store)
        writer = tagged(store, "a", "blue").write(store, (DELTA, ROLLUP, DELTA))
        writer.prune(store, 3)
        ended = msgspec.structs.replace(writer.run, status="completed", ended_at=9)
        store.commit(writer.batch(runs=(ended,)))
        assert dict(tags.of("tenant", ["a"])) == {"a": ("blue",)}
        assert [info.status for info in tags.threads("tenant", "blue")] == ["completed"]

    def test_tagged_threads_are_listed_by_code_point(self, store: Store) -> None:
        # Rule 9: from above ``after``, as many as asked for, and none that lacks the tag.
        tags = tags_of(store)
        for number, thread in enumerate(("b", "a", "Z", "\u00e9", "c"), 1):
            tagged(store, thread, *(() if thread == "b" else ("blue",)), number=number)
        assert names(tags.threads("tenant", "blue")) == ["Z", "a", "c", "\u00e9"]
        assert names(tags.threads("tenant", "blue", limit=2)) == ["Z", "a"]
        assert names(tags.threads("tenant", "blue", limit=2, after="a")) == ["c", "\u00e9"]
        assert names(tags.threads("tenant", "blue", after="aa")) == ["c", "\u00e9"]
        assert names(tags.threads("tenant", "blue", limit=-1)) == []
        assert len(tags.threads("tenant", "blue", limit=2**70)) == 4

    def test_tags_are_compared_by_code_point(self, store: Store) -> None:
        # Rule 5: nothing is folded, normalised or cut off; what cannot exist is not found.
        tags = tags_of(store)
        for number, tag in enumerate(HARD_TAGS, 1):
            tagged(store, f"{number:03}", tag, number=number)
        for number, tag in enumerate(HARD_TAGS, 1):
            assert names(tags.threads("tenant", tag)) == [f"{number:03}"]
            assert dict(tags.of("tenant", [f"{number:03}"])) == {f"{number:03}": (tag,)}
        for impossible in ("", "a\0b", "\ud800", "x" * 10_000):
            assert names(tags.threads("tenant", impossible)) == []
            assert names(tags.threads(impossible, "a")) == []
            assert dict(tags.of("tenant", [impossible])) == {}
        assert dict(tags.of("tenant", [])) == {}

    def test_tags_belong_to_one_tenant(self, store: Store) -> None:
        # Rule 5: a thread of the same name, and a tag of the same name, of another are others.
        tags = tags_of(store)
        ours = tagged(store, "a", "blue", tenant="ours")
        tagged(store, "a", "red", number=2, tenant="theirs")
        change(store, ours, ["green"])
        assert dict(tags.of("theirs", ["a"])) == {"a": ("red",)}
        assert dict(tags.of("nobody", ["a"])) == {}
        assert names(tags.threads("theirs", "blue")) == []
        assert names(tags.threads("ours", "blue")) == ["a"]
        store.delete(ours.key)
        assert dict(tags.of("theirs", ["a"])) == {"a": ("red",)}

    def test_a_refused_batch_changes_no_tag(self, store: Store) -> None:
        # Rule 1: the fence is that of every batch.
        tags = tags_of(store)
        writer = tagged(store, "a", "blue")
        outdated = writer.batch(tags=TagChange(("red",), ("blue",)))
        writer.append(store)
        with pytest.raises(Conflict):
            store.commit(outdated)
        assert dict(tags.of("tenant", ["a"])) == {"a": ("blue",)}
        assert names(tags.threads("tenant", "red")) == []

    def test_tags_outlast_a_crash(self, store: Store) -> None:
        # Rule 3.
        tags_of(store)
        change(store, tagged(store, "a", "blue", "red"), ["green"], ["red"])
        with self.reopened(store) as found:
            again = tags_of(found)
            assert dict(again.of("tenant", ["a"])) == {"a": ("blue", "green")}
            assert names(again.threads("tenant", "green")) == ["a"]

    def test_deleting_removes_tags(self, store: Store) -> None:
        # Rule 10: a thread that is created again under this name has none of them.
        tags = tags_of(store)
        store.delete(tagged(store, "a", "blue").key)
        assert dict(tags.of("tenant", ["a"])) == {}
        assert names(tags.threads("tenant", "blue")) == []
        Writer(a_key("a"), 2).begin(store)
        assert dict(tags.of("tenant", ["a"])) == {}
        assert names(tags.threads("tenant", "blue")) == []

    def test_a_thread_without_a_line_gets_no_tags(self, store: Store) -> None:
        # Rule 14: neither now, nor when it has one.
        tags = tags_of(store)
        writer = Writer(a_key("a"))
        change(store, writer, ["blue"])
        writer.append(store)
        change(store, writer, ["blue"])
        assert dict(tags.of("tenant", ["a"])) == {}
        store.commit(writer.batch(runs=(writer.run,)))
        assert dict(tags.of("tenant", ["a"])) == {}
        assert names(tags.threads("tenant", "blue")) == []
        change(store, writer, ["blue"])
        assert names(tags.threads("tenant", "blue")) == ["a"]

    def test_a_closed_store_lists_no_tags(self, store: Store) -> None:
        # Rule 12.
        tags = tags_of(store)
        tagged(store, "a", "blue")
        store.close()
        with pytest.raises(Unavailable):
            tags.of("tenant", ["a"])
        with pytest.raises(Unavailable):
            tags.threads("tenant", "blue")
