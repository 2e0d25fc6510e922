"""pgbouncer in transaction mode, in front of the cluster of the tests."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from functools import cache

import pytest

from tests.postgres_cluster import free_port, the_cluster, wait_until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
needs_pooler = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@cache
def the_pooler() -> int:
    """The port of a pooler with few connections for many clients; it ends with the process."""
    cluster, port = the_cluster(), free_port()
    folder = cluster.folder / "pooler"
    folder.mkdir()
    settings, log = folder / "pgbouncer.ini", folder / "log"
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={cluster.port} user=postgres\n"
        "[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n",
        "utf-8",
    )
    settings.chmod(0o644)
    with log.open("wb") as output:
        command = cluster.as_its_user(str(PGBOUNCER), settings)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    owner = os.getpid()
    atexit.register(lambda: process.terminate() if os.getpid() == owner else None)
    wait_until(lambda: b"process up" in log.read_bytes(), 30)
    return port


def pooled_url(schema: str) -> str:
    """A URL that leads through the pooler."""
    return (
        f"postgresql://postgres@127.0.0.1:{the_pooler()}/postgres?schema={schema}"
        "&prepare=off&max_size=4"
    )
