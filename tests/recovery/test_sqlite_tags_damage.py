"""A damaged tag is found: it is never taken for one, nor silently for none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.app.upkeep.verifying import verify_thread
from milecastle.errors import Corrupted
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_tags import names, tagged
from milecastle.testing.entries import a_key


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a.db")
    for number, thread in enumerate("abc", 1):
        tagged(store, thread, "blue", number=number)
    yield store
    store.close()


def change(store: SqliteStore, order: str) -> None:
    with closing(sqlite3.connect(store.path)) as database:
        database.execute(order)
        database.commit()


def test_a_damaged_row_is_omitted_with_a_warning(store: SqliteStore) -> None:
    """Fails if the checksum of a tag is not compared."""
    change(store, "UPDATE tags SET sum = sum + 1 WHERE thread = 'b'")
    with pytest.warns(RuntimeWarning, match="omitted from a list.*tags"):
        assert names(store.tags.threads("tenant", "blue")) == ["a", "c"]
    with pytest.raises(Corrupted, match="tags"):
        store.tags.of("tenant", ["b"])
    for thread, is_damaged in (("a", False), ("b", True)):
        findings = verify_thread(store, a_key(thread)).findings
        assert any("table tags" in found.place for found in findings) == is_damaged


def test_a_row_of_another_name_is_damage(store: SqliteStore) -> None:
    """Fails if the name in a row is not compared with that of its thread."""
    rows = "SELECT tenant, tag, 'bb', id, checksum(tenant, tag, 'bb', id) FROM tags"
    with closing(sqlite3.connect(store.path)) as database:
        from milecastle.stores.sqlite.rows import checksum

        database.create_function("checksum", -1, checksum)
        database.execute(f"INSERT INTO tags {rows} WHERE thread = 'b'")
        database.commit()
    with pytest.raises(Corrupted, match="tags"):
        store.tags.of("tenant", ["b"])
    with pytest.warns(RuntimeWarning, match="tags"):
        assert names(store.tags.threads("tenant", "blue")) == ["a", "b", "c"]


def test_a_key_that_was_changed_is_noticed_from_beside(store: SqliteStore) -> None:
    """Fails if the rows around a list are not verified: one of them may belong into it."""
    change(store, "UPDATE tags SET tag = 'bluf' WHERE thread = 'a'")
    with pytest.warns(RuntimeWarning, match="tags"):
        assert names(store.tags.threads("tenant", "blue")) == ["b", "c"]


def test_a_damaged_row_takes_no_place_on_a_page(store: SqliteStore) -> None:
    """Fails if a page is short, which its reader takes for the last one."""
    change(store, "UPDATE tags SET sum = sum + 1 WHERE thread = 'a'")
    with pytest.warns(RuntimeWarning, match="tags"):
        assert names(store.tags.threads("tenant", "blue", limit=2)) == ["b", "c"]
