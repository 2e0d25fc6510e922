"""Moves shards under load, kills what takes part in it, and judges what became of every step.

Pens are writers of this process: each appends to its own threads, and notes what was acknowledged
and how long it had to wait. Most of them are in shards that move, the others in shards that never
do: what holds up those too is not because of a move. Nothing is judged by times while a database is
down, nor shortly after.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import msgspec

from milecastle import Conflict, StoreError
from milecastle.model.checkpoint import DELTA, SNAPSHOT, Kind
from milecastle.model.keys import ThreadKey
from milecastle.stores.sharded import ShardedStore, read_map
from milecastle.testing.entries import Writer
from tests.process.fleet_chaos import ROOT
from tests.process.sharded_moves import execute

LIMIT = 2.0
"""For how many seconds a thread may be unavailable because of a move."""
SETTLED = 10.0
"""How many seconds after a database is back calls are expected to be as fast as before."""
_PAUSE = 0.01
_LENGTH = 200
"""How many steps a pen writes to a thread before it begins the next one."""
_PRUNED = 50
"""After how many steps it prunes the thread."""

MOVER = """
import os, random, signal, sys, time
from milecastle.errors import StoreError
from milecastle.stores.sharded import move_shard, read_map

def step(name):
    if random.random() < 0.01:
        os.kill(os.getpid(), signal.SIGKILL)

shards = read_map(sys.argv[1])
while True:
    shard, to = int(random.choice(sys.argv[2:])), random.choice(list(shards.urls))
    began = time.monotonic()
    try:
        if move_shard(shards, shard, to, step):
            print(f"moved {time.monotonic() - began:.3f}", flush=True)
    except StoreError as error:
        print(f"failed {error}", flush=True)
        time.sleep(0.2)
"""


class Wait(msgspec.Struct, frozen=True):
    """From the first attempt of a call until its answer."""

    began: float
    ended: float
    call: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def overlaps(self, other: Wait, before: float = 0.0, behind: float = 0.0) -> bool:
        return self.ended >= other.began - before and self.began <= other.ended + behind


class Pen:
    """Appends to threads of one shard, one after the other, until it is stopped.

    It prunes them from time to time, and deletes every second one when it is long enough.
    """

    def __init__(self, path: Path, shard: int, number: int) -> None:
        self.shard = shard
        self.writers: list[Writer] = []
        self.waits: list[Wait] = []
        self.deleted: list[ThreadKey] = []
        self.steps = 0
        self.error: BaseException | None = None
        self._number = number
        self._path = path
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(120)

    def _run(self) -> None:
        keys = (ThreadKey("default", f"pen {self._number}/{each}") for each in count())
        try:
            with closing(ShardedStore(self._path)) as store:
                while not self._stopped.is_set():
                    key = next(key for key in keys if key.shard == self.shard)
                    self._write(store, Writer(key, self._number))
        except BaseException as error:
            self.error = error

    def _write(self, store: ShardedStore, writer: Writer) -> None:
        self.writers.append(writer)
        self._step(store, writer, runs=(writer.run,))
        while writer.head < _LENGTH and not self._stopped.is_set():
            self._step(store, writer)
            sleep(_PAUSE)
            if writer.head % _PRUNED == 0:
                self._step(store, writer, SNAPSHOT)
                self._until_done("prune", lambda: writer.prune(store, writer.head))
        if len(self.writers) % 2:
            self._until_done("delete", lambda: store.delete(writer.key))
            writer.entries.clear()
            self.deleted.append(writer.key)

    def _step(self, store: ShardedStore, writer: Writer, kind: Kind = DELTA, **parts: Any) -> None:
        entry = writer.plan(kind)
        batch = writer.batch(entry, **parts)

        def commit() -> None:
            try:
                store.commit(batch)
            except Conflict:
                head = store.head(writer.key)
                if head is None or head.id != entry.id:
                    raise

        self._until_done("commit", commit)
        writer.keep(entry)
        self.steps += 1
        self._until_done("read", lambda: store.read(writer.key))

    def _until_done(self, name: str, call: Callable[[], object]) -> None:
        """Do it again while no answer comes: a step that was written is found then."""
        began = monotonic()
        while True:
            try:
                call()
                break
            except Conflict:
                raise
            except StoreError:
                if monotonic() - began > 120:
                    raise
                sleep(_PAUSE)
        self.waits.append(Wait(began, monotonic(), name))

    def torn(self, store: ShardedStore) -> list[ThreadKey]:
        """The threads without every step that was acknowledged, once, and no other."""
        return [writer.key for writer in self.writers if not _is_whole(store, writer)]


def _is_whole(store: ShardedStore, writer: Writer) -> bool:
    found = [(entry.seq, entry.id) for entry in store.history(writer.key)]
    known = writer.entries
    return found == [(seq, known[seq].id) for seq in sorted(known, reverse=True)]


def longest(pens: Sequence[Pen], outages: Sequence[Wait], others: Sequence[Pen] = ()) -> Wait:
    """The longest wait of pens, but for outages and for times at which others waited, too."""
    slow = [w for pen in others for w in pen.waits if w.seconds > LIMIT / 2]
    counted = (
        wait
        for pen in pens
        for wait in pen.waits
        if not any(wait.overlaps(outage, 0.0, SETTLED) for outage in outages)
        and not (wait.seconds > LIMIT and any(wait.overlaps(one) for one in slow))
    )
    return max(counted, key=lambda wait: wait.seconds, default=Wait(0.0, 0.0))


class Movers:
    """A process that moves shards to and fro, and is started again when it was killed."""

    def __init__(self, path: Path, shards: Sequence[int]) -> None:
        self.made = 0
        self.killed = 0
        self.failed: list[str] = []
        self.seconds: list[float] = []
        self._command = [sys.executable, "-c", MOVER, str(path), *map(str, shards)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def move(self) -> None:
        """Wait for the next move that is made."""
        while True:
            assert self._process.stdout is not None
            said = self._process.stdout.readline()
            if said.startswith("moved"):
                self.made += 1
                self.seconds.append(float(said.split()[1]))
                return
            if said.startswith("failed"):
                self.failed.append(said)
                continue
            self._process.wait()
            self._process.stdout.close()
            self.killed += 1
            self._process = self._start()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def places_of(path: Path, shards: Sequence[int]) -> dict[int, list[str]]:
    """The databases that have each shard."""
    query = "SELECT shard FROM milecastle.placements WHERE state = 'here'"
    here = {name: {row[0] for row in execute(path, name, query)} for name in read_map(path).urls}
    return {shard: [name for name in here if shard in here[name]] for shard in shards}
