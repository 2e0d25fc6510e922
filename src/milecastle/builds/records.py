"""A workspace's files as strict shapes: an unknown field is an error.

A run's trace is one JSON line for each node event. A line about a node that ended is on the disk
before its checkpoint is. A last line without its end was cut off by a death and says nothing; any
other line that does not decode is damage.

The update in a cache entry is stored as it is, or encrypted with its thread's key. Once the key is
erased no entry opens, in any copy; an unreadable entry counts as none.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import time_ns
from typing import Final, Literal, TypeVar

import msgspec

from milecastle.codec.envelope import PayloadPlace, Sealer, Sealers
from milecastle.disk.files import PRIVATE_FILE, append, sync
from milecastle.disk.replacing import make_folders
from milecastle.errors import CodecError, Corrupted, FormatTooNew
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl.shapes import FailureShape, RunShape
from milecastle.support.prepared import prepared

FORMAT: Final = 1

T = TypeVar("T")


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item in an output: a file by its hash, a folder, or a link by its target.

    ``path`` is relative to the output and empty for the output itself. ``mode`` is who may read,
    write and execute it.
    """

    path: str
    hash: str = ""
    size: int = 0
    mode: int = 0
    folder: bool = False
    link: str = ""


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output as harvested. ``hash`` covers everything in it."""

    path: str
    hash: str
    items: tuple[Item, ...]


@prepared
class NodeCheckpoint(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """A node that was complete in a run, and everything its result depended on.

    ``upstream`` has each upstream node's output hash; ``seen`` is the digest of the state it read,
    empty if it read none. ``expires_at`` is in microseconds since 1970.
    """

    format: int
    node: str
    run_id: str
    exit_code: int
    task_hash: str
    code_version: str
    parameters: str
    input: str
    seen: str
    inputs: dict[str, str]
    upstream: dict[str, str]
    outputs: dict[str, str]
    output_hash: str
    has_update: bool
    started_at: int
    ended_at: int
    expires_at: int | None


@prepared
class CacheEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task's result: its outputs, and its update as the codec's bytes.

    ``tenant`` and ``thread`` are those of the run that made it, ``thread`` empty if it had none;
    with encryption the update opens with the key of that thread, and with none other.
    """

    format: int
    node: str
    task_hash: str
    artifacts: tuple[Artifact, ...]
    update: bytes
    tenant: str = ""
    thread: str = ""
    created_at: int
    checksum: str = ""


@prepared
class RunNodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``nodes.json``: a run's checkpoints in one file.

    While the run is active: those it reuses. Once it ``ended``: all.
    """

    format: int
    ended: bool
    nodes: tuple[NodeCheckpoint, ...]


RunKind = Literal["files", "thread"]


@prepared
class RunFile(RunShape, kw_only=True):
    """``run.json``: a run's record, with its thread.

    A file store in the same folder has such files of its threads' runs: their ``kind`` differs.
    """

    format: int
    kind: RunKind
    tenant: str
    thread: str


@prepared
class FailureFile(FailureShape, kw_only=True, omit_defaults=True):
    node: str | None = None
    format: int
    kind: RunKind
    tenant: str
    thread: str


@prepared
class _RecordFormat(msgspec.Struct):
    format: int


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(path: Path | str, shape: type[T]) -> T:
    """Read a file strictly; ``Corrupted`` names it and the error.

    Raises:
        FileNotFoundError: it is not there.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of these are read
        data = file.read()
    try:
        record = msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse_newer(data, path)
        raise Corrupted(f"the record cannot be decoded ({error})", place=str(path)) from None
    if getattr(record, "format", FORMAT) != FORMAT:
        _refuse_newer(data, path)
        raise Corrupted("the record has an unknown format", place=str(path))
    return record


def _refuse_newer(data: bytes, path: Path | str) -> None:
    try:
        found = msgspec.json.decode(data, type=_RecordFormat).format
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if found > FORMAT:
        raise FormatTooNew(found=found, supported=FORMAT, place=str(path))


TraceEvent = Literal["started", "complete", "failed", "reused"]


@prepared
class _NodeLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    time: int
    event: TraceEvent
    node: str


class TraceFile:
    """Appends to one run's trace. Lines from several threads do not mix."""

    def __init__(self, path: Path) -> None:
        make_folders(path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, PRIVATE_FILE)

    def note(self, event: TraceEvent, node: str) -> None:
        line = msgspec.json.encode(_NodeLine(time_ns() // 1000, event, node)) + b"\n"
        append(self._fd, line)
        if event in ("complete", "failed"):
            sync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def read_trace(path: Path) -> dict[str, TraceEvent]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    whole, _, _ = data.rpartition(b"\n")
    try:
        lines = msgspec.json.decode(
            b"[" + b",".join(whole.split(b"\n") if whole else []) + b"]", type=list[_NodeLine]
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupted(f"the trace cannot be decoded ({error})", place=str(path)) from None
    return {line.node: line.event for line in lines}


def seal_update(sealer: Sealer | None, task_hash: str, body: bytes) -> bytes:
    return body if sealer is None else sealer.seal(body, PayloadPlace(0, task=_place(task_hash)))


def open_update(entry: CacheEntry, sealers: Sealers | None) -> bytes:
    if sealers is None:
        return entry.update
    if not entry.thread:
        raise CodecError("a result that was not created by a thread is not encrypted")
    sealer = sealers.sealer(ThreadKey(entry.tenant, entry.thread), new=False)
    return sealer.unseal(entry.update, PayloadPlace(0, task=_place(entry.task_hash)))


def _place(task_hash: str) -> str:
    return f"cache {task_hash}"
