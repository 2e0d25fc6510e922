"""A trace: every event as a line of JSON, and reading such a file.

Rules:

- One event is one line, written at once: runs in other threads, and other processes that append to
  the same file, do not tear it.
- No state value: only an event's facts are written.
- The log is the source of truth, not the trace: lines are not synced to disk, and a line torn by a
  crash is skipped when the file is read.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from milecastle.draw import draw_mermaid, draw_svg
from milecastle.errors import InvalidRequest
from milecastle.model.event import Event
from milecastle.model.manifest import Manifest
from milecastle.support.prepared import prepared

VisitOutcome = Literal["done", "failed", "next", "active"]

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class TraceObserver:
    """Appends every event to a file. Several runs in different threads may share it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._started = time.time_ns() - time.monotonic_ns()
        self._fd: int | None = None
        self._close: Any = None

    def on_event(self, event: Event) -> None:
        line = self._encode(self._facts(event)) + b"\n"
        with self._lock:
            fd = self._open() if self._fd is None else self._fd
            written = os.write(fd, line)
            while written < len(line):
                written += os.write(fd, line[written:])

    def close(self) -> None:
        with self._lock:
            if self._close is not None:
                self._close()
            self._fd = self._close = None

    def _open(self) -> int:
        folder = self._path.absolute().parent
        for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._path, _FLAGS, 0o600)
        self._fd, self._close = fd, weakref.finalize(self, os.close, fd)
        if os.fstat(fd).st_size:
            os.lseek(fd, -1, os.SEEK_END)
            if os.read(fd, 1) != b"\n":
                os.write(fd, b"\n")  # a torn line stays a separate line
        return fd

    def _facts(self, event: Event) -> dict[str, Any]:
        # A monotonic clock, so that durations can be computed from the file.
        facts: dict[str, Any] = {"at": (self._started + time.monotonic_ns()) // 1000}
        facts |= {"type": event.type, "run": event.run_id, "step": event.step}
        if event.key is not None:
            facts |= {"tenant": event.key.tenant, "thread": event.key.thread}
        if event.node is not None:
            facts["node"] = event.node
        if event.seq is not None:
            facts["seq"] = event.seq
        data = {name: value for name, value in event.facts.items() if _is_plain(value)}
        return {**facts, "data": data} if data else facts


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(part, str) for part in value)  # pyright: ignore[reportUnknownVariableType]
    return value is None or isinstance(value, (str, int, float, bool))


class NodeTrace(msgspec.Struct, kw_only=True):
    """A node's outcome in a run. ``seconds`` covers all its visits."""

    outcome: VisitOutcome
    visits: int = 0
    failures: int = 0
    retries: int = 0
    items: int = 0
    seconds: float = 0.0


class RunTrace(msgspec.Struct, kw_only=True):
    """One run in a trace. ``status`` is ``running`` if its end is not in the file."""

    run_id: str
    tenant: str | None = None
    thread: str | None = None
    graph: str | None = None
    status: str = "running"
    steps: int = 0
    seconds: float = 0.0
    nodes: dict[str, NodeTrace] = {}

    @property
    def marks(self) -> dict[str, str]:
        """Each node's outcome, as marked in drawings."""
        return {name: node.outcome for name, node in self.nodes.items()}

    @property
    def visits(self) -> dict[str, int]:
        """Visits of each node."""
        return {name: node.visits for name, node in self.nodes.items()}


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A file's runs, in start order; ``skipped`` lines were torn."""

    runs: dict[str, RunTrace]
    skipped: int = 0


@prepared
class _EventLine(msgspec.Struct, frozen=True):
    at: int
    type: str
    run: str
    step: int = 0
    tenant: str | None = None
    thread: str | None = None
    node: str | None = None
    data: dict[str, Any] = {}


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """The outcome of every run in a trace file. Unknown event types are allowed.

    Raises:
        InvalidRequest: there is no such file.
    """
    replays: dict[str, _Replay] = {}
    skipped = 0
    decode = msgspec.json.Decoder(_EventLine).decode
    for text in _lines(Path(path)):
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            skipped += 1
            continue
        replays.setdefault(line.run, _Replay(line)).take(line)
    return Trace(runs={run: replay.run for run, replay in replays.items()}, skipped=skipped)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield line
    except FileNotFoundError:
        raise InvalidRequest(f"there is no trace {path}") from None


_STATUS: Final = {
    "graph_start": "running",
    "graph_complete": "completed",
    "graph_failed": "failed",
    "interrupt": "interrupted",
    "sleep": "sleeping",
}


class _Replay:
    def __init__(self, first: _EventLine) -> None:
        self.run = RunTrace(run_id=first.run, tenant=first.tenant, thread=first.thread)
        self._began = first.at
        self._starts: dict[tuple[int, str], int] = {}
        self._ended_at: dict[str, int] = {}

    def take(self, line: _EventLine) -> None:
        run = self.run
        run.seconds = (line.at - self._began) / 1e6
        run.steps = max(run.steps, line.step)
        run.status = _STATUS.get(line.type, run.status)
        run.graph = line.data.get("graph", run.graph)
        if line.node is not None:
            self._take_node(line, line.node)

    def _take_node(self, line: _EventLine, name: str) -> None:
        task = (line.step, str(line.data.get("task", name)))
        match line.type:
            case "node_start":
                node = self._node(name, "active")
                node.visits += 1
                self._starts[task] = line.at
            case "node_complete" | "node_failed":
                node = self._node(name, "done" if line.type == "node_complete" else "failed")
                node.failures += line.type == "node_failed"
                node.seconds += (line.at - self._starts.pop(task, line.at)) / 1e6
                self._ended_at[name] = line.step
            case "item_complete":
                self._node(name, None).items += 1
            case "retry":
                self._node(name, "active").retries += 1
            case "interrupt":
                # After a node, the step of the interrupt is the one in which it ended.
                if self._ended_at.get(name) != line.step:
                    self._node(name, "next")
            case _:
                pass

    def _node(self, name: str, outcome: VisitOutcome | None) -> NodeTrace:
        node = self.run.nodes.setdefault(name, NodeTrace(outcome=outcome or "active"))
        node.outcome = outcome or node.outcome
        return node


def draw_trace(manifest: Manifest, run: RunTrace, form: str = "svg", *, title: str = "") -> str:
    """The graph with each node coloured by its outcome and the number of its visits.

    ``form`` is ``"svg"`` or ``"mermaid"``.
    """
    drawers = {"svg": draw_svg, "mermaid": draw_mermaid}
    if form not in drawers:
        raise InvalidRequest(f"a trace cannot be drawn as {form!r}; use 'svg' or 'mermaid'")
    return drawers[form](manifest, title=title, marks=run.marks, visits=run.visits)
