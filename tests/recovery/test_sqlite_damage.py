"""Any bit of an SQLite file is flipped: what is read is right, or it is a clear error.

A flip in what a row holds never goes unnoticed. One in the bookkeeping of a page may at worst
hide rows from the end of a thread, or a thread, as cutting the file off would; what is left is
still right, and a task whose last result is hidden has the one before. `MILECASTLE_FLIPS` is the
number of flips, of bits that the commit's id chooses; 0 is every bit that is not in empty space.
"""

from __future__ import annotations

import os
import random
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milecastle.app.upkeep.verifying import verify_thread
from milecastle.errors import CodecError, Corrupted, FormatTooNew, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.stores.sqlite import SqliteStore, transaction
from milecastle.stores.sqlite.rows import Row
from milecastle.testing.entries import Writer, a_key
from tests.migration.sqlite_golden import KEYS, MAILED, REPLACED, TAGGED, everything_in, fill
from tests.seeds import first_seed

FLIPS = int(os.environ.get("MILECASTLE_FLIPS", "60"))
PAGE = 4096
CLEAR = (Corrupted, CodecError, FormatTooNew, InvalidRequest, RuntimeWarning)
"""A damaged row of a list is a warning: the others are listed."""
LISTED = (
    *("history", "entries", "runs", "results", "threads", "tags", "tagged"),
    *("unread", "of topic", "consumed"),
)


SMALL: dict[str, Callable[[SqliteStore], object]] = {
    "results": lambda store: [store.results(key) for key in KEYS],
    "tags": lambda store: store.tags.of(TAGGED.tenant, [TAGGED.thread]),
    "mailbox": lambda store: (store.mailbox.unread(MAILED), store.mailbox.marks(MAILED)),
}
"""Small tables, and the reads that find most of their damage."""


def read_all(path: Path, table: str | None = None) -> list[Any]:
    """Everything in a file, a small table first: a clear error then comes sooner."""
    store = SqliteStore(path, timeout=0.1)
    try:
        if table:
            SMALL[table](store)
        return contents(store)
    finally:
        store.close()


def contents(store: SqliteStore) -> list[Any]:
    """Everything in a store, mailboxes included."""
    *parts, manifest = everything_in(store)
    return [*({**part, **mailbox_in(store, part)} for part in parts), manifest]


def mailbox_in(store: SqliteStore, part: dict[str, Any]) -> dict[str, Any]:
    """The mailbox of the thread of a part."""
    if part["thread"] is None:
        return {"unread": [], "of topic": [], "consumed": []}
    key, mailbox = part["thread"].key, store.mailbox
    return {
        "unread": mailbox.unread(key),
        "of topic": mailbox.unread(key, topic="go"),
        "consumed": mailbox.marks(key).consumed,
    }


