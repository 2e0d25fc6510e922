"""Processes that begin one thread at the same time agree on its key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from milecastle import Keyring, ThreadKey
from milecastle.codec.envelope import PayloadPlace

ROUNDS = 25
KEY = b"k" * 32

WRITER = """
import sys
from milecastle import Keyring, ThreadKey
from milecastle.codec.envelope import PayloadPlace

ring = Keyring({"main": b"k" * 32}, store=sys.argv[1])
for line in sys.stdin:
    payload = ring.sealer(ThreadKey("acme", line.strip()), new=True).seal(b"body", PayloadPlace(1))
    print(payload.hex(), flush=True)
"""


def test_processes_that_begin_one_thread_at_once_agree_on_the_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    ring = Keyring({"main": KEY}, store=url)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(3)
    ]
    for round in range(ROUNDS):
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(f"thread {round}\n")
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.flush()
        for writer in writers:
            assert writer.stdout is not None
            payload = bytes.fromhex(writer.stdout.readline())
            sealer = ring.sealer(ThreadKey("acme", f"thread {round}"))
            assert sealer.unseal(payload, PayloadPlace(1)) == b"body"
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    ring.close()
