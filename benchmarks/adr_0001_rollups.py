"""The measurement behind ADR 0001: snapshots alone against rollups beside them.

A thread appends one item of 400 random bytes per step, 10,000 times. Each policy writes the same
log into an SQLite file; measured is what was written, and what reading a head costs against
reading one snapshot of the same state, in processor time, best of 25. Both at the worst moment in
the second half of the run: bytes just after the chain was cut, reading just before.

    python -m benchmarks.adr_0001_rollups
"""

from __future__ import annotations

import gc
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from time import thread_time

from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import seal, unseal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT

Row = tuple[int, int, int, int, bytes]
Policy = Callable[[list[bytes]], Iterator[Row]]

ITEM = 400
ROUNDS = 25
APPEND = 1
CODEC = LogCodec(ValueCodec(TypeRegistry()))

SCHEMA = """
CREATE TABLE log (seq INTEGER PRIMARY KEY, kind INTEGER, base INTEGER, roll INTEGER, payload BLOB);
CREATE INDEX cuts ON log (seq) WHERE kind > 0;
"""
CHAIN = """
SELECT payload FROM log WHERE kind > 0 AND seq BETWEEN ? AND ?
UNION ALL
SELECT payload FROM log WHERE seq > ? AND seq <= ?
"""


def _delta(item: bytes) -> bytes:
    return CODEC.encode([APPEND, "items", [item]])


def _snapshot(items: list[bytes]) -> bytes:
    return CODEC.encode_state({"items": items})


def snapshots_at(fraction: float) -> Policy:
    """A snapshot whenever the deltas since the last one exceed this fraction of it."""

    def write(items: list[bytes]) -> Iterator[Row]:
        base, size, tail = 1, len(_snapshot(items[:1])), 0
        yield 1, SNAPSHOT, 1, 1, seal(_snapshot(items[:1]))
        for seq in range(2, len(items) + 1):
            body = _delta(items[seq - 1])
            if tail + len(body) > fraction * size:
                body = _snapshot(items[:seq])
                base, size, tail = seq, len(body), 0
                yield seq, SNAPSHOT, base, base, seal(body)
            else:
                tail += len(body)
                yield seq, DELTA, base, base, seal(body)

    return write


def rollups_of(count: int) -> Policy:
    """A rollup after every ``count`` deltas; no snapshot but the first."""

    def write(items: list[bytes]) -> Iterator[Row]:
        yield 1, SNAPSHOT, 1, 1, seal(_snapshot(items[:1]))
        roll, tail = 1, list[bytes]()
        for seq in range(2, len(items) + 1):
            body = _delta(items[seq - 1])
            if len(tail) >= count:
                body = CODEC.roll_up([*tail, body])
                roll, tail = seq, []
                yield seq, ROLLUP, 1, roll, seal(body)
            else:
                tail.append(body)
                yield seq, DELTA, 1, roll, seal(body)

    return write


def read(database: sqlite3.Connection, seq: int) -> tuple[dict[str, list[bytes]], int]:
    """The state at ``seq``, and how many rows it took."""
    found = database.execute("SELECT base, roll FROM log WHERE seq = ?", (seq,)).fetchone()
    base, roll = found
    rows = database.execute(CHAIN, (base, roll, roll, seq)).fetchall()
    return CODEC.rebuild([unseal(payload) for (payload,) in rows]), len(rows)


def _best_of_both(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """The least processor time of each, taken in turns so that both meet the same machine."""
    spent: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        began = thread_time()
        one()
        between = thread_time()
        other()
        spent.append((between - began, thread_time() - between))
    return min(first for first, _ in spent), min(second for _, second in spent)


def _worst_heads(database: sqlite3.Connection, steps: int) -> list[int]:
    """The heads in the second half just before a cut, at most eight, and the last."""
    cuts = database.execute("SELECT seq FROM log WHERE kind > 0 AND seq > ?", (steps // 2,))
    heads = [seq - 1 for (seq,) in cuts]
    return [*heads[:: max(1, len(heads) // 8)], steps]


def _written(database: sqlite3.Connection, steps: int) -> float:
    """Bytes written per byte of raw updates, at the worst moment in the second half."""
    total, worst = 0, 0.0
    for seq, size in database.execute("SELECT seq, length(payload) FROM log ORDER BY seq"):
        total += size
        if seq > steps // 2:
            worst = max(worst, total / (seq * ITEM))
    return worst


def measure(name: str, policy: Policy, items: list[bytes], folder: Path) -> None:
    """Write the log by a policy, read it, and print a line."""
    with closing(sqlite3.connect(folder / "log.db")) as database:
        database.executescript(SCHEMA)
        database.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", policy(items))
        database.commit()
        written = _written(database, len(items))
        ratios: list[tuple[float, float, int, int]] = []
        for head in _worst_heads(database, len(items)):
            state, rows = read(database, head)
            if state != {"items": items[:head]}:
                raise AssertionError(f"{name}: the state at {head} is wrong")
            with closing(_one_snapshot(items[:head], folder / "one.db")) as single:
                spent, least = _best_of_both(
                    partial(read, database, head), partial(read, single, 1)
                )
            ratios.append((spent / least, spent, rows, head))
    ratio, spent, rows, head = max(ratios)
    (folder / "log.db").unlink()
    print(
        f"| {name} | {written:.2f} | {ratio:.1f} | {spent * 1000:.1f} ms, {rows} rows "
        f"at seq {head} |"
    )


def _one_snapshot(items: list[bytes], path: Path) -> sqlite3.Connection:
    """A file that holds the state in one row."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    payload = seal(_snapshot(items))
    database.execute("INSERT INTO log VALUES (1, ?, 1, 1, ?)", (SNAPSHOT, payload))
    database.commit()
    return database


def main() -> None:
    """Print a table."""
    gc.disable()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    source = random.Random(0)
    items = [source.randbytes(ITEM) for _ in range(steps)]
    policies: list[tuple[str, Policy]] = [
        *((f"snapshots, tail <= {f:g} of the last one", snapshots_at(f)) for f in (0.5, 1, 2)),
        *((f"rollups of {count}", rollups_of(count)) for count in (32, 128, 512)),
    ]
    print("| policy | bytes / raw updates | read / one snapshot | that read |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, policy in policies:
            measure(name, policy, items, Path(folder))


if __name__ == "__main__":
    main()
