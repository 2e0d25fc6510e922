"""The golden file is read, newer files are refused, and so are unreleased ones and others'."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest, StoreError, Unavailable
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore, migrating
from milecastle.stores.sqlite.migrating import (
    APPLICATION_ID,
    FORMAT_VERSION,
    UNRELEASED_ID,
    SqliteFile,
)
from milecastle.stores.sqlite.queries import MIGRATIONS, statements
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key
from tests.migration.sqlite_golden import PATH as GOLDEN
from tests.migration.sqlite_golden import (
    TAGGED,
    buckets_in,
    claims_in,
    everything_in,
    fill,
    memory_in,
    messages_in,
)


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


def test_golden_file_is_read_and_written(path: Path) -> None:
    """Fails if a value of the file is read differently, or the store cannot write to it."""
    shutil.copy(GOLDEN, path)
    memory = MemoryStore()
    fill(memory)
    store = SqliteStore(path)
    assert everything_in(store) == everything_in(memory)
    assert claims_in(store) == claims_in(memory)
    assert messages_in(store) == messages_in(memory)
    assert memory_in(store) == memory_in(memory)
    assert buckets_in(store) == buckets_in(memory)
    assert store.tags.of("tenant", [TAGGED.thread]) == memory.tags.of("tenant", [TAGGED.thread])
    assert store.tags.threads("tenant", "red") == memory.tags.threads("tenant", "red")
    assert store.recent_threads("tenant") == memory.recent_threads("tenant")
    assert store.recent_runs("tenant") == memory.recent_runs("tenant")
    check_reads(store, Writer(a_key("new"), 9).begin(store, 3))
    store.close()
    assert number(path, "PRAGMA user_version") == FORMAT_VERSION


def test_golden_file_has_the_tables_of_a_new_file(path: Path) -> None:
    """Until the first release, a change of version 1 makes its golden file again."""
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as new, closing(sqlite3.connect(GOLDEN)) as golden:
        tables = "SELECT name, sql FROM sqlite_master ORDER BY name"
        assert golden.execute(tables).fetchall() == new.execute(tables).fetchall()


VERSION_2 = """
CREATE TABLE colours (colour TEXT);
ALTER TABLE threads ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';
UPDATE failures SET sum = CASE
    WHEN sum = checksum(
        thread, run_id, failure_class, resumable, error_type, message, traceback, causes, attempt,
        time, node
    ) THEN sum ELSE -1
END;
PRAGMA user_version = 2;
"""
"""What a later version may do to the tables."""


@pytest.fixture
def version_2(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A library whose newest version is 2, until it is undone."""
    monkeypatch.setitem(MIGRATIONS, 2, VERSION_2)
    monkeypatch.setattr(migrating, "FORMAT_VERSION", 2)
    forget_expected_tables()
    yield monkeypatch
    monkeypatch.undo()
    forget_expected_tables()


def forget_expected_tables() -> None:
    vars(migrating)["_expected"].cache_clear()


def test_file_of_version_1_is_migrated_when_opened(
    path: Path, version_2: pytest.MonkeyPatch
) -> None:
    """Fails if a migration is not applied, or is applied a second time."""
    shutil.copy(GOLDEN, path)
    file = SqliteFile(path)
    assert file.pending_migrations().sql == f"BEGIN IMMEDIATE;\n{VERSION_2}COMMIT;\n"
    assert number(path, "PRAGMA user_version") == 1
    memory = MemoryStore()
    fill(memory)
    for _ in range(2):
        store = SqliteStore(path)
        assert everything_in(store) == everything_in(memory)
        store.close()
        assert number(path, "SELECT count(*) FROM threads WHERE colour = 'red'") > 0
        assert (number(path, "PRAGMA user_version"), file.migrate()) == (2, "")
    version_2.undo()
    forget_expected_tables()
    assert_refused_and_unchanged(path, FormatTooNew)


@pytest.mark.usefixtures("version_2")
def test_damaged_row_stays_damaged_after_a_migration(path: Path) -> None:
    """Fails if a migration cannot use the checksum, or writes a new one for a damaged row."""
    shutil.copy(GOLDEN, path)
    change(path, "UPDATE failures SET attempt = 7")
    store = SqliteStore(path)
    with pytest.raises(Corrupted):
        everything_in(store)
    store.close()


@pytest.mark.parametrize("version", [1, 2, 9])
def test_file_of_an_unreleased_version_is_refused_and_unchanged(path: Path, version: int) -> None:
    """Fails if it is taken for version 1, for a newer one, or for another program's file."""
    shutil.copy(GOLDEN, path)
    change(path, f"PRAGMA application_id = {UNRELEASED_ID}", f"PRAGMA user_version = {version}")
    error = assert_refused_and_unchanged(path, StoreError)
    assert type(error) is StoreError
    assert "before the first release" in str(error)
    assert str(path) in str(error)


def assert_refused_and_unchanged(path: Path, kind: type[StoreError]) -> StoreError:
    before = path.read_bytes()
    with pytest.raises(kind) as caught:
        SqliteStore(path)
    for call in (SqliteFile(path).pending_migrations, SqliteFile(path).migrate):
        with pytest.raises(kind):
            call()
    assert path.read_bytes() == before
    return caught.value


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
    error = assert_refused_and_unchanged(path, FormatTooNew)
    assert isinstance(error, FormatTooNew)
    assert (error.found, error.supported) == (999, FORMAT_VERSION)
    assert str(path) in str(error)


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


def test_file_that_is_not_a_database_is_refused_and_unchanged(path: Path) -> None:
    path.write_text("dear diary, " * 500)
    with pytest.raises(Corrupted) as caught:
        SqliteStore(path)
    assert caught.value.place == str(path)
    assert path.read_text() == "dear diary, " * 500


def test_pending_migrations_of_another_file_are_unavailable(path: Path) -> None:
    """The error of the driver is one of ours."""
    path.write_text("no database" * 100, encoding="utf-8")
    for place in (path, path.with_name("missing.db")):
        with pytest.raises(Unavailable, match="cannot be read as an SQLite file"):
            SqliteFile(place).pending_migrations()


@pytest.mark.parametrize("order", ["PRAGMA user_version = 0", "PRAGMA user_version = -1"])
def test_version_that_the_tables_contradict_is_damage(path: Path, order: str) -> None:
    """No migration is applied to tables that are there."""
    SqliteStore(path).close()
    change(path, order)
    with pytest.raises(Corrupted, match="does not match"):
        SqliteStore(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        SqliteStore(tmp_path / "nowhere" / "store.db")


@pytest.mark.parametrize(
    "order", ["DROP TABLE results", "DROP INDEX runs_by_number", "PRAGMA user_version = 0"]
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


def test_statements_are_distinguished() -> None:
    script = "-- a comment; not a statement\nA ';'\nB;\nC;\n"
    assert list(statements(script)) == ["A ';'\nB;", "C;"]
