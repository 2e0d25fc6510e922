"""Has processes race for every seq of one thread, and records each call with its times.

Run as ``python -m tests.process.recorded_races URL RACES``; prints JSON. In each race two writers
commit the same seq, begun together, and each reads the head before or after. The record is checked
for linearizability, and held against the log that the store has in the end. ``unfenced:PATH`` is a
store that looks for the head and then inserts, with no key in between: the control.
"""

from __future__ import annotations

import json
import mmap
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from milecastle.errors import Conflict, StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Chain
from milecastle.stores.opening import find_store
from milecastle.testing.entries import a_key, an_entry, make_id
from tests.process.linearizability import Operation, first_contradiction

WRITERS = 2


class Raced(Protocol):
    """As much of a store as races need."""

    def commit(self, batch: Batch) -> None: ...

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None: ...

    def close(self) -> None: ...


class Unfenced:
    """Looks for the head and then inserts. What is between the two belongs to the others."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS entries (seq INTEGER, id TEXT)")

    def commit(self, batch: Batch) -> None:
        chain = self.read(batch.key)
        head = chain.entries[-1].seq if chain else 0
        if head != batch.head:
            key, wanted = batch.key, batch.head + 1
            raise Conflict(tenant=key.tenant, thread=key.thread, expected=wanted, head=head)
        row = (batch.entries[0].seq, batch.entries[0].id)
        self._connection.execute("INSERT INTO entries VALUES (?, ?)", row)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        newest = "SELECT seq, id FROM entries WHERE seq <= ? ORDER BY seq DESC, rowid DESC LIMIT 1"
        row = self._connection.execute(newest, [2**62 if seq is None else seq]).fetchone()
        return Chain((an_entry(row[0], id=row[1]),)) if row else None

    def close(self) -> None:
        self._connection.close()


def open_raced(url: str) -> Raced:
    scheme, _, path = url.partition(":")
    return Unfenced(path) if scheme == "unfenced" else find_store(url)


class Recorder:
    """One writer: calls a store and notes what was asked, when, and what came of it."""

    def __init__(self, store: Raced, writer: int) -> None:
        self._store = store
        self._writer = writer
        self.operations: list[Operation] = []

    def race(self, races: int, meet: Callable[[int, int], None]) -> None:
        """Try to append every seq, each together with the others."""
        for seq in range(1, races + 1):
            meet(self._writer, seq)
            if (seq + self._writer) % 3 == 0:
                self._read()
                self._append(seq)
            else:
                self._append(seq)
                self._read()

    def _append(self, seq: int) -> None:
        entry = an_entry(seq, id=make_id(seq * WRITERS + self._writer))
        batch = Batch(key=a_key(), head=seq - 1, entries=(entry,))
        asked = time.monotonic_ns()
        try:
            self._store.commit(batch)
            answer, head = "kept", seq
        except Conflict as conflict:
            answer, head = "refused", conflict.head
        except StoreError:
            answer, head = "unknown", -1
        self._note(asked, answer, entry.id, seq - 1, head)

    def _read(self) -> None:
        asked = time.monotonic_ns()
        try:
            chain = self._store.read(a_key())
        except StoreError:
            return
        newest = chain.entries[-1] if chain else None
        self._note(asked, "read", newest.id if newest else "", -1, newest.seq if newest else 0)

    def _note(self, asked: int, answer: Any, entry_id: str, wanted: int, head: int) -> None:
        answered = time.monotonic_ns()
        self.operations.append(Operation(asked, answered, answer, entry_id, wanted, head))


class Meeting:
    """A place in shared memory where writers wait for each other before each race."""

    def __init__(self, races: int) -> None:
        self._arrived = mmap.mmap(-1, WRITERS * (races + 1))

    def __call__(self, writer: int, race: int) -> None:
        first = race * WRITERS
        self._arrived[first + writer] = 1
        until = time.monotonic() + 60
        while not all(self._arrived[first : first + WRITERS]) and time.monotonic() < until:
            time.sleep(0)


def record(url: str, races: int) -> list[Operation]:
    """Let forked processes race; the calls of all of them."""
    meeting = Meeting(races)
    with tempfile.TemporaryDirectory(prefix="mc-races-") as folder:
        places = [Path(folder) / str(writer) for writer in range(WRITERS)]
        children: list[int] = []
        for writer, place in enumerate(places):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    recorder = Recorder(open_raced(url), writer)
                    recorder.race(races, meeting)
                    place.write_text(json.dumps(recorder.operations), "utf-8")
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return [Operation(*each) for place in places for each in json.loads(place.read_bytes())]


def problems(operations: list[Operation], races: int, kept: dict[int, str]) -> list[str]:
    """What is wrong with a record, and with the log that is left of it; empty if nothing."""
    found: list[str] = []
    contradiction = first_contradiction(operations)
    if contradiction is not None:
        found.append(f"not linearizable: {contradiction}")
    won = [(each.wanted + 1, each.id) for each in operations if each.answer == "kept"]
    unknown = sum(each.answer == "unknown" for each in operations)
    if len(won) != races or unknown:
        found.append(f"{len(won)} of {races} races were won, {unknown} came out unknown")
    if any(kept.get(seq) != entry_id for seq, entry_id in won):
        found.append("what the store kept is not what was won")
    return found


def main(url: str, races: int) -> dict[str, Any]:
    """Race, and say what was recorded and what is wrong with it."""
    open_raced(url).close()
    operations = record(url, races)
    with closing(open_raced(url)) as store:
        found = problems(operations, races, kept_by(store, races))
    refused = sum(each.answer == "refused" for each in operations)
    return {"operations": len(operations), "refused": refused, "problems": found}


def kept_by(store: Raced, races: int) -> dict[int, str]:
    """The id of each entry of the log."""
    chains = [store.read(a_key(), seq) for seq in range(1, races + 1)]
    return {chain.entries[-1].seq: chain.entries[-1].id for chain in chains if chain}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
