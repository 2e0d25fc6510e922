"""A writer that notes what was acknowledged, and a judge of what a store has of it.

The notes are in memory that outlives the writer: a test that kills it, or cuts the power under it,
holds them against the store afterwards. Entries are made from their seq alone, so that the judge
knows each of them. What is pruned is never among the newest ``KEPT`` entries.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from milecastle.errors import Corrupted, StoreError
from milecastle.model.checkpoint import DELTA, SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.entries import a_result, a_run, an_entry, make_id

KEPT = 15

KILLS: Final = int(os.environ.get("MILECASTLE_KILLS", "15"))
"""How many writers, or backends of a server, each test kills."""

RACES: Final = int(os.environ.get("MILECASTLE_RACES", "150"))
"""How often two writers race on each store."""


class Verdict:
    """What was found in all; ``lost``, ``invented`` and ``wrong`` have to be 0."""

    def __init__(self) -> None:
        self.writers = 0
        self.acknowledged = 0
        self.lost = 0
        self.invented = 0
        self.wrong = 0
        self.torn = 0


class Ledger:
    """Some threads, and the last seq of each that was acknowledged to any forked process.

    Each seq is noted by one store of eight bytes: a killed writer leaves the old or the new one.
    """

    def __init__(self, keys: Sequence[ThreadKey]) -> None:
        self.keys = keys
        self._memory = memoryview(mmap.mmap(-1, 8 * len(keys))).cast("q")
        self._found = [0] * len(keys)

    def acknowledged(self) -> list[int]:
        """The last acknowledged seq of each thread."""
        return self._memory.tolist()

    def wait(self, chance: random.Random) -> None:
        """Wait until some entries of a writer were acknowledged, and then for a moment."""
        enough = sum(self._found) + chance.randrange(12)
        until = time.monotonic() + 10
        while sum(self.acknowledged()) < enough and time.monotonic() < until:
            time.sleep(0.0002)
        time.sleep(chance.random() * 0.002)

    def write(self, store: Store, *, early: bool = False) -> None:
        """Append to the threads in turn, forever; ``early`` notes what is not written yet."""
        heads = [head_of(store, key) for key in self.keys]
        while True:
            for thread, key in enumerate(self.keys):
                seq = heads[thread] = heads[thread] + 1
                if early:
                    self._note(heads)
                    time.sleep(0.002)  # the usual moment to be killed, however loaded the machine
                store.commit(batch_of(key, seq))
                self._note(heads)
                if seq % 40 == 0:
                    store.prune(key, head=seq, cut=seq - KEPT + 1, rewritten=())

    def judge(self, store: Store, verdict: Verdict, promised: Sequence[int] | None = None) -> None:
        """Compare what is there with what was promised, and continue from what is there."""
        noted = self.acknowledged()
        verdict.writers += 1
        for thread, key in enumerate(self.keys):
            seqs = _sound(store, key, verdict)
            head = seqs[0] if seqs else 0
            sure = (promised or noted)[thread]
            verdict.acknowledged += max(0, sure - self._found[thread])
            verdict.lost += max(0, sure - head)
            verdict.invented += max(0, head - noted[thread] - 1)
            verdict.wrong += seqs != list(range(head, head - len(seqs), -1))
            verdict.wrong += len(seqs) < min(head, KEPT)
            verdict.wrong += any(not _is_whole(store, key, seq) for seq in seqs[:3] + seqs[-1:])
            verdict.wrong += head > 0 and not _has_its_results(store, key, head)
            self._found[thread] = head
        self._note(self._found)

    def _note(self, heads: Sequence[int]) -> None:
        for thread, head in enumerate(heads):
            self._memory[thread] = head


def interruptible(count: int) -> Iterator[int]:
    """Count; an interrupt ends it before its time, and what was found so far can be reported."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    for number in range(count):
        if interrupts:
            return
        yield number


def payload_of(seq: int) -> bytes:
    """What the entry ``seq`` holds; now and then far more than a page."""
    return b"%d;" % seq * (20_000 if seq % 11 == 0 else 9)


def head_of(store: Store, key: ThreadKey) -> int:
    """The newest seq of a thread, 0 if there is none."""
    return next((entry.seq for entry in store.history(key, limit=1)), 0)


def entry_of(seq: int) -> Entry:
    """The entry ``seq``: every fifth is a snapshot, the others are deltas on the last one."""
    snapshot = snapshot_of(seq)
    kind = SNAPSHOT if seq == snapshot else DELTA
    payload = payload_of(seq)
    return an_entry(seq, kind=kind, base_seq=snapshot, roll_seq=snapshot, payload=payload)


def snapshot_of(seq: int) -> int:
    """The seq of the snapshot that the entry ``seq`` is read from."""
    return seq - (seq - 1) % 5


def batch_of(key: ThreadKey, seq: int) -> Batch:
    """The entry ``seq``, sometimes with the start or the end of a run, or with a task result."""
    run = a_run(key, seq // 5 + 1, status="completed" if seq % 5 == 4 else "running")
    return Batch(
        key=key,
        head=seq - 1,
        entries=(entry_of(seq),),
        runs=(run,) if seq % 5 in (0, 4) else (),
        results=(a_result(seq),) if seq % 7 == 0 else (),
    )


def _is_whole(store: Store, key: ThreadKey, seq: int) -> bool:
    chain = store.read(key, seq)
    expected = tuple(entry_of(each) for each in range(snapshot_of(seq), seq + 1))
    return chain is not None and chain.entries == expected


def _has_its_results(store: Store, key: ThreadKey, head: int) -> bool:
    chain = store.read(key)
    return chain is not None and chain.results == batch_of(key, head).results


def _sound(store: Store, key: ThreadKey, verdict: Verdict) -> list[int]:
    """The seqs of a thread, newest first; a torn last line, and nothing else, is cut off."""
    try:
        return _seqs(store, key, verdict)
    except Corrupted as error:
        if not isinstance(store, JsonlStore) or "torn" not in str(error):
            raise
        verdict.torn += 1
        store.repair_thread(key)
        return _seqs(store, key, verdict)


def _seqs(store: Store, key: ThreadKey, verdict: Verdict) -> list[int]:
    history = list(store.history(key))
    verdict.wrong += any(entry.id != make_id(entry.seq) for entry in history)
    return [entry.seq for entry in history]


def fork_writer(write_for_ever: Callable[[], None]) -> int:
    """Start a process that writes until it is killed; an error of the store ends it too."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            write_for_ever()
        except StoreError:
            code = 0
        finally:
            os._exit(code)
    return pid


def end_writer(pid: int) -> bool:
    """Kill it; whether it had come to no other end before."""
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
