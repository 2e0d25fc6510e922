"""A process that writes to an SQLite store and says what was acknowledged, until it is killed.

sqlite_writer.py kill PATH THREAD honest|cheating
sqlite_writer.py race PATH WRITER WRITERS
sqlite_writer.py open PATH
"""

from __future__ import annotations

import sys
from pathlib import Path

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Kind
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import Races
from milecastle.testing.entries import Writer, a_key, a_result


class Cheating(SqliteStore):
    """Says that a batch was committed when it only knows it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, synchronous="normal")
        self._waiting: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        self._waiting.append(batch)
        if len(self._waiting) >= 16:
            for each in self._waiting:
                super().commit(each)
            self._waiting = []


def kind_of(seq: int) -> Kind:
    """The kind of each entry; known to whoever checks."""
    if seq % 17 == 0:
        return SNAPSHOT
    return ROLLUP if seq % 5 == 0 else DELTA


def write_next(store: Store, writer: Writer) -> None:
    """Append one entry, now and then with more in the batch."""
    seq = writer.head + 1
    runs = (writer.run,) if seq == 1 or seq % 7 == 0 else ()
    results = (a_result(seq),) if seq % 11 == 0 else ()
    writer.append(store, kind_of(seq), runs=runs, results=results)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_until_killed(store: Store, thread: str) -> None:
    writer = Writer(a_key(thread))
    say("ready")
    while True:
        write_next(store, writer)
        say(str(writer.head))


def race(store: Store, writer: int, writers: int) -> None:
    """For each line that comes in, try to append that seq; say whether it was won."""
    say("ready")
    for line in sys.stdin:
        seq = int(line)
        races = Races(a_key(), writers, 0, {})
        races.note(seq, writer, store)
        say(races.won[seq][0] if races.won else "refused")


def open_files() -> None:
    """Open the file that each line names."""
    say("ready")
    for line in sys.stdin:
        SqliteStore(line.strip()).close()
        say("opened")


def main(arguments: list[str]) -> None:
    if arguments == ["open"]:
        return open_files()
    verb, path, *rest = arguments
    if verb == "kill":
        honest = rest[1] == "honest"
        write_until_killed(SqliteStore(path) if honest else Cheating(path), rest[0])
    else:
        shared = Path(path).suffix == ".db"
        race(SqliteStore(path) if shared else MemoryStore(), int(rest[0]), int(rest[1]))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
