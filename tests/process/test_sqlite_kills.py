"""A writer is killed at any moment: what it was told is kept is there, and nothing else is.

`MILECASTLE_KILLS` is the number of kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from milecastle.ports.store import Store
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key
from tests.process.sqlite_writer import kind_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("sqlite_writer.py")
KILLS = int(os.environ.get("MILECASTLE_KILLS", "12"))


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )


def kill_at_random(path: Path, thread: str, manner: str, chance: random.Random) -> int:
    """Let a writer write for a moment, kill it, and return the last seq that it was sure of."""
    with start("kill", str(path), thread, manner) as process:
        assert process.stdout is not None
        if chance.random() < 0.9:
            assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        lines = process.stdout.read().splitlines(keepends=True)
    sure = [int(line) for line in lines if line.endswith("\n") and line != "ready\n"]
    assert sure == list(range(1, len(sure) + 1))
    return len(sure)


def lost_or_invented(store: Store, thread: str, sure: int) -> list[str]:
    """What is wrong with a thread whose writer was sure of so many entries; empty if nothing."""
    kept = [entry.seq for entry in store.history(a_key(thread))]
    if kept != list(range(len(kept), 0, -1)):
        return [f"{thread} has gaps"]
    if len(kept) < sure:
        return [f"{thread} lost {sure - len(kept)} entries"]
    if len(kept) > sure + 1:
        return [f"{thread} has {len(kept) - sure} entries more than were acknowledged"]
    expected = Writer(a_key(thread))
    for seq in range(1, len(kept) + 1):
        expected.keep(expected.plan(kind_of(seq)))
    check_reads(store, expected)
    return []


def test_a_killed_writer_loses_nothing_that_it_was_sure_of(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    path = tmp_path / "store.db"
    sure: dict[str, int] = {}
    for number in range(KILLS):
        thread = f"thread {number}"
        sure[thread] = kill_at_random(path, thread, "honest", chance)
        store = SqliteStore(path)
        assert lost_or_invented(store, thread, sure[thread]) == []
        store.close()
    assert sum(sure.values()) > KILLS
    store = SqliteStore(path)
    recent = list(sure)[-50:]
    assert [lost_or_invented(store, thread, sure[thread]) for thread in recent] == [[]] * len(
        recent
    )
    store.close()


def test_a_writer_that_cheats_is_caught(tmp_path: Path) -> None:
    chance = random.Random(1)
    path = tmp_path / "store.db"
    problems: list[str] = []
    for number in range(10):
        thread = f"thread {number}"
        sure = kill_at_random(path, thread, "cheating", chance)
        store = SqliteStore(path)
        problems += lost_or_invented(store, thread, sure)
        store.close()
    assert any("lost" in problem for problem in problems)
