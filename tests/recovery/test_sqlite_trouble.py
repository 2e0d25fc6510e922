"""Trouble around an SQLite file is reported in our words, and never costs what was stored."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

import pytest

from milecastle import InvalidRequest
from milecastle.errors import Conflict, Corrupted, StoreError, Unavailable
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Kind
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.opening import find_store
from milecastle.stores.sqlite import SqliteStore
from milecastle.stores.sqlite.connections import Connections, translate
from milecastle.support.forking import PATIENCE
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run, an_entry, make_id


@pytest.fixture
def store(tmp_path: Path) -> Generator[SqliteStore, None, None]:
    with closing(SqliteStore(tmp_path / "store.db", timeout=0.1)) as store:
        yield store


@contextmanager
def files_up_to(size: int) -> Generator[None, None, None]:
    """Let no file grow beyond ``size``: the write that would do it fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- locks and disks


def test_a_lock_that_is_held_too_long_is_unavailable(store: SqliteStore) -> None:
    writer = Writer().begin(store)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for kind in (DELTA, SNAPSHOT):
            with pytest.raises(Unavailable, match="another writer"):
                writer.append(store, kind)
        assert store.read(writer.key) is not None
    writer.append(store)
    check_reads(store, writer)


def test_lock_that_is_released_in_time_is_waited_for(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", timeout=30)
    writer = Writer().begin(store)
    with closing(
        sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.2, other.execute, ("ROLLBACK",))
        release.start()
        writer.append(store)
        release.join()
    check_reads(store, writer)
    store.close()


def test_fork_waits_for_a_reader_and_lets_calls_begin_again(store: SqliteStore) -> None:
    """The count of lent connections is right, their return is heard, and no lock stays.

    Children: `tests/process/test_sqlite_processes.py`.
    """
    writer = Writer().begin(store)
    connections: Connections = vars(store)["_connections"]
    lent = threading.Event()

    def read() -> None:
        with connections.reading():
            lent.set()
            time.sleep(0.1)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert lent.wait(60)
    began = time.monotonic()
    connections.before_fork()
    assert time.monotonic() - began < PATIENCE / 2
    reader.join()
    connections.after_fork(in_child=False)
    calls = threading.Thread(target=lambda: (store.read(writer.key), writer.append(store)))
    calls.daemon = True
    calls.start()
    calls.join(60)
    assert not calls.is_alive()
    assert len(list(store.history(writer.key))) == 2


@pytest.mark.parametrize("kind", [DELTA, SNAPSHOT])
def test_after_a_failed_write_nothing_is_written_until_reopened(
    store: SqliteStore, kind: Kind
) -> None:
    writer = Writer().begin(store, 3)
    size = Path(f"{store.path}-wal").stat().st_size
    entry = writer.plan(kind, payload=b"x" * 50_000)
    with files_up_to(size + 100), pytest.raises(Unavailable, match="I/O"):
        store.commit(writer.batch(entry))
    for again in (lambda: writer.append(store), lambda: store.delete(writer.key)):
        with pytest.raises(Unavailable, match="reopen the store"):
            again()
    with closing(SqliteStore(store.path)) as reopened:
        check_reads(reopened, writer)
        writer.append(reopened)
        check_reads(reopened, writer)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, Unavailable),
        (sqlite3.SQLITE_LOCKED, Unavailable),
        (sqlite3.SQLITE_FULL, Unavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, Unavailable),
        (sqlite3.SQLITE_READONLY, Unavailable),
        (sqlite3.SQLITE_CANTOPEN, Unavailable),
        (sqlite3.SQLITE_CORRUPT, Corrupted),
        (sqlite3.SQLITE_NOTADB, Corrupted),
        (sqlite3.SQLITE_ERROR, Corrupted),
    ],
)
def test_every_error_of_the_driver_is_one_of_ours(code: int, kind: type[StoreError]) -> None:
    error = sqlite3.OperationalError("as the driver says it")
    error.sqlite_errorcode = code
    assert type(translate(error, "file", 1.0)) is kind


# -- readers and writers


def test_a_history_is_read_past_a_pruning_and_a_deletion(store: SqliteStore) -> None:
    writer = Writer().begin(store, 300)
    writer.append(store, SNAPSHOT)
    pruned, deleted = store.history(writer.key), store.history(writer.key)
    assert [entry.seq for entry in islice(pruned, 10)] == list(range(301, 291, -1))
    assert [entry.seq for entry in islice(deleted, 10)] == list(range(301, 291, -1))
    writer.prune(store, 150)
    left = [entry.seq for entry in pruned]
    assert left == list(range(291, 149, -1))
    store.delete(writer.key)
    Writer(writer.key, 2).begin(store, 301)
    seqs = [entry.seq for entry in deleted]
    assert seqs == list(range(291, seqs[-1] - 1, -1))
    assert seqs[-1] > 150


