"""Two stores below one prefix: the second one neither writes nor sweeps what the first has."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle.errors import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import SharedObjects, offload, sweep
from milecastle.stores.offloading.objects import root_of
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import a_key, an_entry
from tests.every_store import EVERY_KIND, Stores

KEY = a_key()
MARK = f"{root_of(KEY.tenant)}store"
LARGE = b"large " * 10


def storage(url: str) -> SharedObjects:
    return SharedObjects(url, threshold=20)


def write(store: Store, key: ThreadKey = KEY, payload: bytes = LARGE) -> None:
    store.commit(Batch(key=key, head=0, entries=(an_entry(1, payload=payload),)))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_each_kind_of_store_has_an_identity_that_it_keeps(kind: str, tmp_path: Path) -> None:
    """Fails if another process gets another one, or if it is seen as a thread."""
    stores = Stores(tmp_path)
    inner = stores.open(kind)
    url = f"file://{tmp_path}/objects"
    first, second = (offload(inner, storage(url)) for _ in range(2))
    write(first)
    write(second, a_key("other"))
    mark = first.objects.folder.read(MARK)
    assert mark is not None
    assert sweep(second, KEY.tenant).named == 1
    assert list(inner.threads(KEY.tenant)) == []
    assert [*inner.history(ThreadKey(KEY.tenant, "object storage"))] == []
    assert first.objects.folder.read(MARK) == mark
    stores.close()


def test_second_store_is_refused(tmp_path: Path) -> None:
    """Fails if only the sweep is refused, or only writes are."""
    url = f"file://{tmp_path}/objects"
    first, second = (offload(MemoryStore(), storage(url)) for _ in range(2))
    write(first)
    with pytest.raises(StoreError, match="belong to another store") as caught:
        write(second)
    assert MARK in str(caught.value)
    assert second.inner.head(KEY) is None
    for dry_run in (True, False):
        with pytest.raises(StoreError, match="belong to another store"):
            sweep(second, KEY.tenant, dry_run=dry_run)
    write(second, a_key("small"), b"small")
    write(second, ThreadKey("another tenant", "t"))
    assert first.entries(KEY)[0].payload == LARGE


def test_second_store_stores_no_file(tmp_path: Path) -> None:
    """Fails if only the entry that names it is refused: here, in another process, or as a copy."""
    url = f"file://{tmp_path}/objects"
    first, second = (offload(MemoryStore(), storage(url)) for _ in range(2))
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    file = first.files(KEY.tenant, sealed=False).store(path)
    path.write_bytes(LARGE[::-1])
    before = [*first.objects.folder.list("")]
    files = second.files(KEY.tenant, sealed=False)
    source = offload(MemoryStore(), storage(f"file://{tmp_path}/source"))
    copied = source.files(KEY.tenant, sealed=False).store(path)
    for use in (
        lambda: files.store(path),
        lambda: files.place,
        lambda: second.copy_file(KEY.tenant, copied.digest, source),
    ):
        with pytest.raises(StoreError, match="belong to another store"):
            use()
    assert [*first.objects.folder.list("")] == before
    with files.open(file) as opened:
        assert opened.read() == LARGE


def test_sweep_takes_what_belongs_to_nobody(tmp_path: Path) -> None:
    """A dry run takes nothing."""
    store = offload(MemoryStore(), storage(f"file://{tmp_path}/objects"))
    sweep(store, KEY.tenant, dry_run=True)
    assert store.objects.folder.read(MARK) is None
    sweep(store, KEY.tenant)
    assert store.objects.folder.read(MARK) is not None


def test_batch_of_a_second_store_fails_alone(tmp_path: Path) -> None:
    """Fails if one batch that is refused fails its group."""
    url = f"file://{tmp_path}/objects"
    write(offload(MemoryStore(), storage(url)))
    store = offload(SqliteStore(tmp_path / "store.db"), storage(url))
    assert store.commit_many is not None
    batches = [
        Batch(key=a_key(name), head=0, entries=(an_entry(1, payload=payload),))
        for name, payload in (("large", LARGE), ("small", b"small"))
    ]
    refused, done = store.commit_many(batches)
    assert isinstance(refused, StoreError)
    assert done is None
    store.close()


def test_store_that_keeps_no_identity_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(store: MemoryStore, key: ThreadKey, fingerprint: str) -> None:
        """A store of somebody else, which breaks its contract."""

    monkeypatch.setattr(MemoryStore, "manifest", nothing)
    with pytest.raises(StoreError, match="did not keep the identity"):
        write(offload(MemoryStore(), storage(f"file://{tmp_path}/objects")))
