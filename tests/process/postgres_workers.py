"""What other processes do to a PostgreSQL store: write, race, migrate.

Run as ``python -m tests.process.postgres_workers <verb> <arguments>``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from milecastle.errors import Conflict
from milecastle.ports.store import Batch
from milecastle.stores.postgres import PostgresStore, migrate
from milecastle.testing.entries import Writer, a_key, an_entry, make_id

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a worker that reads from a pipe and writes to another."""
    command = [sys.executable, "-u", "-m", "tests.process.postgres_workers", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def write(url: str, thread: str) -> None:
    """Append for ever; say each seq once it is acknowledged."""
    store = PostgresStore(url)
    writer = Writer(a_key(thread))
    writer.append(store, source="input", runs=(writer.run,))
    print(1, flush=True)
    while True:
        print(writer.append(store).seq, flush=True)


def race(url: str, thread: str, number: str, races: str) -> None:
    """Try to append each seq; say ``won`` or ``lost`` for it, and wait for the next word."""
    store = PostgresStore(url)
    key = a_key(thread)
    print("ready", flush=True)
    for seq in range(1, int(races) + 1):
        sys.stdin.readline()
        entry = an_entry(seq, id=make_id(seq * 10 + int(number)))
        try:
            store.commit(Batch(key=key, head=seq - 1, entries=(entry,)))
            print(f"won {entry.id}", flush=True)
        except Conflict:
            print("lost", flush=True)
    store.close()


def migrate_now(url: str) -> None:
    """Migrate when told to; say whether anything was done."""
    print("ready", flush=True)
    sys.stdin.readline()
    print("done" if migrate(url) else "nothing", flush=True)


VERBS: dict[str, Callable[..., None]] = {"write": write, "race": race, "migrate": migrate_now}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
