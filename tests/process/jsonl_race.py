"""Has processes race for every seq of one thread of a file store, and says who won what.

Run as ``python -m tests.process.jsonl_race FOLDER RACES [broken]``; prints the problems as JSON.
``broken`` takes the lock away: the control.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from pathlib import Path

from milecastle.errors import Conflict, StoreError
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore, locking
from milecastle.testing.entries import a_key, an_entry, make_id

WRITERS = 2
WON, LOST, FAILED = 1, 2, 3


def contend(folder: Path, writer: int, races: int, notes: mmap.mmap) -> None:
    """Try to append every seq, each together with the others; note what came of it."""
    store = JsonlStore(folder)
    ready = 2 * WRITERS * (races + 1)
    for seq in range(1, races + 1):
        notes[ready // 2 + seq * WRITERS + writer] = 1
        others = [ready // 2 + seq * WRITERS + other for other in range(WRITERS)]
        deadline = time.monotonic() + 30
        while not all(notes[place] for place in others) and time.monotonic() < deadline:
            pass
        entry = an_entry(seq, id=make_id(seq * WRITERS + writer))
        try:
            store.commit(Batch(key=a_key(), head=seq - 1, entries=(entry,)))
            outcome = WON
        except Conflict:
            outcome = LOST
        except StoreError:
            outcome = FAILED
        notes[seq * WRITERS + writer] = outcome


def main(folder: Path, races: int) -> list[str]:
    """Race, and return what is wrong with the outcome."""
    notes = mmap.mmap(-1, 2 * WRITERS * (races + 1))
    children: list[int] = []
    for writer in range(WRITERS):
        pid = os.fork()
        if pid == 0:
            try:
                contend(folder, writer, races, notes)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return problems(folder, races, notes)


def problems(folder: Path, races: int, notes: mmap.mmap) -> list[str]:
    """Hold what the writers noted against what the store kept."""
    found: list[str] = []
    winners: dict[int, int] = {}
    for seq in range(1, races + 1):
        outcomes = [notes[seq * WRITERS + writer] for writer in range(WRITERS)]
        if sorted(outcomes) != [WON, *[LOST] * (WRITERS - 1)]:
            found.append(f"seq {seq} came out as {outcomes}")
        else:
            winners[seq] = outcomes.index(WON)
    try:
        kept = {entry.seq: entry.id for entry in JsonlStore(folder).history(a_key())}
    except StoreError as error:
        return [*found, str(error)]
    for seq, writer in winners.items():
        if kept.get(seq) != make_id(seq * WRITERS + writer):
            found.append(f"seq {seq} was won by writer {writer} and is not there")
    if len(set(winners.values())) < WRITERS:
        found.append("one writer won every race")
    return found


def without_locks() -> None:
    """Break the store."""
    locking.try_lock = lambda fd, shared: True


if __name__ == "__main__":
    if "broken" in sys.argv:
        without_locks()
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
