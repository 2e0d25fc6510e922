"""The workspace: a folder with runs, node checkpoints, cache and traces.

::

    runs/<run-id>/run.json                  a run's record
    runs/<run-id>/failure.json              why it did not end well
    runs/<run-id>/checkpoints/<node>.json   a node that was complete in it
    runs/<run-id>/nodes.json                what it took over; once it ended, all of them
    runs/<run-id>/output/<node>.log         what a command printed
    cache/entries, cache/blobs              what tasks gave
    trace/<run-id>.jsonl                    what became of each node, line by line

It may be the folder of a file store, whose threads are beside these. Anything else in it is
refused: a folder that something else writes to is not one to rely on, and a link would lead out of
it. Temporary files a death left behind do not matter. Everything is written atomically and
durably and read strictly. Node names are escaped like thread names.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from milecastle.builds.cache import ContentCache
from milecastle.builds.paths import Places
from milecastle.builds.records import (
    FORMAT,
    FailureFile,
    NodeCheckpoint,
    RunFile,
    RunNodes,
    TraceEvent,
    decode,
    encode,
    read_trace,
)
from milecastle.disk.files import PRIVATE_FILE
from milecastle.disk.locking import lock
from milecastle.disk.names import file_name
from milecastle.disk.replacing import TEMPORARY, make_folders, put
from milecastle.errors import Corrupted, FormatTooNew, Unavailable
from milecastle.model.ids import IdMaker
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord
from milecastle.stores.jsonl.shapes import FailureShape, RunShape

_FOLDERS: Final = re.compile(
    r"cache(/(blobs|entries)(/[0-9a-f]{2})?)?|trace"
    r"|runs(/[^/.][^/]*(/(checkpoints|output))?)?",
    re.DOTALL,
)
_UNREAD_FOLDERS: Final = re.compile(r"threads|runs/\.[^/]*\.gone", re.DOTALL)
_FILES: Final = re.compile(
    r"\.gitignore|cache/(\.lock|index)|trace/[^/]*\.jsonl|(cache/|runs/[^/]+/)?\.[^/]*\.tmp"
    r"|cache/blobs/../[0-9a-f]{62}|cache/entries/../[0-9a-f]{62}\.json"
    r"|runs/\.[^/]*\.lock|runs/[^/]+/(run|failure|nodes)\.json"
    r"|runs/[^/]+/(checkpoints/.+\.json|output/.+\.log)",
    re.DOTALL,
)
"""Paths in a workspace. Links are neither folders nor files."""


def _foreign(folder: Path | str, below: str = "") -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = below + entry.name
            if entry.name.startswith(TEMPORARY):
                continue
            if entry.is_dir(follow_symlinks=False):
                if _FOLDERS.fullmatch(path):
                    yield from _foreign(entry.path, f"{path}/")
                    continue
                fits = _UNREAD_FOLDERS.fullmatch(path)
            else:
                fits = _FILES.fullmatch(path) if entry.is_file(follow_symlinks=False) else None
            if not fits:
                yield f"{entry.path} was not created by Milecastle: move it elsewhere"


_ids: Final = IdMaker()


class Workspace:
    """A workspace at ``path``; declared files lie under ``root``, by default the folder above it.

    ``cache_limit`` is the cache's size in bytes before unneeded entries are evicted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
        hard_links: bool = False,
    ) -> None:
        self.path = Path(path).absolute()
        self.root = self.path.parent if root is None else Path(root).absolute()
        self.places = Places(self.root)
        self.cache_limit = cache_limit
        self.cache = ContentCache(self.path / "cache", hard_links=hard_links)
        self._runs = self.path / "runs"

    def unauthorised(self) -> list[str]:
        """Foreign files in the workspace, or the workspace itself if not a folder."""
        try:
            return sorted(_foreign(self.path))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            return [f"{self.path} is not a folder: choose another path, or move it away"]

    def recorder(self) -> Workspace:
        """Place for run records: here, or beside, if this is not a folder."""
        if self.path.is_dir() or not os.path.lexists(self.path):
            return self
        return Workspace(self.path.with_name(f"{self.path.name}.refused"), root=self.root)

    def new_run_id(self) -> str:
        """An id for a run."""
        return _ids.make()

    def run_folder(self, run_id: str) -> Path:
        """Where a run is stored."""
        return self._runs / file_name(run_id)

    def trace_path(self, run_id: str) -> Path:
        """Where the trace of a run is."""
        return self.path / "trace" / f"{file_name(run_id)}.jsonl"

    def checkpoint_path(self, run_id: str, node: str) -> Path:
        """A node's checkpoint file, if it completed in the run."""
        return self.run_folder(run_id) / "checkpoints" / f"{file_name(node)}.json"

    def log_path(self, run_id: str, node: str) -> Path:
        """Where the output of a command is stored."""
        return self.run_folder(run_id) / "output" / f"{file_name(node)}.log"

    @contextmanager
    def holding(self, key: ThreadKey, *, wait: float = 10.0) -> Generator[int]:
        """Keep every other run of this thread away; gives the file whose lock says so.

        Commands inherit it, so the lock outlives a process killed for as long as a
        command it started is still at work.
        """
        make_folders(self._runs)
        name = f".{file_name(f'{key.tenant}-{key.thread}')}.lock"
        fd = os.open(self._runs / name, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            try:
                lock(fd, timeout=wait)
            except Unavailable:
                raise Unavailable(
                    f"another run of '{key.thread}' is in progress in {self.path}, or a command "
                    "that it started is still running: wait for it, or end it"
                ) from None
            yield fd
        finally:
            os.close(fd)

    def write_run(self, record: RunRecord) -> None:
        """Write a run's record durably."""
        self._write(record.key, record.run_id, "run.json", RunShape.of(record))

    def write_failure(self, key: ThreadKey, failure: Failure) -> None:
        """Write a run's failure durably."""
        self._write(key, failure.run_id, "failure.json", FailureShape.of(failure))

    def write_nodes(self, run_id: str, nodes: Iterable[NodeCheckpoint], *, ended: bool) -> None:
        """Write the nodes a run took over, or, at its end, all completed ones."""
        path = self._nodes_path(run_id)
        make_folders(path.parent)
        put(path, msgspec.json.encode(RunNodes(format=FORMAT, ended=ended, nodes=tuple(nodes))))

    def write_checkpoint(self, checkpoint: NodeCheckpoint) -> None:
        """Write a node's checkpoint durably."""
        path = self.checkpoint_path(checkpoint.run_id, checkpoint.node)
        if not path.parent.is_dir():
            make_folders(path.parent)
        put(path, encode(checkpoint))

    def run(self, run_id: str) -> RunRecord | None:
        """A file run's record; ``Corrupted`` if it cannot be decoded."""
        try:
            found = decode(self.run_folder(run_id) / "run.json", RunFile)
        except FileNotFoundError:
            return None
        return _record_of(found)

    def failure(self, run_id: str) -> Failure | None:
        """A run's failure, if any."""
        try:
            return decode(self.run_folder(run_id) / "failure.json", FailureFile).failure()
        except FileNotFoundError:
            return None

    def runs(
        self, problems: list[str], *, newest: bool = False, before: str | None = None
    ) -> Iterator[RunRecord]:
        """Every recorded run, by id, oldest first. An undecodable file is a problem.

        ``newest``: the newest id first; ``before``: only those with an older id.
        """
        try:
            names = sorted(entry.name for entry in os.scandir(self._runs) if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return
        names = names if before is None else names[: bisect_left(names, file_name(before))]
        names = names[::-1] if newest else names
        for name in names:
            try:
                found = decode(self._runs / name / "run.json", RunFile)
            except FileNotFoundError:
                continue  # it died before it was recorded
            except (Corrupted, FormatTooNew) as error:
                problems.append(error.message)
                continue
            if (record := _record_of(found)) is not None:
                yield record

    def has_plan(self, run_id: str) -> bool:
        """True for a file run that got as far as a plan."""
        return self._nodes_path(run_id).exists()

    def checkpoints(self, run_id: str, problems: list[str]) -> dict[str, NodeCheckpoint]:
        """Nodes completed in a run, executed or taken over."""
        found: dict[str, NodeCheckpoint] = {}
        ended = False
        try:
            together = decode(self._nodes_path(run_id), RunNodes)
        except FileNotFoundError:
            pass  # it died before it had a plan
        except (Corrupted, FormatTooNew) as error:
            problems.append(error.message)
        else:
            found = {one.node: one for one in together.nodes}
            ended = together.ended
        if not ended:
            found |= self._one_by_one(run_id, problems)
        return found

    def intact_checkpoints(self, run_id: str, problems: list[str]) -> dict[str, NodeCheckpoint]:
        """``checkpoints`` without nodes whose own file says otherwise."""
        found = self.checkpoints(run_id, problems)
        return {
            name: one
            for name, one in found.items()
            if one.run_id != run_id or self._is_intact(one, problems)
        }

    def _is_intact(self, checkpoint: NodeCheckpoint, problems: list[str]) -> bool:
        path = self.checkpoint_path(checkpoint.run_id, checkpoint.node)
        try:
            if decode(path, NodeCheckpoint) == checkpoint:
                return True
            problems.append(f"{path} is not what the run wrote at its end: it was changed")
        except FileNotFoundError:
            problems.append(f"{path} is missing: the run wrote it, and something removed it")
        except (Corrupted, FormatTooNew) as error:
            problems.append(error.message)
        return False

    def _one_by_one(self, run_id: str, problems: list[str]) -> dict[str, NodeCheckpoint]:
        found: dict[str, NodeCheckpoint] = {}
        folder = self.run_folder(run_id) / "checkpoints"
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            try:
                checkpoint = decode(path, NodeCheckpoint)
            except (Corrupted, FormatTooNew) as error:
                problems.append(error.message)
            else:
                found[checkpoint.node] = checkpoint
        return found

    def _nodes_path(self, run_id: str) -> Path:
        return self.run_folder(run_id) / "nodes.json"

    def trace(self, run_id: str, problems: list[str]) -> dict[str, TraceEvent]:
        """Each node's last trace event in a run."""
        try:
            return read_trace(self.trace_path(run_id))
        except Corrupted as error:
            problems.append(error.message)
            return {}

    def _write(
        self, key: ThreadKey, run_id: str, name: str, shape: RunShape | FailureShape
    ) -> None:
        folder = self.run_folder(run_id)
        make_folders(folder)
        facts: dict[str, Any] = {"format": FORMAT, "kind": "files"}
        facts |= {"tenant": key.tenant, "thread": key.thread}
        for field in shape.__struct_fields__:
            if (value := getattr(shape, field)) or field != "tasks":
                facts[field] = value
        put(folder / name, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")


def _record_of(found: RunFile) -> RunRecord | None:
    """The record of a file run; ``None`` for a run of a file store in the same folder."""
    if found.kind != "files":
        return None
    return found.record(ThreadKey(found.tenant, found.thread))
