"""Large values in object storage, as users meet them: shared, verified, encrypted, copied."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    InvalidRequest,
    Keyring,
    StateGraph,
    Unavailable,
    copy_threads,
    open_store,
)
from milecastle.app.upkeep.verifying import verify_thread
from milecastle.errors import Corrupted, NoObjects
from milecastle.model.keys import ThreadKey
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import ObjectStorage, SharedObjects, offload
from milecastle.stores.sqlite import SqliteStore

MEGABYTE = 1_000_000
DOCUMENT = os.urandom(5 * MEGABYTE)
SMALLER = DOCUMENT[: 2 * MEGABYTE]


class State(TypedDict, total=False):
    document: bytes
    count: int


def counting(**options: Any) -> App[State]:
    graph = StateGraph(State)

    @graph.node
    def count(state: State) -> State:
        return {"count": state.get("count", 0) + 1}

    graph.add_edge(START, "count")
    graph.add_edge("count", END)
    return graph.compile(**options)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"file://{tmp_path}/objects"


def files_of(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def bytes_of(tmp_path: Path) -> int:
    objects = sum(path.stat().st_size for path in files_of(tmp_path))
    return objects + sum(path.stat().st_size for path in tmp_path.glob("runs.db*"))


def the_object(tmp_path: Path) -> Path:
    (found,) = [path for path in files_of(tmp_path) if path.parent.name == "objects"]
    return found


def test_document_that_ten_forks_share_costs_once(tmp_path: Path, place: str) -> None:
    """55 MB without objects (ADR 0007). Fails if a fork's snapshot is stored as one object."""
    app = counting(store=f"sqlite:///{tmp_path}/runs.db", objects=place)
    app.invoke({"document": DOCUMENT}, thread="t")
    for number in range(10):
        app.fork("t", None, as_thread=f"fork-{number}")
        app.update_state(f"fork-{number}", {"count": number})
    assert app.state(thread="fork-7")["document"] == DOCUMENT
    app.store.close()
    assert bytes_of(tmp_path) < 5.5 * MEGABYTE
    assert the_object(tmp_path).stat().st_size < 5.01 * MEGABYTE


