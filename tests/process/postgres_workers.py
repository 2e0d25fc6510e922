"""What other processes do to a PostgreSQL store: write, race, migrate.

Run as ``python -m tests.process.postgres_workers <verb> <arguments>``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from milecastle.stores.postgres import migrate

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


def migrate_now(url: str) -> None:
    """Migrate when told to; say whether anything was done."""
    print("ready", flush=True)
    sys.stdin.readline()
    print("done" if migrate(url) else "nothing", flush=True)


VERBS: dict[str, Callable[..., None]] = {"migrate": migrate_now}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
