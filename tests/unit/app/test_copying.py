"""Copying: the target holds what the source holds, byte for byte, whatever came in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from milecastle import Conflict, InvalidRequest, Store, ThreadKey, copy_threads
from milecastle.errors import Unavailable
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Kind
from milecastle.model.run import RunRecord
from milecastle.ports.store import Batch, Chain
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from milecastle.testing.contract_claims import a_line
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import (
    HARD_IDS,
    Writer,
    a_failure,
    a_key,
    a_result,
    a_run,
    make_id,
)
from tests.every_store import EVERY_KIND, EVERY_PAIR, Stores

KEY = a_key("waves")
WAVES: tuple[Kind, ...] = (DELTA, DELTA, ROLLUP) * 3 + (DELTA, SNAPSHOT, DELTA, ROLLUP, DELTA)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


def a_full_thread(store: Store, key: ThreadKey = KEY) -> Writer:
    """A thread with every kind of entry, several runs and graphs, failures and results."""
    writer = Writer(key).begin(store).write(store, WAVES)
    writer.append(store, fingerprint="other", manifest=("other", b'{"nodes": ["\xc3\xa9"]}'))
    writer.append(store, at=3, source="fork", note="tried again", route=("research",))
    failed = msgspec.structs.replace(writer.run, status="failed", ended_at=9)
    store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id, node="n")))
    second = a_run(key, 2, previous_run_id=failed.run_id, metadata={"host": "h"}, retry_count=1)
    store.commit(writer.batch(runs=(second,), manifest=(second.fingerprint, b"\x00\xff")))
    store.commit(writer.batch(results=(a_result(writer.head, "one", b"\x00\xff" * 99),)))
    line = a_line(writer, due_at=2**53 + 1, worker="wall-4711")
    writer.append(store, source="takeover", thread=line)
    store.commit(writer.batch(results=(a_result(writer.head, "two"),)))
    return writer


def see(store: Store, key: ThreadKey = KEY) -> dict[str, Any]:
    manifests = [store.manifest(key, name) for name in ("3f" * 16, "other")]
    return {**everything_of(store, key), "manifests": manifests}


@pytest.mark.parametrize(("one", "other"), EVERY_PAIR)
def test_a_copy_is_equal_in_everything(stores: Stores, one: str, other: str) -> None:
    source, target = stores.open(one, "source"), stores.open(other, "target")
    writer = a_full_thread(source)
    Writer(a_key("second"), 7).begin(source, 3)
    report = copy_threads(source, target, KEY.tenant)
    assert (report.threads, report.changed, report.checkpoints) == (2, 2, writer.head + 3)
    seen = see(target)
    assert seen == see(source)
    assert None not in seen["manifests"]
    assert len(seen["results"]) == 2
    assert len(seen["runs"]) == 2
    check_reads(target, writer)
    writer.append(target, ROLLUP)
    check_reads(target, writer)


@pytest.mark.parametrize(("one", "other"), EVERY_PAIR)
def test_a_pruned_thread_is_copied_as_it_is(stores: Stores, one: str, other: str) -> None:
    source, target = stores.open(one, "source"), stores.open(other, "target")
    for cut in (2, 3, 4, 9, 12, 14):
        key = a_key(f"cut at {cut}")
        writer = Writer(key, cut).begin(source).write(source, WAVES)
        writer.prune(source, min(cut, writer.entries[writer.head].roll_seq))
        writer.write(source, (DELTA, ROLLUP, DELTA))
        report = copy_threads(source, target, key.tenant, threads=[key.thread])
        assert report.checkpoints == len(writer.entries)
        assert everything_of(target, key) == {
            **everything_of(source, key),
            "threads": list(target.threads(key.tenant)),
        }
        check_reads(target, writer)
        writer.write(target, (DELTA, ROLLUP, DELTA))
        check_reads(target, writer)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_second_copy_adds_what_is_new(stores: Stores, kind: str) -> None:
    source, target = MemoryStore(), stores.open(kind)
    writer = a_full_thread(source)
    copy_threads(source, target, KEY.tenant)
    again = copy_threads(source, target, KEY.tenant)
    assert (again.threads, again.changed, again.checkpoints) == (1, 0, 0)
    store_results = (a_result(writer.head, "three"),)
    source.commit(writer.batch(results=store_results))
    writer.append(source, source="takeover")
    ended = a_run(KEY, 2, status="completed", ended_at=11)
    writer.append(source, source="takeover", runs=(ended,))
    assert copy_threads(source, target, KEY.tenant).checkpoints == 2
    assert see(target) == see(source)
    assert len(see(target)["results"]) == 3


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_the_source_dropped_since_is_dropped(stores: Stores, kind: str) -> None:
    target = stores.open(kind)
    for cut in range(2, 12):
        source, key = MemoryStore(), a_key(f"cut at {cut}")
        writer = Writer(key, cut).begin(source).write(source, WAVES[:10])
        copy_threads(source, target, key.tenant)
        writer.write(source, (*WAVES[10:], DELTA, ROLLUP, DELTA))
        writer.prune(source, cut)
        copy_threads(source, target, key.tenant)
        check_reads(target, writer)
        assert list(target.history(key)) == list(source.history(key))


def test_what_the_target_dropped_stays_dropped() -> None:
    source, target = MemoryStore(), MemoryStore()
    writer = Writer(KEY).begin(source).write(source, WAVES)
    copy_threads(source, target, KEY.tenant)
    target.prune(KEY, head=writer.head, cut=4, rewritten=writer.rewrite(4))
    writer.append(source)
    assert copy_threads(source, target, KEY.tenant).checkpoints == 1
    assert [entry.seq for entry in target.history(KEY)][-1] == 4


def test_a_target_behind_all_that_the_source_still_has_is_refused() -> None:
    source, target = MemoryStore(), MemoryStore()
    writer = Writer(KEY).begin(source).write(source, WAVES)
    copy_threads(source, target, KEY.tenant)
    writer.write(source, (DELTA, SNAPSHOT, DELTA))
    writer.prune(source, writer.head - 1)
    with pytest.raises(Conflict):
        copy_threads(source, target, KEY.tenant)
    target.delete(KEY)
    copy_threads(source, target, KEY.tenant)
    check_reads(target, writer)


class Stopping(WrappedStore):
    """A store that is lost after some commits."""

    left = 10**9

    def commit(self, batch: Batch) -> None:
        if self.left == 0:
            raise Unavailable("lost on purpose")
        self.left -= 1
        super().commit(batch)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("batch", [1, 3, None])
def test_copy_continues_wherever_it_stopped(pruned: bool, batch: int | None) -> None:
    source, left = MemoryStore(), 0
    writer = a_full_thread(source)
    if pruned:
        writer.prune(source, 9)
    while True:
        target = Stopping(MemoryStore())
        target.left = left
        try:
            copy_threads(source, target, KEY.tenant, batch=batch)
            break
        except Unavailable:
            target.left = 10**9
        copy_threads(source, target, KEY.tenant, batch=batch)
        assert see(target) == see(source), f"stopped after {left} commits"
        left += 1
    assert left > 3


def test_a_thread_is_listed_once_its_history_is_whole() -> None:
    source, target = MemoryStore(), Stopping(MemoryStore())
    writer = a_full_thread(source)
    target.left = 5
    with pytest.raises(Unavailable):
        copy_threads(source, target, KEY.tenant, batch=2)
    assert target.read(KEY) is not None
    assert list(target.threads(KEY.tenant)) == []
    target.left = 10**9
    copy_threads(source, target, KEY.tenant)
    assert [info.key for info in target.threads(KEY.tenant)] == [writer.key]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_target_with_another_history_is_refused(stores: Stores, kind: str) -> None:
    source, target = MemoryStore(), stores.open(kind)
    Writer(KEY).begin(source, 5)
    for entries in (3, 5, 7):
        Writer(KEY, 2).begin(target, entries)
        before = see(target)
        with pytest.raises(Conflict) as caught:
            copy_threads(source, target, KEY.tenant)
        assert (caught.value.thread, caught.value.head) == (KEY.thread, entries)
        assert "a different history" in caught.value.__notes__[0]
        assert see(target) == before
        target.delete(KEY)


def test_target_that_was_written_separately_is_refused() -> None:
    source, target = MemoryStore(), MemoryStore()
    writer = Writer(KEY).begin(source, 5)
    copy_threads(source, target, KEY.tenant)
    writer.append(target)
    with pytest.raises(Conflict):
        copy_threads(source, target, KEY.tenant)


def test_an_entry_that_differs_in_its_payload_alone_is_refused() -> None:
    source, target = MemoryStore(), MemoryStore()
    Writer(KEY).begin(source, 3)
    changed = Writer(KEY).begin(target, 1)
    changed.append(target, payload=b"changed")
    with pytest.raises(Conflict):
        copy_threads(source, target, KEY.tenant)


def test_a_thread_that_has_only_records_is_copied() -> None:
    source, target = MemoryStore(), MemoryStore()
    failed = a_run(KEY, status="failed")
    source.commit(Batch(key=KEY, head=0, runs=(failed,), failure=a_failure(failed.run_id)))
    assert copy_threads(source, target, KEY.tenant).changed == 1
    assert see(target) == see(source)
    Writer(KEY, 2).begin(target)
    with pytest.raises(Conflict):
        copy_threads(source, target, KEY.tenant)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_manifest_of_a_run_that_wrote_no_entry_is_copied(stores: Stores, kind: str) -> None:
    source, target = MemoryStore(), stores.open(kind)
    writer = Writer(KEY).begin(source, 2)
    failed = a_run(KEY, 2, fingerprint="other", status="failed")
    source.commit(writer.batch(runs=(failed,), manifest=("other", b"manifest")))
    copy_threads(source, target, KEY.tenant)
    assert target.manifest(KEY, "other") == b"manifest"


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_hard_names_and_only_those_of_the_tenant_are_copied(stores: Stores, kind: str) -> None:
    source, target = MemoryStore(), stores.open(kind)
    for number, name in enumerate(HARD_IDS, 1):
        Writer(a_key(name), number).begin(source, 2)
        Writer(a_key(name, "another"), number).begin(source)
    assert copy_threads(source, target, "tenant").threads == len(HARD_IDS)
    assert target.threads("tenant") == source.threads("tenant")
    assert list(target.threads("another")) == []
    for name in HARD_IDS:
        assert list(target.history(a_key(name))) == list(source.history(a_key(name)))


def test_only_the_threads_that_are_named_are_copied() -> None:
    source, target = MemoryStore(), MemoryStore()
    for number, name in enumerate("abc", 1):
        Writer(a_key(name), number).begin(source)
    assert copy_threads(source, target, "tenant", threads=["a", "c"]).threads == 2
    assert [info.key.thread for info in target.threads("tenant")] == ["a", "c"]
    with pytest.raises(InvalidRequest, match="no thread 'd' in tenant 'tenant'"):
        copy_threads(source, target, "tenant", threads=["d"])


def test_more_threads_than_a_page_are_copied() -> None:
    source, target = MemoryStore(), MemoryStore()
    for number in range(1, 2102):
        Writer(a_key(f"{number:05}"), number).begin(source)
    assert copy_threads(source, target, "tenant").threads == 2101
    assert target.threads("tenant") == source.threads("tenant")


def test_in_a_file_each_checkpoint_is_one_line(tmp_path: Path) -> None:
    source, target = MemoryStore(), JsonlStore(tmp_path)
    Writer(KEY).begin(source, 5)
    copy_threads(source, target, KEY.tenant)
    lines = target.path_of(KEY).read_bytes().splitlines()
    assert sum(b'"checkpoint"' in line for line in lines) == 5
    target.delete(KEY)
    copy_threads(source, target, KEY.tenant, batch=5)
    lines = target.path_of(KEY).read_bytes().splitlines()
    assert sum(b'"checkpoint"' in line for line in lines) == 1
    target.close()


def test_a_source_that_moves_on_is_copied_to_where_it_is() -> None:
    class Moving(WrappedStore):
        """Another entry and the end of the run come while records are read."""

        moves = 2

        def runs(self, key: ThreadKey, *, limit: int | None = None) -> list[RunRecord]:
            found = list(super().runs(key, limit=limit))
            if self.moves:
                self.moves -= 1
                status = "running" if self.moves else "completed"
                writer.append(self, runs=(a_run(KEY, status=status),))
            return found

    source, target = Moving(MemoryStore()), MemoryStore()
    writer = Writer(KEY).begin(source, 3)
    assert copy_threads(source, target, KEY.tenant).checkpoints == 5
    assert target.runs(KEY)[0].status == "completed"
    check_reads(target, writer)


class Following(WrappedStore):
    """Something happens to the source once some pages of it were read."""

    pages = 3
    happens: Callable[[], object] = staticmethod(lambda: None)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        self.pages -= limit != 1
        if self.pages == 0:
            self.happens()
        return super().entries(key, after=after, limit=limit)


def test_thread_deleted_while_it_is_copied_is_reported() -> None:
    inner = MemoryStore()
    source = Following(inner)
    Writer(KEY).begin(source, 300)
    source.happens = lambda: inner.delete(KEY)
    with pytest.raises(InvalidRequest, match="changed while it was being copied"):
        copy_threads(source, MemoryStore(), KEY.tenant)


def test_thread_created_again_while_it_is_copied_is_not_mixed_in() -> None:
    def begin_anew() -> None:
        inner.delete(KEY)
        Writer(KEY, 2).begin(inner, 300)

    inner, target = MemoryStore(), MemoryStore()
    source = Following(inner)
    first = Writer(KEY).begin(source, 300)
    source.happens = begin_anew
    with pytest.raises(InvalidRequest, match="changed while it was being copied"):
        copy_threads(source, target, KEY.tenant)
    assert [entry.run_id for entry in target.entries(KEY)] == [first.run.run_id] * 48
    assert list(target.threads(KEY.tenant)) == []


def test_a_thread_that_is_pruned_while_it_is_copied_ends_as_the_source_has_it() -> None:
    inner, target = MemoryStore(), MemoryStore()
    source = Following(inner)
    writer = Writer(KEY).begin(source).write(source, ((DELTA,) * 9 + (ROLLUP,)) * 30)
    source.happens = lambda: writer.prune(inner, 35)
    copy_threads(source, target, KEY.tenant)
    assert see(target) == see(inner)
    assert [entry.seq for entry in target.history(KEY)][-1] == 35


def test_thread_pruned_past_the_copy_is_reported() -> None:
    inner, target = MemoryStore(), MemoryStore()
    source = Following(inner)
    writer = Writer(KEY).begin(source).write(source, ((DELTA,) * 9 + (ROLLUP,)) * 30)
    source.happens = lambda: writer.prune(inner, 200)
    with pytest.raises(InvalidRequest, match="changed while it was being copied"):
        copy_threads(source, target, KEY.tenant)
    assert list(target.threads(KEY.tenant)) == []


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_results_that_were_replaced_and_held_are_copied(stores: Stores, kind: str) -> None:
    source, target = MemoryStore(), stores.open(kind)
    writer = Writer(KEY).begin(source, 3)
    source.commit(writer.batch(results=(a_result(3, "a"), a_result(3, "b"))))
    copy_threads(source, target, KEY.tenant)
    source.commit(writer.batch(results=(a_result(3, "a", b"again"),)))
    copy_threads(source, target, KEY.tenant)
    assert see(target) == see(source)
    writer.append(source, source="interrupt", results=(a_result(4, "b", b"later"),))
    asleep = msgspec.structs.replace(writer.run, status="sleeping", wake_at=2**53 + 1)
    writer.append(source, source="sleep", runs=(asleep,))
    copy_threads(source, target, KEY.tenant)
    assert see(target) == see(source)
    assert len(see(target)["results"]) == 2


def test_large_payloads_come_in_shorter_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watching(WrappedStore):
        largest = 0

        def commit(self, batch: Batch) -> None:
            self.largest = max(self.largest, len(batch.entries))
            super().commit(batch)

    source = MemoryStore()
    writer = Writer(KEY).begin(source, 600)
    small = Watching(MemoryStore())
    copy_threads(source, small, KEY.tenant)
    assert small.largest == 256
    monkeypatch.setattr("milecastle.app.upkeep.copying._PAGE_BYTES", 50)
    large = Watching(MemoryStore())
    copy_threads(source, large, KEY.tenant)
    assert large.largest == 16
    check_reads(small, writer)
    check_reads(large, writer)


def test_each_entry_is_read_about_once_and_no_chain() -> None:
    class Counting(WrappedStore):
        reads = entries_read = 0

        def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
            self.reads += 1
            return super().read(key, seq)

        def entries(
            self, key: ThreadKey, *, after: int = 0, limit: int | None = None
        ) -> Sequence[Entry]:
            found = super().entries(key, after=after, limit=limit)
            self.entries_read += len(found)
            return found

    store = Counting(MemoryStore())
    Writer(KEY).begin(store, 2000)
    copy_threads(store, MemoryStore(), KEY.tenant)
    assert store.reads == 0
    assert store.entries_read < 2000 + 20


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_must_hold_something(batch: int) -> None:
    with pytest.raises(InvalidRequest, match="batch must be at least 1"):
        copy_threads(MemoryStore(), MemoryStore(), "tenant", batch=batch)


def test_a_store_is_not_copied_to_itself() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match="to itself"):
        copy_threads(store, store, "tenant")


def test_ids_of_fillers_do_not_stay() -> None:
    source, target = MemoryStore(), MemoryStore()
    writer = Writer(KEY).begin(source).write(source, (DELTA, DELTA, SNAPSHOT, DELTA))
    writer.prune(source, 4)
    copy_threads(source, target, KEY.tenant)
    assert target.locate(KEY, "dropped-1") is None
    assert target.locate(KEY, make_id(1_000_004)) == 4