def test_flipped_bit_is_corrupted_with_its_place(tmp_path: Path, place: str) -> None:
    """Fails if what is read is not verified. Each bit of a sample of bytes is flipped in turn."""
    app = counting(store="memory://", objects=place)
    app.invoke({"document": SMALLER}, thread="t")
    path = the_object(tmp_path)
    good = path.read_bytes()
    for at in (0, 1, 3, 6, len(good) // 2, len(good) - 1):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(Corrupted, match=r"thread 't', seq 1, object .*") as caught:
                app.state(thread="t")
            assert path.name in caught.value.place
    path.write_bytes(good[:-1])
    with pytest.raises(Corrupted):
        app.state(thread="t")
    path.unlink()
    with pytest.raises(Corrupted, match="is missing"):
        app.state(thread="t")
    path.write_bytes(good)
    assert app.state(thread="t")["document"] == SMALLER


def test_another_object_under_the_name_is_corrupted(tmp_path: Path, place: str) -> None:
    """Fails if only the checksum of the frame is verified and not the digest."""
    app = counting(store="memory://", objects=place)
    app.invoke({"document": DOCUMENT}, thread="t")
    path = the_object(tmp_path)
    app.invoke({"document": DOCUMENT[::-1]}, thread="u")
    (other,) = [p for p in files_of(tmp_path) if p.parent == path.parent and p != path]
    path.write_bytes(other.read_bytes())
    with pytest.raises(Corrupted, match="content that its name says"):
        app.state(thread="t")


def test_damage_is_reported_by_verify(tmp_path: Path, place: str) -> None:
    store = open_store("memory://", objects=place)
    key = ThreadKey("default", "t")
    store.put(key, {"document": DOCUMENT})
    store.put(key, {"document": DOCUMENT[::-1]})
    store.put(key, {"document": DOCUMENT[1:]})
    assert verify_thread(store.store, key).findings == ()
    for path in files_of(tmp_path):
        if path.parent.name == "objects":
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = verify_thread(store.store, key).findings
    assert {finding.code for finding in found} == {Corrupted.code}
    assert {finding.place.partition(", object")[0] for finding in found} == {
        "thread 't', seq 1",
        "thread 't', seq 2",
        "thread 't', seq 3",
    }


def test_compressible_values_are_compressed(tmp_path: Path, place: str) -> None:
    text = b"the same line again and again\n" * 200_000
    app = counting(store="memory://", objects=place)
    app.invoke({"document": text}, thread="t")
    assert app.state(thread="t")["document"] == text
    assert bytes_of(tmp_path) < MEGABYTE


def test_small_values_stay_in_the_log(tmp_path: Path, place: str) -> None:
    app = counting(store="memory://", objects=place)
    app.invoke({"document": DOCUMENT[: 1 << 19]}, thread="t")
    assert files_of(tmp_path) == []


def test_tenants_share_nothing(tmp_path: Path, place: str) -> None:
    """Fails if objects of all tenants are in one folder."""
    store = offload(MemoryStore(), SharedObjects(place))
    for tenant in ("a", "b"):
        CheckpointStore(store).put(ThreadKey(tenant, "t"), {"document": DOCUMENT})
    assert bytes_of(tmp_path) > 10 * MEGABYTE
    folders = {path.parents[1].name for path in files_of(tmp_path) if path.parent.name == "objects"}
    assert len(folders) == 2


def test_store_opened_without_objects_says_what_is_missing(tmp_path: Path, place: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    app = counting(store=url, objects=place)
    app.invoke({"document": DOCUMENT}, thread="t")
    app.store.close()
    bare = counting(store=url)
    with pytest.raises(NoObjects, match="objects="):
        bare.state(thread="t")
    bare.store.close()


def test_objects_need_a_store_and_a_url(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="set store="):
        counting(objects="memory:///")
    with pytest.raises(InvalidRequest, match="takes a URL"):
        counting(store="memory://", objects=tmp_path)
    for url in ("runs", "nope://x", "file://relative/folder", "file:///", "s3://", "az://"):
        with pytest.raises(InvalidRequest, match="s3://bucket/prefix"):
            counting(store="memory://", objects=url)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Unavailable, match="cannot be created"):
        counting(store="memory://", objects=f"file://{tmp_path}/file/objects")


def test_threshold_is_set_by_an_object_storage(tmp_path: Path, place: str) -> None:
    app = counting(store="memory://", objects=ObjectStorage(url=place, threshold=1000))
    app.invoke({"document": DOCUMENT[:2000]}, thread="t")
    assert the_object(tmp_path).stat().st_size < 2100


def test_store_that_is_given_is_wrapped(place: str, tmp_path: Path) -> None:
    memory = MemoryStore()
    for given in (memory, CheckpointStore(memory)):
        app = counting(store=given, objects=place)
        app.invoke({"document": DOCUMENT}, thread="t")
        assert app.state(thread="t")["document"] == DOCUMENT
    assert bytes_of(tmp_path) < 5.1 * MEGABYTE


@pytest.fixture
def keyring() -> Iterator[Keyring]:
    keys = Keyring({"k": os.urandom(32)}, store="memory://")
    yield keys
    keys.close()


def test_encrypted_values_are_not_shared_and_not_readable(
    tmp_path: Path, place: str, keyring: Keyring
) -> None:
    """Fails if values are stored before they are encrypted."""
    text = b"a secret of many lines\n" * 100_000 + DOCUMENT[: 2 * MEGABYTE]
    app = counting(store="memory://", objects=place, encryption=keyring)
    for thread in ("t", "u"):
        app.invoke({"document": text}, thread=thread)
        assert app.state(thread=thread)["document"] == text
    stored = [path for path in files_of(tmp_path) if path.parent.name == "objects"]
    assert len(stored) == 2
    assert not any(b"a secret" in path.read_bytes() for path in stored)


def test_encrypted_objects_are_deleted_with_their_thread(
    tmp_path: Path, place: str, keyring: Keyring
) -> None:
    """Fails if deletion leaves the objects to the sweep."""
    store = open_store("memory://", objects=place, encryption=keyring)
    for thread in ("t", "u"):
        store.put(ThreadKey("default", thread), {"document": DOCUMENT})
    store.erase("default", ["t"])
    assert len([path for path in files_of(tmp_path) if path.parent.name == "objects"]) == 1
    latest = store.get_latest(ThreadKey("default", "u"))
    assert latest is not None
    assert latest["document"] == DOCUMENT


def test_encrypted_inputs_that_wait_are_deleted_with_their_thread(
    tmp_path: Path, place: str, keyring: Keyring
) -> None:
    """Fails if deletion looks only at checkpoints: then the object of the second input stayed."""
    app = counting(store=f"sqlite:///{tmp_path}/runs.db", objects=place, encryption=keyring)
    app.submit({"document": DOCUMENT}, "t")
    app.submit({"document": DOCUMENT[::-1]}, "t", if_busy="queue")
    assert len([*(tmp_path / "objects").glob("*/objects/*")]) == 2
    app.delete("t", take_over=True)
    assert [*(tmp_path / "objects").glob("*/objects/*")] == []
    app.close()


def test_copies_have_their_own_objects(tmp_path: Path, place: str) -> None:
    """From plain to objects, between objects, and back; each equal byte for byte."""
    key = ThreadKey("default", "t")
    plain, back = MemoryStore(), MemoryStore()
    first = offload(SqliteStore(tmp_path / "runs.db"), SharedObjects(place))
    second = offload(MemoryStore(), SharedObjects("memory:///"))
    CheckpointStore(plain).put(key, {"document": DOCUMENT, "text": "x" * 2 * MEGABYTE})
    for source, target in ((plain, first), (first, second), (second, back)):
        assert copy_threads(source, target, "default").checkpoints == 1
        assert copy_threads(source, target, "default").changed == 0
        assert target.entries(key) == plain.entries(key)
    assert first.inner.entries(key) != plain.entries(key)
    first.close()


def test_copy_without_the_objects_is_refused(place: str) -> None:
    """Fails if references are copied to a store that cannot follow them."""
    store = offload(MemoryStore(), SharedObjects(place))
    CheckpointStore(store).put(ThreadKey("default", "t"), {"document": DOCUMENT})
    with pytest.raises(NoObjects):
        copy_threads(store.inner, MemoryStore(), "default")


def test_sweep_of_an_opened_store(place: str) -> None:
    store = open_store("memory://", objects=place)
    store.put(ThreadKey("default", "t"), {"document": DOCUMENT})
    report = store.sweep_objects("default")
    assert (report.named, report.removed) == (1, 0)
    assert store.sweep_objects("default", dry_run=True) == report
    with pytest.raises(InvalidRequest, match="at least 3600 seconds"):
        store.sweep_objects("default", grace=60)
    with pytest.raises(InvalidRequest, match="without object storage"):
        open_store("memory://").sweep_objects("default")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the extra is needed without ``objects=``, or its absence is a traceback."""
    for name in [name for name in sys.modules if name.startswith("milecastle.stores.offloading")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    app = counting(store="memory://")
    assert app.invoke({}, thread="t")["count"] == 1
    with pytest.raises(InvalidRequest, match=r"pip install milecastle\[objects\]"):
        counting(store="memory://", objects="memory:///")
