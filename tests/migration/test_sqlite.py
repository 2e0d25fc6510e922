"""Files of every format version are read, newer ones are refused, and so are those of others."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest, Unavailable
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.stores.sqlite.migrating import APPLICATION_ID, FORMAT_VERSION
from milecastle.stores.sqlite.queries import MIGRATIONS, statements
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key
from tests.migration.sqlite_golden import GOLDEN, everything_in, fill


def number(path: Path, question: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(question).fetchone()[0])


def change(path: Path, *orders: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for order in orders:
            database.execute(order)
        database.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("sqlite-v*.db")), ids=lambda file: file.stem)
def test_a_file_of_every_version_is_read_and_written(golden: Path, path: Path) -> None:
    shutil.copy(golden, path)
    memory = MemoryStore()
    fill(memory)
    store = SqliteStore(path)
    assert everything_in(store) == everything_in(memory)
    writer = Writer(a_key("new"), 9).begin(store, 3)
    check_reads(store, writer)
    store.close()
    assert number(path, "PRAGMA user_version") == FORMAT_VERSION


def test_every_version_has_its_golden_file() -> None:
    assert [f"sqlite-v{version}.db" for version in MIGRATIONS] == sorted(
        file.name for file in GOLDEN.glob("sqlite-v*.db")
    )
    assert list(MIGRATIONS) == list(range(1, FORMAT_VERSION + 1))


def test_a_new_file_says_what_it_is(path: Path) -> None:
    SqliteStore(path).close()
    assert number(path, "PRAGMA application_id") == APPLICATION_ID
    assert number(path, "PRAGMA user_version") == FORMAT_VERSION
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    SqliteStore(path).close()
    change(path, "PRAGMA user_version = 999")
    before = path.read_bytes()
    with pytest.raises(FormatTooNew) as caught:
        SqliteStore(path)
    assert (caught.value.found, caught.value.supported) == (999, FORMAT_VERSION)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "order",
    ["CREATE TABLE theirs (a)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"],
)
def test_a_database_of_another_program_is_refused_and_left_alone(path: Path, order: str) -> None:
    change(path, order)
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_what_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("dear diary, " * 500)
    with pytest.raises(Corrupted) as caught:
        SqliteStore(path)
    assert caught.value.place == str(path)
    assert path.read_text() == "dear diary, " * 500


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        SqliteStore(tmp_path / "nowhere" / "store.db")


@pytest.mark.parametrize(
    "order", ["DROP TABLE results", "DROP INDEX runs_by_start", "PRAGMA user_version = 0"]
)
def test_tables_that_are_not_ours_any_more_are_refused(path: Path, order: str) -> None:
    SqliteStore(path).close()
    change(path, order)
    with pytest.raises(Corrupted, match="tables"):
        SqliteStore(path)


def test_a_table_of_somebody_else_may_stand_beside_ours(path: Path) -> None:
    SqliteStore(path).close()
    change(path, "CREATE TABLE theirs (a)", "CREATE INDEX more ON entries (created_at)")
    SqliteStore(path).close()


def test_a_migration_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIGRATIONS, 1, MIGRATIONS[1] + "CREATE TABLE threads (a);\n")
    with pytest.raises(Corrupted, match="threads"):
        SqliteStore(path)
    assert number(path, "SELECT count(*) FROM sqlite_master") == 0
    monkeypatch.undo()
    SqliteStore(path).close()


def test_statements_are_told_apart() -> None:
    script = "-- a comment; not a statement\nA ';'\nB;\nC;\n"
    assert list(statements(script)) == ["A ';'\nB;", "C;"]
