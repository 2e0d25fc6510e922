"""Rows of an SQLite file are removed or changed by hand: each read says which row is damaged.

Any bit that is flipped: `tests/recovery/test_sqlite_damage.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry
from milecastle.model.tags import TagChange
from milecastle.ports.store import Batch
from milecastle.stores.sqlite import SqliteStore, store
from milecastle.stores.sqlite.connections import Connections
from milecastle.stores.sqlite.log import ThreadLog
from milecastle.stores.sqlite.migrating import FORMAT_VERSION, SqliteFile
from milecastle.stores.sqlite.rows import entry_row, pack_parent
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run, make_id

KEY = a_key("alpha")
FIRST = 1 << 32
"""The number of a row of entries is that of its thread times this, plus its seq."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed file with a thread: a snapshot, three deltas, a rollup and two deltas."""
    found = tmp_path / "store.db"
    written = SqliteStore(found)
    Writer(KEY).begin(written).write(written, (DELTA, DELTA, DELTA, ROLLUP, DELTA, DELTA))
    written.close()
    return found


def change(path: Path, order: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(order).rowcount > 0


Read = Callable[[SqliteStore], object]
MISSING: dict[str, tuple[int, int, Read]] = {
    "the entry": (3, 3, lambda store: store.read(KEY, 3)),
    "below a delta": (2, 3, lambda store: store.read(KEY, 3)),
    "the base of a chain": (1, 2, lambda store: store.read(KEY, 3)),
    "in the history": (3, 4, lambda store: list(store.history(KEY))),
    "the end of the history": (1, 1, lambda store: list(store.history(KEY, before=2))),
    "the end of a page": (3, 3, lambda store: store.entries(KEY, after=0, limit=3)),
    "on the way to an id": (4, 4, lambda store: store.locate(KEY, make_id(1_000_003))),
}
"""Which entry is removed, which one is named, and what is read. A delta needs its parent's id."""


@pytest.mark.parametrize("what", MISSING)
def test_missing_entry_is_named_wherever_it_is_missed(path: Path, what: str) -> None:
    """Fails if a read returns what is left, or names another row."""
    removed, named, read = MISSING[what]
    change(path, f"DELETE FROM entries WHERE id = {FIRST + removed}")
    with closing(SqliteStore(path)) as opened, pytest.raises(Corrupted) as caught:
        read(opened)
    assert f"entries, thread '{KEY}', seq {named}" in caught.value.place


def test_pruned_thread_without_entries_is_damaged(tmp_path: Path) -> None:
    """Fails if it is taken for a thread that has not begun."""
    place = tmp_path / "store.db"
    with closing(SqliteStore(place)) as written:
        Writer(KEY).begin(written).write(written, (DELTA, DELTA, ROLLUP)).prune(written, 3)
    change(place, "DELETE FROM entries")
    with (
        closing(SqliteStore(place)) as opened,
        pytest.raises(Corrupted, match="every entry is missing") as caught,
    ):
        opened.head(KEY)
    assert f"thread '{KEY}', seq 3" in caught.value.place


@pytest.mark.parametrize(
    "change_of_head", ["step = step + 1", "step = 'odd'", "sum = 'odd'", "sum = 7"]
)
def test_changed_head_is_damage(path: Path, change_of_head: str) -> None:
    """Fails if the checksum of the head is not compared, or a sum of another type is an error."""
    change(path, f"UPDATE entries SET {change_of_head} WHERE id = {FIRST + 7}")
    with closing(SqliteStore(path)) as opened, pytest.raises(Corrupted) as caught:
        opened.head(KEY)
    assert f"entries, thread '{KEY}', seq 7" in caught.value.place
    assert caught.value.message.startswith("a row does not match its checksum")


def test_changed_base_of_a_chain_is_damage(path: Path) -> None:
    """Fails if only the rows above it are checked: the state would be built on what was changed."""
    change(path, f"UPDATE entries SET payload = x'00' WHERE id = {FIRST + 1}")
    with closing(SqliteStore(path)) as opened, pytest.raises(Corrupted, match="checksum") as caught:
        opened.read(KEY, 3)
    assert "seq 1" in caught.value.place


def test_deleted_thread_leaves_no_row(path: Path) -> None:
    """Fails if one table is not emptied: what should be erased would stay in the file."""
    with closing(SqliteStore(path)) as opened:
        writer = Writer(a_key("beta")).begin(opened)
        failed = a_run(writer.key, 2, status="failed")
        opened.commit(writer.batch(results=(a_result(writer.head),)))
        opened.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
        opened.commit(writer.batch(tags=TagChange(("blue",))))
        opened.mailbox.send(writer.key, "go", "mark", b"message")
        opened.delete(KEY)
        opened.delete(writer.key)
    with closing(sqlite3.connect(path)) as database:
        for table in (
            "entries",
            "results",
            "origins",
            "mailbox",
            "runs",
            "failures",
            "threads",
            "tags",
        ):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


@pytest.mark.parametrize(("synchronous", "expected"), [("full", 2), ("normal", 1)])
def test_connections_have_their_pragmas(
    path: Path, synchronous: Literal["full", "normal"], expected: int
) -> None:
    """Fails if commits are not durable though asked to be, or if what reads could write."""
    with closing(SqliteStore(path, synchronous=synchronous)) as opened:
        Writer(a_key("beta")).begin(opened)
        connections = vars(opened)["_connections"]
        assert isinstance(connections, Connections)
        with connections.reading() as reader:
            assert reader.execute("PRAGMA query_only").fetchone() == (1,)
        writer = vars(connections)["_writer"]
        assert writer.execute("PRAGMA synchronous").fetchone() == (expected,)


def test_thread_that_another_store_created_again_is_written_as_the_new_one(path: Path) -> None:
    """Fails if what was known of the deleted thread is used: entries would get its number."""
    with closing(SqliteStore(path)) as opened, closing(SqliteStore(path)) as other:
        assert opened.head(KEY) is not None
        other.delete(KEY)
        other.commit(Batch(key=KEY, head=0, runs=(a_run(KEY, 5),)))
        writer = Writer(KEY, 6).begin(opened)
        writer.append(opened)
        for store in (opened, other):
            assert [entry.seq for entry in store.history(KEY)] == [2, 1]
        assert other.head(KEY) == opened.head(KEY)


def test_missing_run_is_damage_and_an_unknown_one_is_not(path: Path) -> None:
    """Fails if the runs of a thread are not counted when one is not found."""
    with closing(SqliteStore(path)) as opened:
        assert opened.run(KEY, make_id(99)) is None
    change(path, "DELETE FROM runs")
    with closing(SqliteStore(path)) as opened, pytest.raises(Corrupted, match="a row is missing"):
        opened.run(KEY, make_id(1))


def test_missing_table_is_named(path: Path) -> None:
    """Fails if an error of SQLite is taken for a row that holds invalid text."""
    with closing(SqliteStore(path)) as opened:
        with closing(sqlite3.connect(path)) as database:
            database.execute("DROP TABLE results")
        with pytest.raises(Corrupted, match="no such table: results"):
            opened.results(KEY)


def test_chain_that_leads_to_itself_is_damage(path: Path) -> None:
    """Its checksum is right. Fails if it is followed: that never ends."""
    with closing(SqliteStore(path)) as opened:
        (rollup,) = opened.entries(KEY, after=4, limit=1)
    assert rollup.kind == ROLLUP
    row = entry_row(rollup, 1, 1, pack_parent(rollup), prior=rollup.seq)
    change(path, f"UPDATE entries SET prior = 5, sum = {row[-1]} WHERE id = {FIRST + 5}")
    with closing(SqliteStore(path)) as opened, pytest.raises(Corrupted, match="missing") as caught:
        opened.read(KEY)
    assert "seq 5" in caught.value.place


def test_thread_without_entries_has_no_checkpoint(path: Path) -> None:
    """Fails if a checkpoint is looked for in a thread that has only a run."""
    key = a_key("only a run")
    with closing(SqliteStore(path)) as opened:
        opened.commit(Batch(key=key, head=0, runs=(a_run(key, 2),)))
        assert opened.locate(key, make_id(1)) is None


def test_damaged_thread_of_another_tenant_is_told_with_the_list_beside_it(path: Path) -> None:
    """It may have been a thread of this one. Fails if only the rows of the list are told."""
    with closing(SqliteStore(path)) as written:
        Writer(a_key("beta", "tenantb"), 2).begin(written)
    change(path, "UPDATE threads SET runs = 9 WHERE tenant = 'tenantb'")
    with (
        closing(SqliteStore(path)) as opened,
        pytest.warns(RuntimeWarning, match="omitted from a list"),
    ):
        found = opened.threads("tenant")
    assert [info.key for info in found] == [KEY]


def damage_index(path: Path, name: str, old: bytes, new: bytes) -> None:
    """Write another name into the only page of an index, as a bad disk would."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT rootpage - 1 FROM sqlite_master WHERE name = ?"
        [page] = database.execute(query, (name,)).fetchone()
        [size] = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    place = data.index(old, page * size, (page + 1) * size)
    data[place : place + len(old)] = new
    path.write_bytes(data)


def test_thread_that_its_index_does_not_find_is_damage(path: Path) -> None:
    """Fails if it is taken for a new thread, or SQLite's own check is not part of ``verify``."""
    damage_index(path, "threads_by_name", b"alpha", b"zzzzz")
    with closing(SqliteStore(path)) as opened:
        with pytest.raises(Corrupted):
            opened.read(KEY)
        inspected = next(iter(opened.verify("tenant")))
    assert not inspected.is_thread
    assert any("threads_by_name" in finding.problem for finding in inspected.findings)


def test_file_of_a_newer_version_is_named_before_it_is_migrated(path: Path) -> None:
    """Fails if the version is not compared: nothing would be missing."""
    assert SqliteFile(path).migrate() == ""
    change_version(path, FORMAT_VERSION + 1)
    with pytest.raises(FormatTooNew) as caught:
        SqliteFile(path).migrate()
    assert (caught.value.found, caught.value.supported) == (FORMAT_VERSION + 1, FORMAT_VERSION)


def change_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")


def test_unknown_durability_and_an_unknown_place_are_refused(path: Path) -> None:
    """Fails if any text is passed on to the database."""
    wrong: Any = "off"
    with pytest.raises(InvalidRequest, match="'full' or 'normal'"):
        SqliteStore(path, synchronous=wrong)
    with closing(SqliteStore(path)) as opened:
        for thread in ("alpha", "9" * 19):
            with pytest.raises(InvalidRequest, match="of a page of runs"):
                opened.recent_runs("tenant", after=f'[1, "{thread}", 1]')


def test_pruning_a_thread_that_does_not_exist_drops_nothing(path: Path) -> None:
    """Fails if it creates the thread, or is an error."""
    with closing(SqliteStore(path)) as opened:
        assert opened.prune(a_key("none"), head=0, cut=0, rewritten=()) == 0
        assert opened.thread(a_key("none")) is None


def test_entries_of_an_older_run_are_rewritten_by_each_pruning(path: Path) -> None:
    """Fails if an entry loses its run when that run is the last one that was looked for."""
    with closing(SqliteStore(path)) as opened:
        writer = Writer(a_key("beta"), 2).begin(opened, 3)
        writer.append(opened, SNAPSHOT, run_id=make_id(9))
        for cut in (2, 3):
            writer.prune(opened, cut)
        check_reads(opened, writer)


def test_store_forgets_threads_and_reads_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if what was known of a thread is needed, or grows with the number of threads."""
    monkeypatch.setattr(store, "_REMEMBERED", 2)
    with closing(SqliteStore(tmp_path / "store.db")) as opened:
        writers = [Writer(a_key(name), number).begin(opened) for number, name in enumerate("abcd")]
        assert len(opened._known) <= 2  # pyright: ignore[reportPrivateUsage]
        for writer in writers:
            writer.append(opened)
            chain = opened.read(writer.key)
            assert chain is not None
            assert chain.entries[-1].seq == 2


@pytest.mark.parametrize("is_created_again", [False, True])
def test_thread_deleted_while_it_is_opened_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_created_again: bool
) -> None:
    """Fails if the two statements of ``open`` are joined though a deletion came between them."""
    path, key = tmp_path / "store.db", a_key("alpha")
    with closing(SqliteStore(path)) as opened, closing(SqliteStore(path)) as other:
        Writer(key).begin(opened).append(opened)
        read_chain = ThreadLog.short_chain

        def delete_first(log: ThreadLog, head: tuple[Any, ...]) -> tuple[Entry, ...] | None:
            monkeypatch.undo()
            assert other.delete(key)
            if is_created_again:
                Writer(key, 7).begin(other)
            return read_chain(log, head)

        monkeypatch.setattr(ThreadLog, "short_chain", delete_first)
        found = opened.open(key)
        if not is_created_again:
            assert found is None
        else:
            assert found == other.open(key)
            assert found is not None
            assert len(found.chain.entries) == 1
