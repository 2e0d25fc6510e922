"""Files of every format version are read, newer ones are refused, and so are those of others."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.tags import TagChange
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.stores.sqlite.migrating import APPLICATION_ID, FORMAT_VERSION, SqliteFile
from milecastle.stores.sqlite.queries import MIGRATIONS, statements
from milecastle.stores.sqlite.rows import checksum
from milecastle.testing.contract_claims import LANE, a_line, names
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key
from tests.migration.sqlite_golden import (
    GOLDEN,
    KEYS,
    TAGGED,
    claims_in,
    everything_in,
    fill,
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


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("sqlite-v*.db")), ids=lambda file: file.stem)
def test_a_file_of_every_version_is_read_and_written(golden: Path, path: Path) -> None:
    shutil.copy(golden, path)
    version = int(golden.stem.removeprefix("sqlite-v"))
    memory = MemoryStore()
    fill(memory, version)
    store = SqliteStore(path)
    found, expected = everything_in(store), everything_in(memory)
    for part in (*found[:-1], *expected[:-1]) if version == 1 else ():
        del part["thread"], part["threads"]  # made by the migration: see below
    assert found == expected
    assert claims_in(store) == claims_in(memory)
    assert messages_in(store) == messages_in(memory)
    assert store.tags.of("tenant", [TAGGED.thread]) == memory.tags.of("tenant", [TAGGED.thread])
    assert store.tags.threads("tenant", "red") == memory.tags.threads("tenant", "red")
    if version > 2:
        assert store.recent_threads("tenant") == memory.recent_threads("tenant")
        assert store.recent_runs("tenant") == memory.recent_runs("tenant")
    writer = Writer(a_key("new"), 9).begin(store, 3)
    check_reads(store, writer)
    store.close()
    assert number(path, "PRAGMA user_version") == FORMAT_VERSION


def statuses(store: SqliteStore) -> dict[str, tuple[str, int | None]]:
    listed = [*store.threads("tenant"), *store.threads("other")]
    assert listed == [store.thread(info.key) for info in listed]
    return {info.key.thread: (info.status, info.wake_at) for info in listed}


def test_the_index_of_version_1_is_made_of_heads(path: Path) -> None:
    """A thread is what its head and the head's run say, not what the newest run was.

    Fails if the migration leaves the newest run of version 1 in the index.
    """
    shutil.copy(GOLDEN / "sqlite-v1.db", path)
    store = SqliteStore(path)
    assert statuses(store) == {
        "alpha": ("running", None),
        "beta": ("running", None),
        "gamma": ("sleeping", 8),
    }
    store.close()


def test_the_index_of_version_1_knows_what_is_over(path: Path, tmp_path: Path) -> None:
    """Fails if what is left to run, or the status of the head's run, is not looked at."""
    old = tmp_path / "v1.db"
    shutil.copy(GOLDEN / "sqlite-v1.db", old)
    with closing(sqlite3.connect(old)) as database:
        database.create_function("checksum", -1, checksum)
        database.execute("UPDATE entries SET next = NULL, route = NULL WHERE id >> 32 = 1")
        database.execute("UPDATE runs SET status = 'completed' WHERE thread = 2")
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(runs)")][:-1]
        database.execute(f"UPDATE runs SET sum = checksum({', '.join(columns)})")
        database.commit()
    store = SqliteStore(old)
    assert statuses(store) == {
        "alpha": ("completed", None),
        "beta": ("interrupted", None),
        "gamma": ("sleeping", 8),
    }
    store.close()


def test_what_was_damaged_before_a_migration_stays_damaged(path: Path) -> None:
    """Fails if the migration writes a checksum for a row that did not match its own."""
    orders = ("UPDATE runs SET graph = 'x'", "UPDATE threads SET failures = 7")
    for version, order in product((1, 2, 3, 4, 7), orders):
        shutil.copy(GOLDEN / f"sqlite-v{version}.db", path)
        change(path, order)
        store = SqliteStore(path)
        with pytest.raises(Corrupted):
            everything_in(store)
        store.close()
        for file in path.parent.glob("store.db*"):
            file.unlink()


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


def test_file_that_is_not_a_database_is_refused_and_unchanged(path: Path) -> None:
    path.write_text("dear diary, " * 500)
    with pytest.raises(Corrupted) as caught:
        SqliteStore(path)
    assert caught.value.place == str(path)
    assert path.read_text() == "dear diary, " * 500


def test_what_a_migration_lacks_is_not_asked_of_another_file(path: Path) -> None:
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


def test_threads_of_version_3_are_in_no_lane(path: Path) -> None:
    """Fails if the migration leaves a line that cannot be read, or that a worker would claim."""
    shutil.copy(GOLDEN / "sqlite-v3.db", path)
    store = SqliteStore(path)
    assert store.claim("one", ["", LANE], limit=9) == []
    assert list(store.depths()) == []
    writer = Writer(KEYS[0], 9).begin(MemoryStore(), 6)
    store.commit(Batch(key=writer.key, head=6, thread=a_line(writer)))
    assert names(store.claim("one", [LANE], limit=9)) == ["alpha"]
    store.close()


def test_threads_of_version_4_can_be_tagged(path: Path) -> None:
    """Fails without the fifth migration, or if it gives threads tags."""
    shutil.copy(GOLDEN / "sqlite-v4.db", path)
    store = SqliteStore(path)
    assert store.tags.of("tenant", [key.thread for key in KEYS]) == {}
    store.commit(Batch(key=KEYS[0], head=6, tags=TagChange(("blue",))))
    assert [info.key for info in store.tags.threads("tenant", "blue")] == [KEYS[0]]
    store.close()


def test_threads_of_version_2_are_listed_behind_newer_ones(path: Path) -> None:
    """Fails if the migration does not fill in the tenant of runs, or leaves rows out."""
    shutil.copy(GOLDEN / "sqlite-v2.db", path)
    store = SqliteStore(path)
    tenant = KEYS[0].tenant
    older = {info.key.thread for info in store.threads(tenant)}
    new = Writer(a_key("new", tenant), 99).begin(store)
    for page in (store.recent_threads(tenant), store.recent_runs(tenant)):
        assert page.items[0].key == new.key
        assert {item.key.thread for item in page.items[1:]} <= older
    assert len(store.recent_threads(tenant).items) == len(older) + 1
    assert len(store.recent_runs(tenant).items) == 1 + sum(
        len(store.runs(ThreadKey(tenant, name))) for name in older
    )
    store.close()
