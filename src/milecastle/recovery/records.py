"""What stands in the files of a workspace, as strict shapes: an unknown field is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from milecastle.errors import Corrupted, FormatTooNew
from milecastle.stores.jsonl.shapes import FailureShape, RunShape

__all__ = [
    "FORMAT",
    "Artifact",
    "CacheEntry",
    "FailureFile",
    "Item",
    "NodeCheckpoint",
    "RunFile",
    "RunNodes",
    "decode",
    "encode",
]

FORMAT: Final = 1

T = TypeVar("T")


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing inside an output: a file by its hash, a folder, or a link by what it says.

    ``path`` is relative to the output and empty for the output itself.
    """

    path: str
    hash: str = ""
    size: int = 0
    executable: bool = False
    folder: bool = False
    link: str = ""


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output as it was harvested. ``hash`` is that of everything in it."""

    path: str
    hash: str
    items: tuple[Item, ...]


class NodeCheckpoint(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """That a node was complete in a run, and everything that its result depended on.

    ``upstream`` has the output hash of each node that it builds on; ``seen`` is the digest of
    the state that it read, empty if it read none. ``expires_at`` is in microseconds since 1970.
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


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task gave: its outputs, and its update as the codec's bytes."""

    format: int
    node: str
    task_hash: str
    artifacts: tuple[Artifact, ...]
    update: bytes
    created_at: int
    checksum: str = ""


class RunNodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``nodes.json``: the checkpoints of a run in one file.

    While the run goes on: those that it took over. Once it ``ended``: all of them.
    """

    format: int
    ended: bool
    nodes: tuple[NodeCheckpoint, ...]


class RunFile(RunShape, kw_only=True):
    """``run.json``: the record of a run, with its thread."""

    format: int
    tenant: str
    thread: str


class FailureFile(FailureShape, kw_only=True):
    """``failure.json``: why a run did not end well."""

    format: int
    tenant: str
    thread: str


class _Format(msgspec.Struct):
    format: int


def encode(record: msgspec.Struct) -> bytes:
    """The record as JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(path: Path | str, shape: type[T]) -> T:
    """Read a file strictly; ``Corrupted`` names it and what is wrong.

    Raises:
        FileNotFoundError: it is not there.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of these are read
        data = file.read()
    try:
        record = msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse_newer(data, path)
        raise Corrupted(f"the record does not decode ({error})", place=str(path)) from None
    if getattr(record, "format", FORMAT) != FORMAT:
        _refuse_newer(data, path)
        raise Corrupted("the record has an unknown format", place=str(path))
    return record


def _refuse_newer(data: bytes, path: Path | str) -> None:
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if found > FORMAT:
        raise FormatTooNew(found=found, supported=FORMAT, place=str(path))
