"""Portable files: a state, the node to run next and its config in one file.

Rules:

- A file is valid pickle (``codec/pickles.py``) with a checksum and perhaps a signature
  (``codec/signing.py``); nothing in it is ever run.
- A file is written whole or not at all, and is on the disk when the call returns.
- A file that does not fit the graph is refused by the rules by which a thread is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.structs

from milecastle.app.fitting import judge_fit
from milecastle.app.launching import Wish
from milecastle.app.starting import Start, start_at
from milecastle.app.threads import Threads
from milecastle.codec.pickles import MAX_PICKLE, PickleCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.signing import FORMAT, close_file, open_file
from milecastle.drivers.host import Host
from milecastle.engine.position import Position
from milecastle.errors import (
    CodecError,
    Corrupted,
    InvalidRequest,
    ResumeRefused,
    UnserializableState,
    UntrustedFile,
)
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.clock import Clock

__all__ = ["FilePath", "PortableFiles", "merge_config"]

FilePath = str | os.PathLike[str]

_END_SIZE: Final = 1024
"""More than what stands after the pickle."""


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file holds. ``version`` comes first: a newer one is told before all is read."""

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


class PortableFiles:
    """The portable files of one graph. ``folder`` is where interrupts are saved to, if anywhere."""

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
            channels = self.graph.schema.channels.values()
            hints = [channel.annotation for channel in channels]
            self._made = PickleCodec(TypeRegistry.for_annotations(hints))
        return self._made

    def save(self, path: FilePath, state: Any, node: str, config: Any = None) -> None:
        """Save a state and the node that will run on it; an older file is replaced."""
        from milecastle.app.portable_writing import replace_file

        replace_file(Path(path), self._encode(state, (node,), node, config))

    def add(
        self,
        name: str,
        state: Any,
        next: tuple[str, ...],
        node: str,
        config: Any,
        step: int,
        results: Mapping[str, Any],
    ) -> Path | None:
        """Save an interrupt at ``name`` to the folder, if there is one; the file's path."""
        from milecastle.app.portable_writing import add_file

        if self.folder is None:
            return None
        data = self._encode(state, next, node, config, step=step, results=results)
        return add_file(self.folder, name, self._clock.now() // 1000, data)

    def _encode(
        self,
        state: Any,
        next: tuple[str, ...],
        node: str,
        config: Any,
        *,
        step: int = 0,
        results: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The bytes of a file.

        Raises:
            InvalidRequest: the graph has no such node, or the state does not fit it.
            UnserializableState: something cannot be saved; the error has its path.
        """
        unknown = [name for name in (node, *next) if name not in self.graph.nodes]
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
            "state": self._values(self.graph.schema.read_input(state)),
            "results": dict(results or {}),
        }
        try:
            return close_file(self._codec.dumps(content), self._key)
        except UnserializableState as error:
            error.node = None  # it is the caller's value, not one that a node returned
            raise

    def load(self, path: FilePath) -> dict[str, Any]:
        """What a file holds, for people: state, node, config, timestamp, version.

        ``results`` is there too if the file was saved at a fan-in.
        """
        content = self._read(Path(path))
        self._check_fit(content, Path(path))
        loaded = {
            "state": self.graph.schema.present(content.state),
            "node": content.node,
            "config": content.config,
            "timestamp": content.timestamp,
            "version": content.version,
        }
        return {**loaded, "results": content.results} if content.results else loaded

    def hosting(self, config: Any) -> Callable[..., Host]:
        """What makes the host of a run that leaves a file at each interrupt."""
        from functools import partial

        from milecastle.app.saving_host import SavingHost

        return partial(SavingHost, self, config)

    def start(
        self, wish: Wish, threads: Threads | None, key: ThreadKey | None, tenant: str
    ) -> tuple[Start, Wish]:
        """A run that begins where the file of a wish stands, and the wish with its config.

        With a store it is a thread of its own, which must have no checkpoints yet.
        """
        if wish.input is not None or wish.given:
            raise InvalidRequest("give a checkpoint file alone, without an input or an answer")
        path = Path(wish.checkpoint)
        content = self._read(path)
        note = f"from file {path.name}"
        if changed := self._check_fit(content, path):
            note = f"{note}; {changed}"
        run_id = self._clock.new_id()
        position = Position(values=content.state, entry=self._entry(content, run_id), was_seen=True)
        wish = msgspec.structs.replace(wish, config=merge_config(content.config, wish.config))
        if threads is None:
            return Start(position=position, run_id=run_id), wish
        key = key or ThreadKey(tenant, self._clock.new_id())
        if threads.store.read(key) is not None:
            raise InvalidRequest(
                f"thread '{key.thread}' has checkpoints already: resume('{key.thread}') goes on "
                "with them, another thread begins where the file stands"
            )
        return start_at(threads, key, position, note), wish

    def _entry(self, content: _Content, run_id: str) -> Entry:
        """The checkpoint that a file is. No log has it, so it has no seq and no id."""
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
        """The values of a state that nodes can be given."""
        values = self.graph.schema.complete(given)
        if missing := self.graph.schema.missing(values):
            names = ", ".join(map(repr, missing))
            raise InvalidRequest(f"the state leaves out {names}, which has no default")
        return values

    def _read(self, path: Path) -> _Content:
        pickled = open_file(_read_bytes(path), self._key, str(path))
        try:
            found = self._codec.loads(pickled)
        except CodecError as error:
            self._refuse_misfit(pickled, path)
            if not isinstance(error, UntrustedFile):
                raise
            raise UntrustedFile(f"{path} is not opened: {error.message}") from None
        return _content(found, path)

    def _refuse_misfit(self, pickled: bytes, path: Path) -> None:
        """If the file is another graph's, say so: that explains whatever else is wrong with it."""
        try:
            outline = _content(self._codec.outline(pickled), path)
        except CodecError:
            return
        self._check_fit(outline, path)

    def _check_fit(self, content: _Content, path: Path) -> str:
        """Refuse what does not fit this graph; otherwise a note of what changed, or ''."""
        graph = self.graph
        fit = judge_fit(self._entry(content, ""), content.manifest, graph)
        if not fit:
            whose = f"it was saved by graph '{content.graph}', and this is '{graph.name}'"
            raise ResumeRefused(str(path), [whose, *fit.reasons], what="file")
        if not content.next or not graph.nodes.keys() >= {content.node, *content.next}:
            raise ResumeRefused(str(path), ["this graph has no such node"], what="file")
        try:
            content.state.update(self._values(graph.schema.read_input(content.state)))
        except InvalidRequest as error:
            raise ResumeRefused(str(path), [error.message], what="file") from None
        return fit.note


def merge_config(saved: Any, given: Any) -> Any:
    """The given config over the saved one: key by key if both are mappings."""
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
        raise InvalidRequest("the signing key is empty: give some secret bytes, or None")
    return key


def _content(found: object, path: Path) -> _Content:
    try:
        return msgspec.convert(found, _Content)
    except msgspec.ValidationError:
        raise UntrustedFile(f"{path} does not hold a checkpoint") from None


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PICKLE + _END_SIZE + 1)
    except FileNotFoundError:
        raise InvalidRequest(f"there is no checkpoint file {path}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidRequest(f"the checkpoint file {path} cannot be read: {reason}") from error
    if len(data) > MAX_PICKLE + _END_SIZE:
        raise Corrupted("the file is larger than any checkpoint file", place=str(path))
    return data
