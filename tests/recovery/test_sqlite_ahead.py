"""Room is made in the write-ahead log before it is needed, and nobody ever reads what is there."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from milecastle.errors import Unavailable
from milecastle.model.checkpoint import DELTA
from milecastle.stores.sqlite import SqliteStore
from milecastle.stores.sqlite.connections import Ahead, Synchronous
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer
from tests.recovery.test_sqlite_trouble import files_up_to

COMMITS = 40
FRAME = 4096 + 24


def length(path: Path) -> int:
    """How long the write-ahead log is."""
    return Path(f"{path}-wal").stat().st_size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.mark.parametrize(("synchronous", "often"), [("full", False), ("normal", True)])
def test_few_commits_of_a_durable_store_make_the_log_longer(
    path: Path, synchronous: Synchronous, often: bool
) -> None:
    """The control is a store that does not sync, and so gains nothing from room."""
    with closing(SqliteStore(path, synchronous=synchronous)) as store:
        writer, lengths = Writer().begin(store), list[int]()
        for _ in range(COMMITS):
            writer.append(store)
            lengths.append(length(path))
        grew = sum(after > before for before, after in pairwise(lengths))
        assert (grew > COMMITS // 2) == often
        assert lengths[-1] < 4 * COMMITS * FRAME
        check_reads(store, writer)


def test_room_is_not_part_of_the_database(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer().begin(store, COMMITS)
        assert length(path) > 2 * COMMITS * FRAME
    assert path.stat().st_size < 2 * COMMITS * FRAME
    with closing(SqliteStore(path)) as again:
        check_reads(again, writer)


def test_what_a_dead_process_left_is_read_without_the_room(tmp_path: Path, path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer().begin(store, COMMITS)
        copy = tmp_path / "copy.db"
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
    assert length(copy) > 2 * COMMITS * FRAME
    with closing(SqliteStore(copy)) as again:
        check_reads(again, writer)
        writer.append(again)
        check_reads(again, writer)


def test_failing_to_make_room_fails_nothing(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer().begin(store)
        with files_up_to(length(path) + 20 * FRAME):
            for _ in range(12):
                writer.append(store)
        for _ in range(COMMITS):
            writer.append(store)
        check_reads(store, writer)


def test_room_that_cannot_be_taken_back_ends_writing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if commits continue inside the transaction that made room: they would be lost."""

    def stay_inside(ahead: Ahead, cursor: sqlite3.Cursor) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        raise sqlite3.OperationalError("no")

    monkeypatch.setattr(Ahead, "make_room", stay_inside)
    with closing(SqliteStore(path)) as store:
        writer = Writer().begin(store)
        with pytest.raises(Unavailable, match="reopen the store"):
            writer.write(store, (DELTA,) * COMMITS)
        assert writer.head > 1
    with closing(SqliteStore(path)) as again:
        check_reads(again, writer)


def test_log_is_no_longer_than_without_a_check(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer().begin(store)
        for _ in range(75):
            writer.append(store, payload=b"x" * 10 * 4096)
        assert 3_000_000 < length(path) < 1_050 * FRAME
