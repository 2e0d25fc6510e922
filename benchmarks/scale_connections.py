"""Connections of many workers to many databases behind a pooler, with and without cells.

``python -m benchmarks.scale_connections --workers 200 --databases 8``: processes that only beat and
claim, behind pgbouncer in transaction mode, first each in all databases, then each in one. Clients
are the connections to the pooler, which without it would be the servers'; the servers' are counted
by the servers. All databases are on one server of this machine, so the counts are measured, and the
times of a larger installation are not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from benchmarks.postgres_server import postgres_server
from milecastle.app.runs.ownership import current_owner
from milecastle.errors import Unavailable
from milecastle.model.keys import SHARDS
from milecastle.ports.workers import WorkerInfo
from milecastle.stores.sharded import ShardedStore, initialise, read_map

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

_fork = multiprocessing.get_context("fork")
"""So that two hundred processes share the memory of what they import."""


def measure(workers: int, databases: int, poll: float, seconds: float) -> Mapping[str, float]:
    """Connections in each of both ways; empty where PostgreSQL or pgbouncer is missing."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    with postgres_server(max_connections="900") as cluster:
        if cluster is None or program is None:
            return {}
        found: dict[str, float] = {"workers": workers, "databases": databases}
        names = [f"d{number}" for number in range(databases)]
        for name in names:
            cluster.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        _initialise(cluster.folder / "direct.toml", names, cluster.port)
        for way, served in (("all", 0), ("one", 1)):
            with _pooler(cluster, program) as port:
                path = _write(
                    cluster.folder / "shards.toml", names, port, "&prepare=off&max_size=2"
                )
                counts = _counted(cluster, port, path, (workers, names, served, poll, seconds))
            found |= {f"{what}_{way}": count for what, count in counts.items()}
        return found


def _initialise(path: Path, names: Sequence[str], port: int) -> None:
    initialise(read_map(_write(path, names, port)))


def _write(path: Path, names: Sequence[str], port: int, more: str = "") -> Path:
    lines = ["version = 1", "[databases]"]
    base = f"postgresql://postgres@127.0.0.1:{port}"
    lines += [f'{name} = "{base}/{name}?schema=milecastle{more}"' for name in names]
    lines += ["[shards]"]
    lines += [f'{shard} = "{names[shard % len(names)]}"' for shard in range(SHARDS)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@contextmanager
def _pooler(cluster: Cluster, program: str) -> Generator[int]:
    from tests.postgres_cluster import free_port, wait_until

    port, folder = free_port(), cluster.folder / f"pooler-{time.monotonic_ns()}"
    folder.mkdir()
    settings, log = folder / "pgbouncer.ini", folder / "log"
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={cluster.port} user=postgres\n"
        "[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\nadmin_users = postgres\n"
        "pool_mode = transaction\ndefault_pool_size = 100\nmax_client_conn = 8000\n"
        "server_idle_timeout = 10\n",
        "utf-8",
    )
    settings.chmod(0o644)
    with log.open("wb") as output:
        command = cluster.as_its_user(program, settings)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: b"process up" in log.read_bytes(), 30)
        yield port
    finally:
        process.terminate()
        process.wait(30)


_Work = tuple[int, Sequence[str], int, float, float]


def _counted(cluster: Cluster, port: int, path: Path, work: _Work) -> Mapping[str, float]:
    workers, names, served, poll, seconds = work
    begun, over = _fork.Barrier(workers + 1), _fork.Event()
    processes = [
        _fork.Process(
            target=_claim,
            args=(path, names[number % len(names)] if served else "", poll, begun, over),
        )
        for number in range(workers)
    ]
    for process in processes:
        process.start()
        time.sleep(0.2)  # opening takes more than working: not all at once
    begun.wait(600)
    time.sleep(36)  # until databases that are not served are closed, and the pooler's idle ones
    servers: list[int] = []
    until = time.monotonic() + seconds
    try:
        with cluster.connect() as connection:
            while time.monotonic() < until:
                servers.append(_servers(connection, names))
                time.sleep(0.5)
        return {
            "clients": _clients(port, names),
            "servers_most": max(servers),
            "servers_mean": round(sum(servers) / len(servers), 1),
            "lost": sum(not process.is_alive() for process in processes),
        }
    finally:
        over.set()
        for process in processes:
            process.join(60)
            if process.is_alive():
                process.kill()


def _servers(connection: psycopg.Connection, names: Sequence[str]) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = ANY(%s)"
    row = connection.execute(query, (list(names),)).fetchone()
    return row[0] if row else 0


def _clients(port: int, names: Sequence[str]) -> int:
    url = f"postgresql://postgres@127.0.0.1:{port}/pgbouncer"
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        rows = connection.execute("SHOW CLIENTS").fetchall()
        return sum(row[2] in names for row in rows)


def _claim(path: Path, served: str, poll: float, begun: Barrier, over: Event) -> None:
    worker = WorkerInfo(
        id=f"w{os.getpid()}", owner=current_owner(), lanes=("graph@1",), started_at=1
    )
    with closing(ShardedStore(path)) as whole:
        store = whole.cells.serving([served]) if served else whole
        with suppress(Unavailable):  # as a worker: it tries again
            store.beat(worker)
        begun.wait(600)
        beaten = time.monotonic()
        while not over.wait(random.uniform(0.5, 1.5) * poll):
            with suppress(Unavailable):
                store.claim(worker.id, ["graph@1"], limit=100)
                if time.monotonic() - beaten > 5:
                    store.beat(worker)
                    beaten = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--databases", type=int, default=8)
    parser.add_argument("--poll", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    print(json.dumps(measure(given.workers, given.databases, given.poll, given.seconds)))


if __name__ == "__main__":
    main()
