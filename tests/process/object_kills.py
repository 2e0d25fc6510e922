"""Processes that write large values and sweep them, to be killed at any moment.

Several writers share a few values, so that what one has just deleted is what another one writes.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from milecastle.errors import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.offloading import OffloadingStore, SharedObjects, offload, sweep, sweeping
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import an_entry, make_id

TENANT = "tenant"
PATIENCE = 1.0
GRACE = 4.0
WRITERS = 2
THREADS = 3
VALUES = tuple(random.Random(number).randbytes(3000) for number in range(6))


def opened(folder: Path) -> OffloadingStore:
    objects = SharedObjects(f"file://{folder}/objects", threshold=1000, patience=PATIENCE)
    return offload(SqliteStore(folder / "store.db", synchronous="normal"), objects)


def keys_of(writer: int) -> list[ThreadKey]:
    return [ThreadKey(TENANT, f"{writer}-{number}") for number in range(THREADS)]


def write(folder: Path, writer: int, seed: int) -> None:
    """Append entries with large values, and delete threads, until killed."""
    store, chosen = opened(folder), random.Random(seed)
    while True:
        key = chosen.choice(keys_of(writer))
        with suppress(StoreError):
            if chosen.random() < 0.2:
                store.delete(key)
                continue
            head = store.head(key)
            seq = head.seq + 1 if head else 1
            entry = an_entry(seq, payload=chosen.choice(VALUES), id=make_id(chosen.getrandbits(90)))
            store.commit(Batch(key=key, head=seq - 1, entries=(entry,)))


def sweep_again(folder: Path, grace: float, cheats: bool) -> None:
    """Sweep until killed; a cheat takes every object for an old one."""
    if cheats:
        setattr(sweeping, "GRACE", 0)  # noqa: B010 - a constant
    store = opened(folder)
    while True:
        with suppress(StoreError):
            sweep(store, TENANT, grace=grace)


def started(target: Callable[..., None], *given: object) -> BaseProcess:
    """A process that was forked from one which has imported all this, and used none of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=given, daemon=True)
    process.start()
    return process


def check(store: OffloadingStore, writers: range = range(WRITERS)) -> int:
    """Read everything that writers have written; ``Corrupted`` if an object is missing."""
    return sum(len(store.entries(key)) for writer in writers for key in keys_of(writer))
