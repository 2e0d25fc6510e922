"""Emitted values from a worker to a reader in another process, by PostgreSQL.

100 runs emit 50 values a second each, about 40 bytes; this process follows all of them. Run as
``python -m benchmarks.emitted [RATE]``. Printed are the age of a value when it is read, how many
arrived, and which share of a core the processes used while values were emitted.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.postgres_server import fresh_schema, postgres_server
from milecastle import App, open_store

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster
    from tests.process.fleet_emitting import Speech

RUNS, SECONDS = 100, 10
RATE = float(sys.argv[1]) if len(sys.argv) > 1 else 50.0


async def read(app: App[Speech], thread: str, ages: list[float], missed: list[int]) -> None:
    async for event in app.afollow(thread, emitted=True, poll=2.0):
        if event.type == "emit":
            ages.append(time.time() - event.update[1])
        elif event.type == "missed":
            missed.append(event["count"])


async def follow_all(app: App[Speech], url: str, cluster: Cluster) -> str:
    start: dict[str, Any] = {
        "count": int(RATE * SECONDS),
        "rate": RATE,
        "text": "x" * 12,
        "took": [],
    }
    names = [f"t{number}" for number in range(RUNS)]
    for name in names:
        await app.asubmit(start, name)
    ages, missed = list[float](), list[int]()
    readers = [asyncio.create_task(read(app, name, ages, missed)) for name in names]
    await asyncio.sleep(3.0)
    command = [sys.executable, "-m", "milecastle", "worker", "tests.process.fleet_emitting:app"]
    worker = subprocess.Popen(  # noqa: ASYNC220 - nothing is emitted yet
        [*command, "--store", url], stderr=subprocess.DEVNULL
    )
    try:
        while len(ages) < RUNS * RATE:  # noqa: ASYNC110 - nothing tells how many there are
            await asyncio.sleep(0.1)
        begun, before = time.monotonic(), used(cluster, worker.pid)
        await asyncio.sleep(SECONDS * 0.6)
        took, after = time.monotonic() - begun, used(cluster, worker.pid)
        await asyncio.gather(*readers)
    finally:
        worker.terminate()
        worker.wait()
    shares = [100 * (late - early) / took for early, late in zip(before, after, strict=True)]
    parts = quantiles(ages, n=100)
    return (
        f"{len(ages)} of {RUNS * int(RATE * SECONDS)} values, {sum(missed)} missed; age p50 "
        f"{parts[49] * 1000:.0f} ms, p99 {parts[98] * 1000:.0f} ms; of a core: PostgreSQL "
        f"{shares[0]:.0f} %, worker {shares[1]:.0f} %, reader {shares[2]:.0f} %"
    )


def used(cluster: Cluster, worker: int) -> tuple[float, float, float]:
    """The processor time of server, worker and this process, in seconds."""
    master = int((cluster.data / "postmaster.pid").read_text().splitlines()[0])
    server = sum(seconds(pid) for pid in pids() if pid == master or parent(pid) == master)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return server, seconds(worker), own.ru_utime + own.ru_stime


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def parent(pid: int) -> int:
    return int(fields(pid)[1])


def seconds(pid: int) -> float:
    found = fields(pid)
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    from tests.process.fleet_emitting import build

    with postgres_server() as cluster:
        if cluster is None:
            print("there is no PostgreSQL here", file=sys.stderr)
            return 2
        with fresh_schema(cluster) as schema:
            url = cluster.url_of(schema)
            app = build().compile(store=open_store(url))
            print(asyncio.run(follow_all(app, url, cluster)))
            app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
