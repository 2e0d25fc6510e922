"""Portable files: a state, the next nodes and the run's config in one file.

Rules:

- A file resumes as its thread does: it contains the state, every pending node, the items
  sent to them, and their tasks' questions, answers and wake times. If it cannot contain
  something, saving fails.

- A file is valid pickle (``codec/pickles.py``) with a checksum and perhaps a signature
  (``codec/signing.py``); nothing in it is ever executed.
- A file is written atomically and is on disk when the call returns.
- A file that does not match the graph is refused by the same rules as a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.structs

from milecastle.app.runs.calls import Call
from milecastle.app.threads.compatibility import judge_compatibility
from milecastle.codec.pickles import MAX_PICKLE, PickleCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.signing import FORMAT, close_file, open_file
from milecastle.disk.files import append, make_root, sync, sync_folder
from milecastle.disk.names import file_name
from milecastle.engine.plan import Ending
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import (
    ANSWERED_BY,
    ANSWERS,
    FAILURE,
    SENDS,
    TIMED_OUT,
    WAITS,
    Reserved,
    branched,
    with_no_messages,
)
from milecastle.engine.tasks import ready_nodes, tasks_of
from milecastle.errors import (
    CodecError,
    Corrupted,
    InvalidRequest,
    ResumeRefused,
    Unavailable,
    UnserializableState,
    UntrustedFile,
)
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import SNAPSHOT, Entry
from milecastle.model.manifest import END
from milecastle.ports.clock import Clock
from milecastle.support.prepared import prepared
from milecastle.support.printable import path_segment, printable


def replace_file(path: Path, data: bytes) -> None:
    _write(path.parent, data, lambda temporary: temporary.replace(path))


def add_file(folder: Path, node: str, milliseconds: int, data: bytes) -> Path:
    name = file_name(node)

    def place(temporary: Path) -> None:
        nonlocal milliseconds
        while not _take_name(temporary, folder / f"{name}_{milliseconds}.pkl"):
            milliseconds += 1

    try:
        make_root(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    _write(folder, data, place)
    return folder / f"{name}_{milliseconds}.pkl"


def _take_name(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a disk without links: two writers in one millisecond cannot be distinguished
        if path.exists():
            return False
        temporary.rename(path)
    return True


def _write(folder: Path, data: bytes, place: Callable[[Path], object]) -> None:
    import tempfile

    temporary: Path | None = None
    try:
        fd, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
        temporary = Path(name)
        try:
            append(fd, data)
            sync(fd)
        finally:
            os.close(fd)
        place(temporary)
        sync_folder(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> Unavailable:
    reason = error.strerror or type(error).__name__
    return Unavailable(f"a portable file cannot be written to {folder}: {reason}")


FilePath = str | os.PathLike[str]

_END_SIZE: Final = 1024
"""More than the bytes after the pickle."""


@prepared
class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``version`` comes first, so a newer one is recognized before the rest is read."""

    version: str = FORMAT
    graph: str
    fingerprint: str
    manifest: bytes
    node: str
    next: tuple[str, ...]
    step: int
    timestamp: float
    config: Any
    state: dict[str, Any]
    results: dict[str, Any]
    pending: dict[str, Any] = {}


_Wait = tuple[str, list[Any] | None, int | None, list[tuple[str, int]]]

_Question = tuple[str, Any, Any, dict[str, Any] | None, bool]


@prepared
class _Pending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sends: list[Any] = msgspec.field(name=SENDS, default=[])
    waits: dict[str, _Wait] = msgspec.field(name=WAITS, default={})
    answers: dict[str, Any] = msgspec.field(name=ANSWERS, default={})
    timed_out: dict[str, int] = msgspec.field(name=TIMED_OUT, default={})
    answered_by: dict[str, list[Any]] = msgspec.field(name=ANSWERED_BY, default={})
    failure: dict[str, tuple[str, str]] = msgspec.field(name=FAILURE, default={})


_Send = tuple[str, dict[str, Any] | None]


