"""Builds that share a cache in object storage: what one workspace made, another does not make."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict
from zlib import crc32

import msgspec.json
import pytest

from milecastle import END, START, App, InvalidRequest, Keyring, StateGraph, Unavailable
from milecastle.builds import Cache
from milecastle.codec.envelope import COMPRESSED, FORMAT_VERSION, decompress, frame, unframe
from milecastle.stores import ObjectStorage
from milecastle.stores.offloading import files
from milecastle.stores.offloading.folder import ObjectFolder


class Job(TypedDict, total=False):
    words: int
    note: str


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 1000)


class Machine:
    """A folder of its own, where a build runs; ``ran`` are the nodes that were run there."""

    def __init__(self, folder: Path, storage: ObjectStorage | None, **options: Any) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "source.txt").write_text("one two three\n" * 500)
        self.ran: list[str] = []
        self.app = self._compile(storage, options)

    def _compile(self, storage: ObjectStorage | None, options: dict[str, Any]) -> App[Job]:
        graph = StateGraph(Job, name="words")
        ran = self.ran

        @graph.node(inputs="source.txt", outputs=["clean.txt", "pages"], version="1")
        def clean(state: Job) -> Job:
            ran.append("clean")
            text = Path("source.txt").read_text()
            Path("clean.txt").write_text(text.upper())
            Path("pages").mkdir()
            Path("pages/1.txt").write_text(text[:2500])
            Path("pages/run.sh").write_text("#!/bin/sh\n")
            Path("pages/run.sh").chmod(0o755)
            return {"note": "cleaned"}

        @graph.node(inputs="clean.txt", outputs="count.txt", version="1")
        def count(state: Job) -> Job:
            ran.append("count")
            words = len(Path("clean.txt").read_text().split())
            Path("count.txt").write_text(str(words))
            return {"words": words}

        graph.add_edges(START, "clean", "count", END)
        with self.inside():
            return graph.compile(workspace=".milecastle", objects=storage, **options)

    @contextmanager
    def inside(self) -> Generator[None]:
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            yield
        finally:
            os.chdir(before)

    def build(self, *args: Any, **named: Any) -> Any:
        self.ran.clear()
        with self.inside():
            return self.app.build(*args, **named)


@pytest.fixture
def storage(tmp_path: Path) -> ObjectStorage:
    return ObjectStorage(url=f"file://{tmp_path}/objects", builds=True)


def objects(tmp_path: Path, pattern: str) -> list[Path]:
    return [path for path in (tmp_path / "objects").rglob(pattern) if path.is_file()]


def test_second_machine_runs_nothing(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if a result is not published, or is not found, or is restored otherwise."""
    one = Machine(tmp_path / "one", storage)
    first = one.build()
    assert one.ran == ["clean", "count"]
    two = Machine(tmp_path / "two", storage)
    second = two.build()
    assert two.ran == []
    assert second.executed == {}
    assert second.reused_nodes == ("clean", "count")
    assert second.state == first.state
    for name in ("clean.txt", "count.txt", "pages/1.txt", "pages/run.sh"):
        here, there = one.folder / name, two.folder / name
        assert here.read_bytes() == there.read_bytes()
        assert here.stat().st_mode == there.stat().st_mode
    again = two.build()
    assert two.ran == []
    assert again.reused_nodes == ("clean", "count")
    (two.folder / "count.txt").unlink()
    two.build()
    assert two.ran == []