def table_pages(path: Path) -> set[int]:
    """The pages, from 0, that hold rows of tables; each table of so small a file has one."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table'")
        return {page - 1 for (page,) in rows}


def bits(data: bytes, pages: set[int], *, of_rows: bool) -> list[int]:
    """The bits of what rows hold, or those of everything else that is not empty."""
    found: list[int] = []
    for place, byte in enumerate(data):
        page, offset = divmod(place, PAGE)
        header = page * PAGE + (100 if page == 0 else 0)
        content = int.from_bytes(data[header + 5 : header + 7])
        is_row = page in pages and offset >= content
        if is_row == of_rows and (byte or offset < 64):
            found += range(place * 8, place * 8 + 8)
    return found


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def chosen(all_bits: list[int]) -> list[int]:
    if not FLIPS or len(all_bits) <= FLIPS:
        return all_bits
    return random.Random(first_seed()).sample(all_bits, FLIPS)


def outcomes(
    path: Path, data: bytes, flipped: list[int], table: str | None = None
) -> Iterator[tuple[int, list[Any] | None]]:
    """Each bit with what was read though it was flipped; ``None`` if that was a clear error."""
    for bit in flipped:
        for end in ("-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        path.write_bytes(flip(data, bit))
        try:
            yield bit, read_all(path, table)
        except CLEAR:
            yield bit, None


def filled(folder: Path) -> Path:
    """A closed file with everything that a store can hold."""
    path = folder / "store.db"
    store = SqliteStore(path)
    fill(store)
    store.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path)


def test_a_flipped_bit_of_a_row_is_never_missed(path: Path) -> None:
    data, expected = path.read_bytes(), read_all(path)
    flipped = chosen(bits(data, table_pages(path), of_rows=True))
    found = dict(outcomes(path, data, flipped))
    assert [bit for bit, read in found.items() if read not in (None, expected)] == []
    assert sum(read is None for read in found.values()) > len(flipped) // 2


@pytest.mark.parametrize("table", SMALL)
def test_a_flipped_bit_of_a_small_table_is_never_missed(path: Path, table: str) -> None:
    """Some that change the number of a row were missed once."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT rootpage - 1 FROM sqlite_master WHERE name = ?"
        [page] = database.execute(query, (table,)).fetchone()
    data, expected = path.read_bytes(), read_all(path)
    of_rows = bits(data, {page}, of_rows=True)
    flipped = chosen([bit for bit in of_rows if bit // 8 // PAGE == page])
    found = dict(outcomes(path, data, flipped, table))
    assert [bit for bit, read in found.items() if read not in (None, expected)] == []
    assert None in found.values()


def without_checksum(row: Row) -> Row:
    return row[:-1]


def test_without_checksums_a_flipped_bit_would_be_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, expected = path.read_bytes(), read_all(path)
    monkeypatch.setattr(transaction, "checked", without_checksum)
    flipped = bits(data, table_pages(path), of_rows=True)[::200]
    assert any(read not in (None, expected) for _, read in outcomes(path, data, flipped))


def test_a_flipped_bit_of_a_page_invents_nothing(path: Path) -> None:
    data, expected = path.read_bytes(), read_all(path)
    flipped = chosen(bits(data, table_pages(path), of_rows=False))
    for bit, read in outcomes(path, data, flipped):
        if read is None:
            continue
        for ours, truth in zip(read[:-1], expected[:-1], strict=True):
            assert invented(ours, truth) == [], f"bit {bit}"
        assert read[-1] in (None, expected[-1]), f"bit {bit}"


def invented(read: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    """The lists of a thread that hold what was never written, or leave something out between."""
    written = {**truth, "results": [*truth["results"], REPLACED]}
    wrong = [name for name in LISTED if any(item not in written[name] for item in read[name])]
    kept = read["history"]
    if kept and kept != [entry for entry in truth["history"] if entry.seq <= kept[0].seq]:
        wrong.append("gaps")
    return wrong


def test_damage_names_its_place(path: Path) -> None:
    data = path.read_bytes()
    place = data.rindex(b"1.3;")
    path.write_bytes(flip(data, place * 8))
    store = SqliteStore(path)
    with pytest.raises(Corrupted) as caught:
        store.read(a_key("alpha"), 3)
    for part in (str(path), "table entries", "tenant/alpha", "seq 3"):
        assert part in caught.value.place
    assert store.read(a_key("alpha"), 2) is not None
    store.close()


def test_damage_to_one_thread_leaves_the_others_readable(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flip(data, data.rindex(b"1.3;") * 8))
    store = SqliteStore(path)
    writer = Writer(a_key("another"), 7).begin(store, 3)
    assert [entry.seq for entry in store.history(writer.key)] == [3, 2, 1]
    assert store.read(a_key("beta")) is not None
    store.close()


ROWS: dict[str, tuple[str, bool]] = {
    "another number": ("UPDATE threads SET runs = 9 WHERE thread = 'b'", True),
    "not a status": ("UPDATE threads SET status = 'odd' WHERE thread = 'b'", False),
    "not UTF-8": ("UPDATE threads SET graph = CAST(x'ff' AS TEXT) WHERE thread = 'b'", True),
    "not a number": ("UPDATE threads SET started_at = 'odd' WHERE thread = 'b'", False),
    "not a name": ("UPDATE threads SET thread = CAST(x'62ff' AS TEXT) WHERE thread = 'b'", False),
}
"""What is damaged, and whether the row is listed all the same."""


@pytest.mark.parametrize("what", ROWS)
def test_damaged_row_of_the_index_does_not_stop_a_list(tmp_path: Path, what: str) -> None:
    """The others are listed, whatever the order and the page; a warning and ``verify`` name it.

    Seen to fail: each list of the tenant raised ``Corrupted``, and ``verify`` named no row.
    """
    order, listed = ROWS[what]
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    for number, name in enumerate("abcd"):
        Writer(ThreadKey("tenant", name), number).begin(store, 2)
    store.close()
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(order).rowcount == 1
    store = SqliteStore(path)
    expected = ["a", "b", "c", "d"] if listed else ["a", "c", "d"]
    with pytest.warns(RuntimeWarning, match=r"table threads, row 2, thread"):
        assert [info.key.thread for info in store.threads("tenant")] == expected
    with pytest.warns(RuntimeWarning, match=r"table threads, row 2, thread"):
        found = store.recent_threads("tenant").items
    assert sorted(info.key.thread for info in found) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        running = store.threads("tenant", status="running")
        assert {"a", "c", "d"} <= {info.key.thread for info in running}
        assert {run.key.thread for run in store.recent_runs("tenant").items} == {"a", "c", "d"}
        names: list[str] = []
        while page := store.threads("tenant", limit=1, after=names[-1] if names else None):
            names.append(page[0].key.thread)
        assert names == expected
    inspected = list(store.verify("tenant"))
    assert [one.thread for one in inspected if one.is_thread] == expected
    findings = [finding for one in inspected for finding in one.findings]
    if listed:
        findings += verify_thread(store, ThreadKey("tenant", "b")).findings
    assert findings
    assert all("table threads" in finding.place for finding in findings)
    store.close()


def test_a_row_that_vanished_is_missed(path: Path) -> None:
    """Also if the database itself has nothing to complain about."""
    for order, place in (
        ("DELETE FROM entries WHERE id = 4294967296 + 3", "entries, thread 'tenant/alpha', seq 4"),
        ("DELETE FROM entries WHERE id = 8589934592 + 6", "entries, thread 'tenant/beta', seq 6"),
        ("DELETE FROM origins", "entries, thread 'tenant/alpha', seq 6"),
        ("DELETE FROM runs WHERE status = 'failed'", "runs, thread 'tenant/alpha'"),
        ("DELETE FROM failures", "failures, thread 'tenant/alpha', run"),
        ("DELETE FROM results WHERE task = 'one'", "results, thread 'tenant/alpha', seq 6"),
    ):
        copy = path.with_name("copy.db")
        copy.write_bytes(path.read_bytes())
        with closing(sqlite3.connect(copy)) as database:
            assert database.execute(order).rowcount > 0
            database.commit()
        with pytest.raises(Corrupted) as caught:
            read_all(copy)
        assert place in caught.value.place