def test_a_reader_that_is_slow_does_not_let_the_file_grow(store: SqliteStore) -> None:
    """Nothing is held between two pages, so that the write-ahead log starts over."""
    writer = Writer().begin(store, 300)
    slow = store.history(writer.key)
    next(slow)
    for _ in range(1_500):
        writer.append(store)
    assert Path(f"{store.path}-wal").stat().st_size < 8_000_000
    assert len(list(slow)) == 299


def test_a_step_is_one_statement(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it writes; only the first entry, and what comes with a record, takes more."""
    writer = Writer().begin(store)

    def refuse(connections: Connections) -> None:
        raise AssertionError(connections)

    monkeypatch.setattr(Connections, "writing", refuse)
    writer.write(store, (DELTA, ROLLUP, ROLLUP, DELTA, SNAPSHOT, DELTA, ROLLUP))
    writer.append(store, source="takeover", note="taken", route=("research",))
    check_reads(store, writer)


def test_an_older_run_that_is_written_again_is_counted_once(store: SqliteStore) -> None:
    writer = Writer().begin(store)
    newer = a_run(writer.key, 2)
    store.commit(writer.batch(runs=(newer,)))
    older = a_run(writer.key, 1, status="superseded")
    store.commit(writer.batch(runs=(older,)))
    assert store.runs(writer.key) == [newer, older]
    assert store.run(writer.key, make_id(3)) is None


# -- a thread that was deleted and created again


@pytest.mark.parametrize("kind", [DELTA, ROLLUP])
def test_a_writer_of_a_former_thread_is_refused_at_the_same_head(
    store: SqliteStore, kind: Kind
) -> None:
    late = Writer(a_key(), 1).begin(store, 3)
    store.delete(late.key)
    new = Writer(a_key(), 2).begin(store, 3)
    for run_id in (late.run.run_id, new.run.run_id):
        with pytest.raises(Conflict) as caught:
            store.commit(late.batch(late.plan(kind, run_id=run_id)))
        assert caught.value.head == 3
    new.append(store)
    check_reads(store, new)


def test_a_store_that_did_not_see_the_new_thread_refuses_even_a_snapshot(
    store: SqliteStore,
) -> None:
    late = Writer(a_key(), 1).begin(store, 3)
    with closing(SqliteStore(store.path)) as other:
        other.delete(late.key)
        new = Writer(a_key(), 2).begin(other, 3)
        with pytest.raises(Conflict):
            store.commit(late.batch(late.plan(SNAPSHOT)))
        check_reads(store, new)
        new.append(store)
        check_reads(other, new)


def test_two_stores_take_turns_on_one_thread(store: SqliteStore) -> None:
    with closing(SqliteStore(store.path)) as other:
        writer = Writer().begin(store)
        for number in range(12):
            turn: SqliteStore = (store, other)[number % 2]
            turn.commit(writer.batch(results=(a_result(writer.head, f"task {number}"),)))
            chain = (other, store)[number % 2].read(writer.key)
            assert chain is not None
            assert [result.task for result in chain.results] == [f"task {number}"]
            writer.append(turn, source="takeover")
            writer.append((other, store)[number % 2])
        check_reads(store, writer)
        check_reads(other, writer)


def test_branch_off_the_last_written_entry_is_distinguished_from_a_step(store: SqliteStore) -> None:
    with closing(SqliteStore(store.path)) as other:
        writer = Writer().begin(store, 3)
        writer.append(other)
        third = writer.entries[3].id
        with pytest.raises(Conflict):
            store.commit(writer.batch(writer.plan(parent_id=third)))
        assert writer.append(store, at=3, source="fork").parent_id == third
        check_reads(store, writer)
        check_reads(other, writer)


def test_results_end_though_another_store_wrote_them(store: SqliteStore) -> None:
    with closing(SqliteStore(store.path)) as other:
        writer = Writer().begin(other, 2)
        assert store.read(writer.key) is not None
        store.commit(writer.batch(results=(a_result(2, "old"),)))
        writer.append(other)
        for each in (store, other):
            chain = each.read(writer.key)
            assert chain is not None
            assert chain.results == ()
        other.commit(writer.batch(results=(a_result(3, "new"),)))
        chain = store.read(writer.key)
        assert chain is not None
        assert chain.results == (a_result(3, "new"),)


def test_results_are_cleared_away_when_their_step_ends(store: SqliteStore) -> None:
    """So that nobody has to read them to find that they do not count.

    Fails if a store that has read them takes note of the opposite of what it found.
    """
    writer = Writer().begin(store, 2)
    for source, kept in (("interrupt", 2), ("answer", 4), ("step", 0)):
        results = tuple(a_result(writer.head, f"{source} {number}") for number in range(2))
        store.commit(writer.batch(results=results))
        assert len(store.results(writer.key)) == kept or source == "step"
        writer.append(store, source=source)
        with closing(sqlite3.connect(store.path)) as other:
            assert other.execute("SELECT count(*) FROM results").fetchone() == (kept,)


# -- values that trip databases

HOSTILE = (
    "",
    "\0",
    "a\0b",
    "\ud800",
    "a\udc80b",
    "\udfff\ud800",
    "'; DROP TABLE entries; --",
    "%",
    "_",
    "\uffff",
    "\U0010ffff",
    "x" * 5_000,
)


def both(tmp_path: Path) -> tuple[Store, Store]:
    return MemoryStore(), SqliteStore(tmp_path / "store.db")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_text_is_kept_as_in_memory(tmp_path: Path, text: str) -> None:
    for store in both(tmp_path):
        writer = Writer()
        record = a_run(writer.key, graph=text, input_digest=text, metadata={text: text})
        failure = a_failure(record.run_id, message=text, traceback=(text,), node=text)
        entry = an_entry(1, nodes=(text,), next=(text, "b"), route=(text,), note=text)
        results = (a_result(1, text),)
        batch = writer.batch(entry, runs=(record,), failure=failure, results=results)
        store.commit(batch)
        chain = store.read(writer.key)
        assert chain is not None
        assert (chain.entries, chain.results) == ((entry,), results)
        assert next(store.history(writer.key)).note == text
        assert store.run(writer.key, record.run_id) == record
        assert store.failure(writer.key, record.run_id) == failure
        store.close()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_ids_are_kept_and_sought_as_in_memory(tmp_path: Path, text: str) -> None:
    for store in both(tmp_path):
        writer = Writer().begin(store, 2)
        Writer(a_key("\ue000"), 2).begin(store)
        assert store.run(writer.key, text) is None
        assert store.failure(writer.key, text) is None
        assert store.manifest(writer.key, text) is None
        assert store.locate(writer.key, text) is None
        entry = an_entry(3, id=text, parent_id=text, run_id=text, fingerprint=text)
        store.commit(Batch(key=writer.key, head=2, entries=(entry,), manifest=(text, b"m")))
        store.commit(Batch(key=writer.key, head=3, runs=(a_run(writer.key, run_id=text),)))
        assert store.locate(writer.key, text) == 3
        assert store.manifest(writer.key, text) == b"m"
        assert store.run(writer.key, text) == a_run(writer.key, run_id=text)
        assert next(store.history(writer.key)).parent_id == text
        found = [info.key.thread for info in store.threads("tenant", after=text)]
        assert found == [name for name in ("thread", "\ue000") if name > text]
        store.close()


def test_numbers_beyond_any_log_are_not_there(tmp_path: Path) -> None:
    for store in both(tmp_path):
        writer = Writer().begin(store, 3)
        for seq in (2**31, 2**32, 2**32 + 1, 2**63, 2**200, -(2**63)):
            assert store.read(writer.key, seq) is None
            expected = 3 if seq > 0 else 0
            assert len(list(store.history(writer.key, before=seq))) == expected
            with pytest.raises(Conflict):
                store.commit(Batch(key=writer.key, head=seq, entries=(writer.plan(),)))
            delta = an_entry(seq + 1, kind=DELTA, parent_id=make_id(3))
            with pytest.raises(Conflict):
                store.commit(Batch(key=writer.key, head=seq, entries=(delta,)))
        assert len(list(store.history(writer.key, limit=2**200))) == 3
        assert len(store.runs(writer.key, limit=2**200)) == 1
        assert len(store.threads("tenant", limit=2**200)) == 1
        store.close()


# -- names


def test_relative_and_absolute_paths_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, name in (
        ("sqlite:///here.db", "here.db"),
        (f"sqlite:///{tmp_path}/there.db", "there.db"),
        ("sqlite:///a%20b%3F.db?synchronous=normal", "a b?.db"),
        ("sqlite:///full.db?synchronous=full", "full.db"),
    ):
        store = find_store(url)
        Writer().begin(store)
        store.close()
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite",
        "sqlite://",
        "sqlite:///",
        "sqlite://here.db",
        "sqlite:///here.db?synchronous=off",
        "sqlite:///here.db?synchronous=",
        "sqlite:///here.db?sync=full",
    ],
)
def test_a_url_that_means_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest):
        find_store(url)
    assert list(tmp_path.iterdir()) == []


def test_a_store_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("store.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Writer().begin(store)
    store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
