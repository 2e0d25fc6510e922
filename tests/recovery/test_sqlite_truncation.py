"""An SQLite file, or its write-ahead log, is cut off: what is left is right, or a clear error.

A cut log is the store as it was after some earlier commit. A cut file is damage, unless nothing is
left of it at all. Some lengths are tried; `MILECASTLE_EXHAUSTIVE=1` tries every length of the file,
and every 64th of the log beside each end of a frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.store import Batch
from milecastle.stores.sqlite import SqliteStore, log, transaction
from milecastle.testing.entries import Writer, a_result
from tests.migration.sqlite_golden import KEYS, fill
from tests.recovery.test_sqlite_damage import (
    CLEAR,
    PAGE,
    contents,
    filled,
    invented,
    read_all,
    without_checksum,
)

EXHAUSTIVE = bool(os.environ.get("MILECASTLE_EXHAUSTIVE"))
LOG_HEADER = 32
FRAME = PAGE + 24


class NotingMailbox:
    """A mailbox that calls a function after each write."""

    def __init__(self, inner: Any, note: Callable[[], None]) -> None:
        self._inner = inner
        self._note = note

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in ("send", "discard", "restore"):
            return method

        def write(*given: Any, **named: Any) -> Any:
            found = method(*given, **named)
            self._note()
            return found

        return write


class Remembering(SqliteStore):
    """A store that notes what can be read of it whenever a write has changed that."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.states = [contents(self)]

    def _note(self) -> None:
        now = contents(self)
        if now != self.states[-1]:
            self.states.append(now)

    @property
    def mailbox(self) -> Any:
        return NotingMailbox(super().mailbox, self._note)

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        self._note()

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self._note()
        return dropped

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        was_there = super().delete(key, head=head, head_id=head_id)
        self._note()
        return was_there

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        claimed = super().claim(worker, lanes, limit=limit)
        self._note()
        return claimed


def read_left(path: Path, data: bytes, log: bytes = b"") -> list[Any] | None:
    """What can be read of a file and a log; ``None`` if that is a clear error."""
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    path.write_bytes(data)
    if log:
        Path(f"{path}-wal").write_bytes(log)
    try:
        return read_all(path)
    except CLEAR:
        return None


def wrong_lengths(path: Path, lengths: Iterable[int]) -> list[int]:
    """To which lengths a file must be cut for something to be read that was never written."""
    data, expected = path.read_bytes(), read_all(path)
    wrong: list[int] = []
    for length in lengths:
        read = read_left(path, data[:length])
        if read is None:
            continue
        pairs = zip(read[:-1], expected[:-1], strict=True)
        if any(invented(*pair) for pair in pairs) or read[-1] not in (None, expected[-1]):
            wrong.append(length)
    return wrong


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that ends with a result. The end of an index can be lost without harm to reads."""
    found = filled(tmp_path)
    store = SqliteStore(found)
    writer = Writer(KEYS[3], 9).begin(store)
    store.commit(writer.batch(results=(a_result(1, "one", bytes(range(256)) * 40),)))
    store.close()
    return found


def some_lengths(size: int) -> Iterable[int]:
    """The last page counts most: SQLite itself notices that others are missing."""
    if EXHAUSTIVE:
        return range(size)
    ends = range(PAGE, size, PAGE)
    return {
        0,
        1,
        *range(16, size, 997),
        *(end - 1 for end in ends),
        *ends,
        *range(size - PAGE + 1, size, 41),
    }


def test_a_truncated_file_invents_nothing(path: Path) -> None:
    size = path.stat().st_size
    assert wrong_lengths(path, some_lengths(size)) == []


def test_a_truncated_file_is_damage_unless_nothing_is_left(path: Path) -> None:
    data = path.read_bytes()
    assert read_left(path, b"") == read_left(path.with_name("new.db"), b"")
    for length in (PAGE, 2 * PAGE, len(data) - PAGE, len(data) - 1):
        assert read_left(path, data[:length]) is None, length


def test_without_checksums_a_truncated_file_would_be_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (log, transaction):
        monkeypatch.setattr(module, "checked", without_checksum)
    size = path.stat().st_size
    assert wrong_lengths(path, range(size - PAGE + 1, size, 41)) != []


def is_commit(log: bytes, frame: int) -> bool:
    """True if a frame ends a transaction: its header has the size of the file after it."""
    return any(log[frame + 4 : frame + 8])


def reads_of_cuts(path: Path, data: bytes, log: bytes) -> list[list[Any] | None]:
    """What can be read beside each cut of a log, the shortest first.

    Some: behind each frame that ends a transaction, and around every twelfth of all.
    """
    frames = range(LOG_HEADER, len(log) + 1, FRAME)
    beside = frames if EXHAUSTIVE else frames[::12]
    ends = frames if EXHAUSTIVE else [end for end in frames[1:] if is_commit(log, end - FRAME)]
    lengths = {0, *ends, *beside, *(end - 1 for end in beside), *(end + 1 for end in beside[:-1])}
    if EXHAUSTIVE:
        lengths.update(range(0, len(log), 64))
    return [read_left(path, data, log[:length]) for length in sorted(lengths)]


def places(reads: list[list[Any] | None], states: list[Any]) -> list[int]:
    """Which of the states each read shows; stops at one that is none.

    A longer log never shows an earlier state: each is looked for from the last one on.
    """
    found = [0]
    for read in reads:
        if read not in states[found[-1] :]:
            return [*found, -1]
        found.append(states.index(read, found[-1]))
    return found


def test_a_truncated_write_ahead_log_is_an_earlier_state(tmp_path: Path) -> None:
    store = Remembering(tmp_path / "store.db")
    fill(store)
    data, log = (Path(f"{store.path}{end}").read_bytes() for end in ("", "-wal"))
    store.close()
    reads = reads_of_cuts(tmp_path / "cut.db", data, log)
    found = places(reads, store.states)
    assert sorted(set(found)) == list(range(len(store.states)))
    del store.states[7]
    assert places(reads, store.states)[-1] == -1