class PortableFiles:
    def __init__(
        self,
        graph: CompiledGraph,
        clock: Clock,
        *,
        folder: FilePath | None = None,
        signing_key: bytes | str | None = None,
    ) -> None:
        self.graph = graph
        self.folder = None if folder is None else Path(folder)
        self._clock = clock
        self._key = _key_bytes(signing_key)
        self._made: PickleCodec | None = None

    @property
    def _codec(self) -> PickleCodec:
        if self._made is None:
            self._made = PickleCodec(TypeRegistry.for_annotations(self.graph.annotations))
        return self._made

    def save(self, path: FilePath, state: Any, node: str, config: Any = None) -> None:
        next = () if node == END else (node,)
        data = self._encode(self.graph.schema.read_input(state), next, node, config)
        replace_file(Path(path), data)
        _log("saved", path, node, 0, len(data))

    def leave(self, ending: Ending, results: Mapping[str, Mapping[str, Any]]) -> None:
        if self.folder is None:
            return
        next, step = ending.next, ending.step
        pending = _portable(ending)
        tasks = tasks_of(self.graph, ready_nodes(self.graph, next), pending.get(SENDS))
        for name in dict.fromkeys(found.node for found in ending.interrupts):
            node = name if name in next else (*next, END)[0]
            data = self._encode(
                ending.values,
                next,
                node,
                ending.config,
                step=step,
                results={task: dict(update) for task, update in results.items()},
                pending=pending,
            )
            path = add_file(self.folder, name, self._clock.now() // 1000, data)
            if len(tasks) > 1:
                _warn_of_branches(path, step, [task.id for task in tasks])
            else:
                _log("saved", path, node, step, len(data))

    def _encode(
        self,
        state: dict[str, Any],
        next: tuple[str, ...],
        node: str,
        config: Any,
        *,
        step: int = 0,
        results: Mapping[str, Any] | None = None,
        pending: Reserved | None = None,
    ) -> bytes:
        names = (node, *next) if next else ()
        unknown = [name for name in names if name not in self.graph.nodes]
        if unknown:
            raise InvalidRequest(f"the graph has no node {unknown[0]!r} to resume at")
        content = {
            "version": FORMAT,
            "graph": self.graph.name,
            "fingerprint": self.graph.fingerprint,
            "manifest": self.graph.manifest.to_bytes(),
            "node": node,
            "next": next,
            "step": step,
            "timestamp": self._clock.now() / 1_000_000,
            "config": config,
            "state": self._values(state),
            "results": dict(results or {}),
            "pending": pending or {},
        }
        try:
            return close_file(self._codec.dumps(content), self._key)
        except UnserializableState as error:
            error.node = None  # it is the caller's value, not one that a node returned
            for name, value in self._values(state).items():  # names of the state, and not data
                self._codec.check(value, f"$.state{path_segment(name)}")
            self._codec.check(config, "$.config")
            raise

    def load(self, path: FilePath) -> dict[str, Any]:
        """A file's contents for users: state, node, config, timestamp, version.

        ``results`` is included if the file was saved at a fan-in.
        """
        content, _ = self._open(Path(path))
        loaded = {
            "state": self.graph.schema.view(content.state),
            "node": content.node,
            "config": content.config,
            "timestamp": content.timestamp,
            "version": content.version,
        }
        return {**loaded, "results": content.results} if content.results else loaded

    def read(self, call: Call) -> tuple[Position, str, Call]:
        if call.input is not None or call.given:
            raise InvalidRequest("give a portable file alone, without an input or an answer")
        path = Path(call.file)
        content, changed = self._open(path)
        note = f"from file {path.name}"
        if changed:
            note = f"{note}; {changed}"
        position = Position(
            values=content.state,
            entry=self._entry(content, self._clock.new_id()),
            was_seen=True,
            reserved=with_no_messages(content.pending),
        )
        config = merge_config(content.config, call.config)
        return position, note, msgspec.structs.replace(call, config=config)

    def _entry(self, content: _Content, run_id: str) -> Entry:
        return Entry(
            seq=0,
            id="",
            parent_id=None,
            step=content.step,
            source="fork",
            nodes=(),
            next=content.next,
            run_id=run_id,
            fingerprint=content.fingerprint,
            created_at=round(content.timestamp * 1_000_000),
            kind=SNAPSHOT,
            base_seq=0,
            roll_seq=0,
            payload=b"",
        )

    def _values(self, given: dict[str, Any]) -> dict[str, Any]:
        values = self.graph.schema.complete(given)
        if missing := self.graph.schema.missing(values):
            names = ", ".join(map(repr, missing))
            raise InvalidRequest(f"the state lacks {names}, which has no default")
        return values

    def _open(self, path: Path) -> tuple[_Content, str]:
        data = _read_bytes(path)
        pickled = open_file(data, self._key, str(path))
        try:
            found = self._codec.loads(pickled)
        except CodecError as error:
            self._refuse_misfit(pickled, path)
            if not isinstance(error, UntrustedFile):
                raise
            raise UntrustedFile(f"{path} was not opened: {error.message}") from None
        content = _content(found, path)
        changed = self._check_fit(content, path)
        self._check_pending(content, path)
        _log("loaded", path, content.node, content.step, len(data))
        return content, changed

    def _refuse_misfit(self, pickled: bytes, path: Path) -> None:
        try:
            outline = _content(self._codec.outline(pickled), path)
        except CodecError:
            return
        self._check_fit(outline, path, typed=False)

    def _check_fit(self, content: _Content, path: Path, *, typed: bool = True) -> str:
        """Refuse a mismatch with this graph; otherwise return a note about the changes, or ''.

        An outline has no objects, so its values' types are not checked.
        """
        graph = self.graph
        fit = judge_compatibility(self._entry(content, ""), content.manifest, graph)
        if not fit:
            whose = f"it was saved by graph '{content.graph}', but this graph is '{graph.name}'"
            raise ResumeRefused(str(path), [whose, *fit.reasons], what="file")
        ended = content.node == END and not content.next
        known = content.next and graph.nodes.keys() >= {content.node, *content.next}
        if not (ended or known):
            raise ResumeRefused(str(path), ["this graph has no such node"], what="file")
        try:
            content.state.update(self._values(graph.schema.read_input(content.state)))
        except InvalidRequest as error:
            raise ResumeRefused(str(path), [error.message], what="file") from None
        if typed and (reasons := graph.schema.misfits(content.state)):
            raise ResumeRefused(str(path), reasons, what="file")
        return fit.note

    def _check_pending(self, content: _Content, path: Path) -> None:
        try:
            found = msgspec.convert(content.pending, _Pending)
            sends = list(zip(found.sends[::2], found.sends[1::2], strict=True))
            sent = {name for name, _ in msgspec.convert(sends, list[_Send])}
            waiting = {task for task, *_ in found.waits.values()}
            for _, question, *_ in found.waits.values():
                msgspec.convert(question and question[:5], _Question | None)
        except (msgspec.ValidationError, ValueError):
            raise UntrustedFile(f"{path} is not a portable file") from None
        tasks = {task.id for task in tasks_of(self.graph, content.next, found.sends)}
        if not (sent <= {*content.next} and waiting <= tasks):
            raise UntrustedFile(f"{path} is not a portable file")


def _portable(ending: Ending) -> Reserved:
    """A file's content besides the state.

    A subgraph runs again from its start, because a file has no threads for it. So it asks again;
    its answers and wake times would be lost.
    """
    pending = with_no_messages(branched(ending.reserved))
    for name, what in (
        (ANSWERS, "has received answers"),
        (TIMED_OUT, "has waited until a deadline"),
        (WAITS, "is sleeping"),
    ):
        lost = [
            label
            for label in ending.reserved.get(name, {})
            if label not in pending.get(name, {}) and (name != WAITS or label.endswith("/:"))
        ]
        if lost:
            task = lost[0].partition("/")[0]
            raise InvalidRequest(
                f"no portable file can be saved here: the subgraph of task '{task}' {what}, and "
                "a file cannot hold that; the thread in the store does, so resume the thread"
            )
    return pending


def merge_config(saved: Any, given: Any) -> Any:
    if given is None:
        return saved
    if not isinstance(saved, Mapping) or not isinstance(given, Mapping):
        return given
    merged: dict[Any, Any] = {**saved, **given}
    return merged


def _key_bytes(key: bytes | str | None) -> bytes | None:
    if key is None:
        return None
    key = key.encode() if isinstance(key, str) else bytes(key)
    if not key:
        raise InvalidRequest("the signing key is empty: pass secret bytes, or None")
    return key


def _content(found: object, path: Path) -> _Content:
    try:
        return msgspec.convert(found, _Content)
    except msgspec.ValidationError:
        raise UntrustedFile(f"{path} is not a portable file") from None


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PICKLE + _END_SIZE + 1)
    except FileNotFoundError:
        raise InvalidRequest(f"there is no portable file {path}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidRequest(f"the portable file {path} cannot be read: {reason}") from error
    if len(data) > MAX_PICKLE + _END_SIZE:
        raise Corrupted("the file is larger than any portable file", place=str(path))
    return data


def _log(what: str, path: FilePath, node: str, step: int, size: int) -> None:
    import logging

    message = "%s portable file %s: node '%s' after step %d, %d bytes"
    place, name = printable(str(path)), printable(node)
    logging.getLogger("milecastle").info(message, what, place, name, step, size)


def _warn_of_branches(path: Path, step: int, tasks: list[str]) -> None:
    import logging

    more = f" and {len(tasks) - 10} more" if len(tasks) > 10 else ""
    logging.getLogger("milecastle").warning(
        "saved portable file %s while parallel branches are running: it contains the last "
        "committed step (%d), and resuming from it runs %s",
        printable(str(path)),
        step,
        printable(", ".join(tasks[:10])) + more,
    )
