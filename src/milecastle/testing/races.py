"""Races: many writers want the same seq in one thread, over and over.

In each race every writer commits an entry with the seq coming next. A correct store lets exactly
one win, refuses the others with ``Conflict``, and loses nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Barrier, Thread

import msgspec

from milecastle.errors import Conflict
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.testing.entries import an_entry, make_id


class Races(msgspec.Struct):
    """Outcome of races on one thread: each seq's winner, and the number refused."""

    key: ThreadKey
    writers: int
    races: int
    won: dict[int, list[str]]
    refused: int = 0
    errors: list[BaseException] = []

    def problems(self, store: Store) -> list[str]:
        """Problems with the outcome and the stored log; empty if none."""
        found = [f"a writer was stopped by {error!r}" for error in self.errors]
        for seq in range(1, self.races + 1):
            winners = len(self.won.get(seq, ()))
            if winners != 1:
                found.append(f"seq {seq} was won by {winners} writers")
        expected = self.races * (self.writers - 1)
        if self.refused != expected:
            found.append(f"{self.refused} writers were refused instead of {expected}")
        kept = {entry.seq: entry.id for entry in store.history(self.key)}
        if kept != {seq: ids[0] for seq, ids in self.won.items()}:
            found.append("what the store kept is not what was won")
        return found

    def note(self, seq: int, writer: int, store: Store) -> None:
        """Let one writer try to append ``seq``, and note the outcome."""
        entry = an_entry(seq, id=make_id(seq * self.writers + writer))
        try:
            store.commit(Batch(key=self.key, head=seq - 1, entries=(entry,)))
        except Conflict:
            self.refused += 1
        else:
            self.won.setdefault(seq, []).append(entry.id)


def race_in_threads(store: Store, key: ThreadKey, *, races: int, writers: int = 4) -> Races:
    """Race OS threads, starting each race together."""
    ledgers = [Races(key, writers, races, {}) for _ in range(writers)]
    barrier = Barrier(writers, timeout=60)

    def run(writer: int) -> None:
        ledger = ledgers[writer]
        try:
            for seq in range(1, races + 1):
                barrier.wait()
                ledger.note(seq, writer, store)
        except BaseException as error:
            barrier.abort()
            ledger.errors.append(error)

    threads = [Thread(target=run, args=(writer,)) for writer in range(writers)]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return _summed(ledgers)


async def race_in_tasks(store: Store, key: ThreadKey, *, races: int, writers: int = 4) -> Races:
    """Race asyncio tasks; a blocking store is called off the event loop."""
    import asyncio

    ledgers = [Races(key, writers, races, {}) for _ in range(writers)]
    barrier = asyncio.Barrier(writers)

    async def run(writer: int) -> None:
        for seq in range(1, races + 1):
            await barrier.wait()
            if store.blocking:
                await asyncio.to_thread(ledgers[writer].note, seq, writer, store)
            else:
                ledgers[writer].note(seq, writer, store)

    async with asyncio.TaskGroup() as group:
        for writer in range(writers):
            group.create_task(run(writer))
    return _summed(ledgers)


def _summed(ledgers: list[Races]) -> Races:
    first = ledgers[0]
    total = Races(first.key, first.writers, first.races, {})
    for ledger in ledgers:
        total.refused += ledger.refused
        total.errors += ledger.errors
        for seq, ids in ledger.won.items():
            total.won.setdefault(seq, []).extend(ids)
    return total


@contextmanager
def switching_often() -> Generator[None, None, None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
