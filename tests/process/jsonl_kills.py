"""Kills writers of one file store at random moments, and says what became of what they wrote.

Run as ``python -m tests.process.jsonl_kills FOLDER KILLS SEED [cheat]``; prints JSON. Each writer
is a forked process that appends entries, now and then ends a run or prunes, and notes in shared
memory what was acknowledged. ``cheat`` makes it acknowledge before it writes: the control.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

from milecastle.errors import Corrupted
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.entries import a_run, an_entry, make_id

THREADS = 7
WORD = struct.Struct("q")


def payload_of(seq: int) -> bytes:
    """Return what the entry ``seq`` holds; now and then far more than a page."""
    return b"%d;" % seq * (20_000 if seq % 11 == 0 else 9)


def write(folder: Path, key: ThreadKey, acknowledged: mmap.mmap, cheat: bool) -> None:
    """Append until killed."""
    store = JsonlStore(folder)
    chain = store.read(key)
    head = chain.entries[-1].seq if chain else 0
    while True:
        seq = head + 1
        entry = an_entry(seq, payload=payload_of(seq))
        runs = (a_run(key, seq // 5 + 1, status="completed" if seq % 5 == 4 else "running"),)
        batch = Batch(key=key, head=head, entries=(entry,), runs=runs if seq % 5 in (0, 4) else ())
        if cheat:
            acknowledged[:8] = WORD.pack(seq)
        store.commit(batch)
        acknowledged[:8] = WORD.pack(seq)
        head = seq
        if seq % 40 == 0:
            store.prune(key, head=head, cut=head - 15, rewritten=())


def check(folder: Path, key: ThreadKey, acknowledged: int, found: dict[str, int]) -> int:
    """Compare what is there with what was acknowledged; return the head."""
    store = JsonlStore(folder)
    try:
        history = list(store.history(key))
    except Corrupted as error:
        if "torn" not in str(error):
            raise
        found["torn"] += 1
        store.repair(key)
        history = list(store.history(key))
    seqs = [entry.seq for entry in history]
    head = seqs[0] if seqs else 0
    found["lost"] += max(0, acknowledged - head)
    found["invented"] += max(0, head - acknowledged - 1)
    found["wrong"] += seqs != list(range(head, head - len(seqs), -1))
    found["wrong"] += len(seqs) < min(head, 15)
    found["wrong"] += any(entry.id != make_id(entry.seq) for entry in history)
    for seq in seqs[:3]:
        chain = store.read(key, seq)
        found["wrong"] += chain is None or chain.entries[-1].payload != payload_of(seq)
    store.verify(key)
    store.close()
    return head


def main(folder: Path, kills: int, seed: int, cheat: bool) -> dict[str, int]:
    """Kill ``kills`` writers and count what is lost, invented or wrong."""
    chance = random.Random(seed)
    shared = mmap.mmap(-1, 8)
    heads = dict.fromkeys(range(THREADS), 0)
    found = {"kills": 0, "written": 0, "lost": 0, "invented": 0, "wrong": 0, "torn": 0}
    for number in range(kills):
        slot = number % THREADS
        key = ThreadKey("tenant", f"thread {slot} of {number // (THREADS * 20)}")
        if number // THREADS % 20 == 0:
            heads[slot] = 0
        shared[:8] = WORD.pack(heads[slot])
        pid = os.fork()
        if pid == 0:
            try:
                write(folder, key, shared, cheat)
            finally:
                os._exit(1)
        time.sleep(chance.random() ** 2 * 0.03)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        found["wrong"] += not os.WIFSIGNALED(status)
        acknowledged = WORD.unpack(shared[:8])[0]
        before = heads[slot]
        heads[slot] = check(folder, key, acknowledged, found)
        found["written"] += heads[slot] - before
        found["kills"] += 1
    return found


if __name__ == "__main__":
    place, count, seed = sys.argv[1:4]
    print(json.dumps(main(Path(place), int(count), int(seed), "cheat" in sys.argv)))