def test_changed_input_runs_only_what_nobody_made(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if the key of a result leaves out its inputs, or the results before it."""
    Machine(tmp_path / "one", storage).build()
    two = Machine(tmp_path / "two", storage)
    (two.folder / "source.txt").write_text("another text")
    two.build()
    assert two.ran == ["clean", "count"]
    (two.folder / "source.txt").write_text("one two three\n" * 500)
    two.build()
    assert two.ran == []
    assert (two.folder / "count.txt").read_text() == "1500"


def test_clean_build_runs_everything(tmp_path: Path, storage: ObjectStorage) -> None:
    Machine(tmp_path / "one", storage).build()
    two = Machine(tmp_path / "two", storage)
    two.build(mode="clean")
    assert two.ran == ["clean", "count"]


def test_off_by_default(tmp_path: Path, storage: ObjectStorage) -> None:
    url = storage.url
    store = f"sqlite:///{tmp_path}/runs.db"
    machine = Machine(tmp_path / "one", ObjectStorage(url=url), store=store)
    machine.build()
    assert objects(tmp_path, "*") == []
    machine.app.close()
    with pytest.raises(InvalidRequest, match="set store="):
        Machine(tmp_path / "two", ObjectStorage(url=url))


def test_tenants_and_threads_share_nothing(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if a result is found by the node and its inputs alone."""
    Machine(tmp_path / "one", storage).build()
    for number, options in enumerate(({"tenant": "other"}, {})):
        other = Machine(tmp_path / f"other{number}", storage, **options)
        other.build(thread=None if options else "another")
        assert other.ran == ["clean", "count"]


def test_encrypted_builds_share_nothing(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if what a node returned is stored unencrypted where others read it."""
    keyring = Keyring({"k": bytes(32)}, store="memory://")
    for name in ("one", "two"):
        machine = Machine(tmp_path / name, storage, encryption=keyring)
        machine.build()
        assert machine.ran == ["clean", "count"]
    assert objects(tmp_path, "*") == []


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink, empty])
@pytest.mark.parametrize("pattern", ["tasks/*", "00000001", "index", "current/*"])
def test_damage_is_a_miss_and_is_published_again(
    tmp_path: Path, storage: ObjectStorage, damage: Callable[[Path], object], pattern: str
) -> None:
    """Fails if damage ends a build, is restored, or stays for those who come after."""
    Machine(tmp_path / "one", storage).build()
    found = objects(tmp_path, pattern)
    assert found
    for path in found:
        damage(path)
    two = Machine(tmp_path / "two", storage)
    result = two.build()
    assert result["words"] == 1500
    assert (two.folder / "count.txt").read_text() == "1500"
    three = Machine(tmp_path / "three", storage)
    three.build()
    assert three.ran == []


def of_another_format(body: bytes) -> bytes:
    return frame(0, body.replace(b'"format":1', b'"format":2'))


def not_text(body: bytes) -> bytes:
    return frame(0, body.replace(b'"node":"', b'"node":"\xff'))


def twice_an_output(body: bytes) -> bytes:
    entry, stored = msgspec.json.decode(body)
    entry["artifacts"] *= 2
    return frame(0, msgspec.json.encode([entry, stored]))


def nested(body: bytes) -> bytes:
    return frame(0, body[:-1] + b"," + b"[" * 100_000)


def newer(framed: bytes) -> bytes:
    """A frame as the next version would write it."""
    head, body = bytes((FORMAT_VERSION + 1, framed[1])), framed[6:]
    return head + crc32(body, crc32(head)).to_bytes(4) + body


def of_a_newer_version(body: bytes) -> bytes:
    return newer(frame(0, body))


@pytest.mark.parametrize(
    "change", [of_another_format, not_text, twice_an_output, nested, of_a_newer_version]
)
def test_result_that_no_writer_of_this_version_wrote_is_a_miss(
    tmp_path: Path, storage: ObjectStorage, change: Callable[[bytes], bytes]
) -> None:
    """Fails if it ends the build, or if it is admitted: then the next build ends."""
    Machine(tmp_path / "one", storage).build()
    for path in objects(tmp_path, "tasks/*"):
        flags, body = unframe(path.read_bytes())
        path.write_bytes(change(decompress(body) if flags & COMPRESSED else body))
    two = Machine(tmp_path / "two", storage)
    assert two.build()["words"] == 1500
    assert two.ran == ["clean", "count"]
    assert two.build()["words"] == 1500
    assert two.ran == []


def test_chunk_of_a_newer_version_is_a_miss(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if it ends the build."""
    Machine(tmp_path / "one", storage).build()
    for path in objects(tmp_path, "index"):
        path.write_bytes(newer(frame(0, b"")))
    two = Machine(tmp_path / "two", storage)
    assert two.build()["words"] == 1500
    assert two.ran == ["clean", "count"]


def test_result_of_another_task_is_a_miss(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if a result is believed because of the name that it is stored under."""
    Machine(tmp_path / "one", storage).build()
    first, second = objects(tmp_path, "tasks/*")
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    other = Machine(tmp_path / "two", storage)
    other.build()
    assert other.ran == ["clean", "count"]


def test_storage_that_is_down_is_a_miss(
    tmp_path: Path,
    storage: ObjectStorage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if a build needs its shared cache."""

    def down(*given: Any, **named: Any) -> Any:
        raise Unavailable("it is down")

    one = Machine(tmp_path / "one", storage)
    for name in ("read", "create", "find"):
        monkeypatch.setattr(ObjectFolder, name, down)
    with caplog.at_level(logging.WARNING, "milecastle.builds"):
        assert one.build()["words"] == 1500
    assert {record.getMessage().partition(": it")[0] for record in caplog.records} == {
        "shared cache: cannot read",
        "shared cache: cannot write",
    }


def test_node_behind_one_that_declares_nothing_runs(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if it is fetched: nobody knows what the node before it did."""
    ran: list[str] = []

    def compiled(folder: Path) -> App[Job]:
        folder.mkdir()
        os.chdir(folder)
        graph = StateGraph(Job, name="loose")

        @graph.node
        def anything(state: Job) -> None:
            Path("hidden.txt").write_text(folder.name)

        @graph.node(outputs="out.txt", version="1")
        def copies() -> None:
            ran.append("copies")
            Path("out.txt").write_text(Path("hidden.txt").read_text())

        graph.add_edges(START, "anything", "copies", END)
        return graph.compile(workspace=".milecastle", objects=storage)

    before = Path.cwd()
    try:
        for name in ("one", "two"):
            compiled(tmp_path / name).build()
            assert (tmp_path / name / "out.txt").read_text() == name
    finally:
        os.chdir(before)
    assert ran == ["copies", "copies"]


def test_expired_result_is_a_miss(tmp_path: Path, storage: ObjectStorage) -> None:
    """Fails if a result is as old as its workspace says, and not as it was made."""
    ran: list[float] = []

    def build(folder: Path, ttl: float) -> None:
        folder.mkdir()
        os.chdir(folder)
        graph = StateGraph(Job, name="ages")

        @graph.node(outputs="out.txt", cache=Cache(ttl=ttl), version="1")
        def makes(state: Job) -> None:
            ran.append(ttl)
            Path("out.txt").write_text("made")

        graph.add_edges(START, "makes", END)
        graph.compile(workspace=".milecastle", objects=storage).build()

    before = Path.cwd()
    try:
        for name, ttl in (("one", 3600.0), ("two", 1e-6), ("three", 3600.0)):
            build(tmp_path / name, ttl)
    finally:
        os.chdir(before)
    assert ran == [3600.0, 1e-6]


def test_async_build(tmp_path: Path, storage: ObjectStorage) -> None:
    Machine(tmp_path / "one", storage).build()
    two = Machine(tmp_path / "two", storage)
    with two.inside():
        assert asyncio.run(two.app.abuild())["words"] == 1500
    assert two.ran == []
