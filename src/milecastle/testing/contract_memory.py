"""The contract of long-term memory: for every store that has items beside its threads.

Fill the hooks and give the class a name that pytest collects::

    class TestMemoryOfMyStore(MemoryContract):
        def open_store(self) -> Store:
            return MyStore(...)

        def reopen(self, store: Store) -> Store:
            return MyStore(...)  # on the same data, as after a crash

        def dump(self, store: Store) -> bytes:
            return ...  # all bytes of the tables of memory

Each test names the rule of ``milecastle.ports.memory`` that it checks.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier
from typing import Any

import msgspec.structs
import pytest

from milecastle.errors import Conflict, MemoryChanged, StoreError, Unavailable
from milecastle.model.checkpoint import DELTA, SNAPSHOT
from milecastle.model.keys import MAX_ID_BYTES
from milecastle.model.memory import MOST_PATH, MemoryWrite, StoredItem, namespace_of, path_of
from milecastle.ports.memory import MemoryItems
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import Writer, a_key

TENANT = "tenant"
OTHERS = ("tenan", "tenant2", "Tenant", "a", "z")
PATH = path_of(("users", "u7", "facts"))
SHORT = 200_000
"""A time that is over soon, in microseconds."""
_LETTERS = (
    *("a", "b", "A", "B", ".", "%", "_", "*", "\\", "\n", "\u00e9", "e\u0301", " ", "~", "/"),
    *(":", "\x01", "\x7f", "\uffff", "\U0010ffff", "\u00df", "ss", "\u0130", "i"),
)
_MEETINGS = 20


def items_of(store: Store) -> MemoryItems:
    assert store.memory is not None, "the store has no memory"
    return store.memory


def a_write(key: str = "tea", value: bytes | None = b"likes tea", **changes: Any) -> MemoryWrite:
    given: dict[str, Any] = {"path": PATH, "key": key, "value": value, **changes}
    return MemoryWrite(**given)


def put(store: Store, key: str = "tea", tenant: str = TENANT, **changes: Any) -> None:
    items_of(store).write(tenant, [a_write(key, **changes)])


def keys(found: Sequence[StoredItem]) -> list[str]:
    return [item.key for item in found]


def version(store: Store, key: str = "tea", tenant: str = TENANT) -> int:
    found = items_of(store).get(tenant, PATH, key)
    return found.version if found else 0


def found_anywhere(store: Store, key: str, tenant: str = TENANT) -> list[str]:
    """The reading calls that find an item, or its path."""
    items, word = items_of(store), ["word"]
    answers: dict[str, Any] = {
        "get": items.get(tenant, PATH, key) is not None,
        "scan": key in keys(items.scan(tenant, b"", limit=99)),
        "paths": PATH in items.paths(tenant, b"", limit=99),
        "words": key in keys(items.with_words(tenant, b"", word, limit=99)),
    }
    return [name for name, is_found in answers.items() if is_found]


ANYWHERE = ["get", "scan", "paths", "words"]


class MemoryContract(ContractHooks):
    """Every clause on long-term memory, for one store. Needs ``open_store`` and ``reopen``."""

    @abstractmethod
    def dump(self, store: Store) -> bytes:
        """All bytes in a store's tables for memory, in any form."""

    def wait(self, seconds: float) -> None:
        """Let the store's clock move on."""
        time.sleep(seconds)

    def test_an_item_is_returned_as_it_was_written(self, store: Store) -> None:
        # Rule 4: every field, also after the store is opened again.
        write = a_write(
            value=bytes(range(256)),
            subject="u7",
            words=("likes", "tea"),
            vectors=b"\0\1" * 8,
            model="m:4",
            ttl=10**12,
        )
        items_of(store).write(TENANT, [write])
        writer = Writer(a_key("thread", TENANT))
        writer.append(store, memory=(a_write("milk"),))
        store = self.reopen(store)
        found = items_of(store).get(TENANT, PATH, "tea")
        assert found is not None
        for name in ("path", "key", "value", "subject", "words", "vectors", "model", "ttl"):
            assert getattr(found, name) == getattr(write, name), name
        assert (found.version, found.thread, found.seq) == (1, "", 0)
        assert found.created_at == found.updated_at > 0
        assert found.expires_at == found.updated_at + 10**12
        milk = items_of(store).get(TENANT, PATH, "milk")
        assert milk is not None
        assert (milk.thread, milk.seq, milk.ttl, milk.expires_at) == ("thread", 1, None, None)

    def test_a_prefix_finds_its_labels_and_no_others(self, store: Store) -> None:
        # Rule 1: for labels that text prefixes, wildcards, folding and normalising confuse.
        rng = random.Random(7)  # noqa: S311 - the same labels each time

        def label() -> str:
            return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 2)))

        spaces = sorted({tuple(label() for _ in range(rng.randint(1, 3))) for _ in range(400)})
        items = items_of(store)
        for first in range(0, len(spaces), 50):
            writes = [a_write("k", path=path_of(space)) for space in spaces[first : first + 50]]
            items.write(TENANT, writes)
        for space in spaces[::9]:
            assert items.get(TENANT, path_of(space), "k") is not None
            assert items.get(TENANT, path_of(space), "K") is None
        prefixes = [*rng.sample(spaces, 60), *(space[:1] for space in spaces[:60]), ()]
        for prefix in prefixes:
            wanted = {space for space in spaces if space[: len(prefix)] == prefix}
            under = path_of(prefix, least=0)
            scanned = items.scan(TENANT, under, limit=999)
            assert {namespace_of(item.path) for item in scanned} == wanted
            assert {namespace_of(path) for path in items.paths(TENANT, under, limit=999)} == wanted

    def test_tenants_are_apart_in_every_call(self, store: Store) -> None:
        # Rule 2: also in limits, words, erasing and sweeping.
        for number, tenant in enumerate(OTHERS):
            put(store, f"other{number}", tenant, words=("word",), subject="u7")
            assert found_anywhere(store, f"other{number}") == []
            assert found_anywhere(store, f"other{number}", tenant) == ANYWHERE
        assert found_anywhere(store, "tea") == []
        put(store, words=("word",), subject="u7")
        items = items_of(store)
        assert keys(items.scan(TENANT, b"", limit=1)) == ["tea"]
        assert keys(items.with_words(TENANT, b"", ["word"], limit=1)) == ["tea"]
        assert list(items.paths(TENANT, b"", limit=1)) == [PATH]
        items.touch("z", [(PATH, "tea")])
        items.write("z", [a_write("tea", None)])
        assert items.erase("nobody", "u7") == 0
        assert items.erase("z", "u7") == 1
        assert found_anywhere(store, "tea") == ANYWHERE

    def test_memory_is_written_with_its_batch_or_not_at_all(self, store: Store) -> None:
        # Rule 3: a writer that is too late leaves nothing, whatever it writes beside.
        writer = Writer(a_key("thread", TENANT))
        writer.append(store, memory=(a_write(),), runs=(writer.run,))
        writer.append(store, memory=(a_write(),))
        assert version(store) == 2
        late = Writer(writer.key, 2)
        for _ in range(2):  # of a thread that it takes for new, and of one that it has read
            for parts in ({}, {"runs": (late.run,)}):
                batch = late.batch(late.plan(), memory=(a_write(value=b"late"),), **parts)
                with pytest.raises(Conflict):
                    store.commit(batch)
            late.keep(late.plan())
        found = items_of(store).get(TENANT, PATH, "tea")
        assert found is not None
        assert (found.version, found.value, found.seq) == (2, b"likes tea", 2)
        writer.append(store, memory=(a_write("tea", None),))
        assert found_anywhere(self.reopen(store), "tea") == []

    def test_a_refused_batch_of_a_group_leaves_nothing(self, store: Store) -> None:
        # Rule 3: beside others that are written.
        if store.commit_many is None:
            pytest.skip("the store writes no groups")
        writers = [Writer(a_key(f"thread{number}", TENANT), number) for number in range(1, 5)]
        for writer in writers:
            writer.append(store)
        late = Writer(writers[1].key, 9)
        late.keep(writers[1].plan())
        batches = [
            one.batch(one.plan(), memory=(a_write(f"k{number}", words=("word",)),))
            for number, one in enumerate([writers[0], late, writers[2]])
        ]
        batches.append(writers[3].batch(writers[3].plan(), runs=(writers[3].run,)))
        refused = store.commit_many(batches)
        assert [isinstance(one, Conflict) for one in refused] == [False, True, False, False]
        assert [version(store, f"k{number}") for number in range(3)] == [1, 0, 1]
        assert keys(items_of(store).with_words(TENANT, b"", ["word"], limit=9)) == ["k0", "k2"]

    def test_versions_count_writes(self, store: Store) -> None:
        # Rule 4: those of batches and those alone; a deleted item begins again.
        writer = Writer(a_key("thread", TENANT))
        for number in range(1, 4):
            put(store, value=b"%d" % number)
            writer.append(store, memory=(a_write(), a_write("other")))
            assert version(store) == 2 * number
            assert version(store, "other") == number
        first = items_of(store).get(TENANT, PATH, "tea")
        assert first is not None
        assert first.created_at < first.updated_at
        put(store, value=None)
        assert version(store) == 0
        put(store)
        assert version(store) == 1

    def test_a_version_that_is_not_expected_refuses_all(self, store: Store) -> None:
        # Rule 4: the batch with its entry, the call with its other items. The writer continues.
        writer = Writer(a_key("thread", TENANT))
        writer.append(store)
        put(store)
        for expected in (0, 2):
            stale = (a_write("other"), a_write(if_version=expected))
            with pytest.raises(MemoryChanged) as refused:
                store.commit(writer.batch(writer.plan(), memory=stale))
            assert refused.value.place == (PATH, "tea")
            with pytest.raises(MemoryChanged):
                items_of(store).write(TENANT, stale)
        head = store.head(writer.key)
        assert head is not None
        assert head.seq == 1
        assert (version(store), version(store, "other")) == (1, 0)
        writer.append(store, memory=(a_write(if_version=1), a_write("other", if_version=0)))
        assert (version(store), version(store, "other")) == (2, 1)
        with pytest.raises(MemoryChanged):
            put(store, "nobody", if_version=1)

    def test_a_deletion_compares_the_version_too(self, store: Store) -> None:
        # Rule 4: alone, beside puts, and of an item that is not there.
        writer = Writer(a_key("thread", TENANT))
        writer.append(store)
        put(store)
        for expected in (0, 2):
            stale = (a_write("other"), a_write(value=None, if_version=expected))
            with pytest.raises(MemoryChanged) as refused:
                store.commit(writer.batch(writer.plan(), memory=stale))
            assert refused.value.place == (PATH, "tea")
            with pytest.raises(MemoryChanged):
                items_of(store).write(TENANT, stale)
        assert (version(store), version(store, "other")) == (1, 0)
        with pytest.raises(MemoryChanged):
            put(store, "nobody", value=None, if_version=1)
        writer.append(store, memory=(a_write("other"), a_write(value=None, if_version=1)))
        assert (version(store), version(store, "other")) == (0, 1)
        put(store, value=None, if_version=0)
        put(store, ttl=1)
        self.wait(0.01)
        put(store, value=None, if_version=0)

    def test_writers_in_other_orders_are_all_served(self, store: Store) -> None:
        # Rule 4: who writes the same items, and deletes some, waits, and is not refused.
        names = [f"k{number}" for number in range(20)]

        def write(order: Sequence[str], writer: Writer | None) -> None:
            half = len(order) // 2
            some = [a_write(key, b"x" if at < half else None) for at, key in enumerate(order)]
            if writer is None:
                items_of(store).write(TENANT, some)
            else:
                writer.append(store, memory=tuple(some))

        writers = [Writer(a_key(f"thread{number}", TENANT), number) for number in range(1, 5)]
        for writer in writers:
            writer.append(store)
        for meeting in range(_MEETINGS):
            each = [*writers] if meeting % 2 else [None] * 4
            orders = [names, names[::-1]] * 2
            calls = [partial(write, *pair) for pair in zip(orders, each, strict=True)]
            assert _at_once(calls) == 4
            assert {version(store, key) > 0 for key in names[:10]} in ({True}, {False})

    def test_the_longest_names_are_stored(self, store: Store) -> None:
        # Rule 1: of tenants, paths and keys, with all their indexes.
        tenant, key = "t" * MAX_ID_BYTES, "\U0010ffff" * (MAX_ID_BYTES // 4)
        path = path_of(("\U0010ffff" * 64,) * 5 + ("a" * 245,))
        assert len(path) >= MOST_PATH - 6
        write = a_write(key, path=path, subject="\U0010ffff" * 64, words=("\U0010ffff" * 64,))
        rng = random.Random(7)  # noqa: S311 - what does not compress
        hard = "".join(chr(rng.randint(0x20000, 0x2A000)) for _ in range(64))
        other = path_of((hard, *(hard[::-1], hard[3:] + hard[:3]) * 2, hard[:60]))
        items_of(store).write(tenant, [write, msgspec.structs.replace(write, path=other)])
        for one in (path, other):
            found = items_of(store).get(tenant, one, key)
            assert found is not None
            assert found.place == (one, key)
        assert len(items_of(store).with_words(tenant, b"", write.words, limit=9)) == 2
        assert items_of(store).erase(tenant, write.subject) == 2

    def test_one_of_eight_writers_gets_the_version(self, store: Store) -> None:
        # Rule 4: whoever compares and writes apart lets two in.
        for meeting in range(_MEETINGS):
            place = meeting // 2
            writers = [
                Writer(a_key(f"{meeting}.{number}", TENANT), number + 1) for number in range(8)
            ]

            def write(
                writer: Writer, place: int = place, expected: int = meeting % 2, m: int = meeting
            ) -> None:
                one = a_write(f"k{place}", if_version=expected)
                if m % 4 < 2:
                    writer.append(store, memory=(one,))
                else:
                    items_of(store).write(TENANT, [one])

            accepted = _at_once([partial(write, writer) for writer in writers])
            assert accepted == 1, f"{accepted} of 8 writers in meeting {meeting}"
            assert version(store, f"k{place}") == meeting % 2 + 1

    def test_an_item_whose_time_is_over_is_nowhere(self, store: Store) -> None:
        # Rule 5: before any sweep. Put again, it is new.
        put(store, ttl=SHORT, words=("word",))
        put(store, ttl=SHORT, words=("word",))
        put(store, "stays", path=path_of(("x",)), ttl=10**12)
        assert version(store) == 2
        self.wait(0.25)
        assert found_anywhere(store, "tea") == []
        with suppress(StoreError):
            put(store, if_version=2)
        assert version(store) == 0
        put(store, if_version=0)
        found = items_of(store).get(TENANT, PATH, "tea")
        assert found is not None
        assert (found.version, found.created_at) == (1, found.updated_at)
        assert found.expires_at is None

    def test_reading_extends_nothing_and_touch_does(self, store: Store) -> None:
        # Rule 5.
        put(store, ttl=SHORT * 5, words=("word",))
        put(store, "other", path=path_of(("x",)))
        first = items_of(store).get(TENANT, PATH, "tea")
        self.wait(0.05)
        assert found_anywhere(store, "tea") == ANYWHERE
        assert items_of(store).get(TENANT, PATH, "tea") == first
        items_of(store).touch(TENANT, [(PATH, "tea"), (path_of(("x",)), "other"), (PATH, "nobody")])
        later = items_of(store).get(TENANT, PATH, "tea")
        assert first is not None
        assert later is not None
        assert first.expires_at is not None
        assert (later.expires_at or 0) > first.expires_at
        assert msgspec.structs.replace(later, expires_at=first.expires_at) == first
        self.wait(1.05)
        items_of(store).touch(TENANT, [(PATH, "tea")])
        assert found_anywhere(store, "tea") == []
        assert items_of(store).get(TENANT, path_of(("x",)), "other") is not None

    def test_a_sweep_removes_what_is_over_and_nothing_fresh(self, store: Store) -> None:
        # Rule 6: also if an item is put again at the same moment.
        names = [f"k{number}" for number in range(5)]
        items_of(store).write(TENANT, [a_write(name, ttl=1) for name in names])
        put(store)
        self.wait(0.01)
        assert items_of(store).sweep(TENANT, limit=3) == 3
        assert items_of(store).sweep(TENANT, limit=9) == 2
        assert items_of(store).sweep(TENANT, limit=9) == 0
        assert version(store) == 1

        def sweep() -> object:
            return items_of(store).sweep(TENANT, limit=9)

        def again() -> None:
            put(store, "old", words=("word",))

        for meeting in range(_MEETINGS):
            put(store, "old", ttl=1, words=("word",))
            self.wait(0.001)
            assert _at_once([again, sweep] if meeting % 2 else [sweep, again]) == 2
            assert found_anywhere(store, "old") == ANYWHERE

    def test_limits_apply_last(self, store: Store) -> None:
        # Rule 7: after tenant, prefix and time; pages continue where one ended.
        for number in range(6):
            over: dict[str, Any] = {"ttl": 1} if number % 2 else {}
            put(store, f"k{number}", words=("word",), **over)
            put(store, f"a{number}", "a", words=("word",))
            put(store, f"b{number}", path=path_of(("a",)), words=("word",))
        self.wait(0.01)
        items = items_of(store)
        assert keys(items.scan(TENANT, PATH, limit=2)) == ["k0", "k2"]
        assert keys(items.scan(TENANT, PATH, after=(PATH, "k2"), limit=2)) == ["k4"]
        assert keys(items.scan(TENANT, PATH, after=(b"", ""), limit=9)) == ["k0", "k2", "k4"]
        assert keys(items.with_words(TENANT, PATH, ["word"], limit=2)) == ["k0", "k2"]
        for number in range(6):
            put(store, "k", path=path_of(("n", str(number))), ttl=1 if number < 3 else None)
        self.wait(0.01)
        under = path_of(("n",))
        first = items.paths(TENANT, under, limit=2)
        rest = items.paths(TENANT, under, after=first[-1], limit=2)
        assert [namespace_of(path)[1] for path in (*first, *rest)] == ["3", "4", "5"]

    def test_items_with_most_words_come_first(self, store: Store) -> None:
        # The order of ``with_words``: the same on every store.
        words = {"a": "x", "b": "x y", "c": "y z", "d": "x y z", "e": "w"}
        for key, own in words.items():
            put(store, key, words=tuple(own.split()))
        found = items_of(store).with_words(TENANT, b"", ["x", "y", "z"], limit=9)
        assert keys(found) == ["d", "b", "c", "a"]
        assert items_of(store).with_words(TENANT, b"", ["X"], limit=9) == []

    def test_replaced_and_deleted_items_leave_no_words(self, store: Store) -> None:
        # Rule 8: nothing finds them, and nothing of them stays.
        put(store, words=("former", "both"))
        put(store, words=("later", "both"))
        items = items_of(store)
        assert items.with_words(TENANT, b"", ["former"], limit=9) == []
        assert keys(items.with_words(TENANT, b"", ["both"], limit=9)) == ["tea"]
        assert b"former" not in self.dump(store)
        assert b"later" in self.dump(store)
        put(store, value=None)
        assert items.with_words(TENANT, b"", ["later", "both"], limit=9) == []
        assert b"later" not in self.dump(store)

    def test_erased_subjects_leave_nothing(self, store: Store) -> None:
        # Rule 9: neither values nor words nor vectors.
        own: dict[str, Any] = {
            "subject": "u7",
            "value": b"SECRET",
            "words": ("secretly",),
            "vectors": b"VECTOR!!",
        }
        for number in range(3):
            put(store, f"k{number}", **own)
        put(store, "other", subject="u8", words=("word",))
        assert b"SECRET" in self.dump(store)
        assert items_of(store).erase(TENANT, "u7") == 3
        dumped = self.dump(store)
        assert [one for one in (b"SECRET", b"secretly", b"VECTOR!!") if one in dumped] == []
        assert found_anywhere(store, "other") == ANYWHERE
        assert items_of(store).erase(TENANT, "u7") == 0

    def test_threads_go_and_memory_stays(self, store: Store) -> None:
        # Rule 10.
        writer = Writer(a_key("thread", TENANT))
        writer.append(store, memory=(a_write(),))
        writer.write(store, (DELTA, SNAPSHOT, DELTA, SNAPSHOT))
        assert writer.prune(store, 3) == 2
        assert version(store) == 1
        assert store.delete(writer.key)
        found = items_of(self.reopen(store)).get(TENANT, PATH, "tea")
        assert found is not None
        assert found.thread == "thread"

    def test_a_closed_store_has_no_memory(self, store: Store) -> None:
        # As for every other call.
        items = items_of(store)
        store.close()
        for call in (
            lambda: items.get(TENANT, PATH, "tea"),
            lambda: items.scan(TENANT, b"", limit=9),
            lambda: items.paths(TENANT, b"", limit=9),
            lambda: items.with_words(TENANT, b"", ["word"], limit=9),
            lambda: items.write(TENANT, [a_write()]),
            lambda: items.touch(TENANT, [(PATH, "tea")]),
            lambda: items.erase(TENANT, "u7"),
            lambda: items.sweep(TENANT, limit=9),
        ):
            with pytest.raises(Unavailable):
                call()


def memory_clauses() -> list[str]:
    return sorted(name for name in dir(MemoryContract) if name.startswith("test_"))


def _at_once(calls: Sequence[Callable[[], object]]) -> int:
    begin = Barrier(len(calls), timeout=60)

    def run(call: Callable[[], object]) -> bool:
        begin.wait()
        try:
            call()
        except (Conflict, MemoryChanged):
            return False
        return True

    with ThreadPoolExecutor(len(calls)) as pool:
        return sum(pool.map(run, calls))
