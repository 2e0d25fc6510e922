"""Progress for people: plain lines, or live bars on a terminal that has ``rich``.

Names and numbers are shown, never values of the state.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

from milecastle.model.event import Event

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["LiveProgress", "PlainProgress", "make_progress"]

_PAUSE = 1.0
"""Seconds between two lines about the items of one fan-out."""


def make_progress(stream: TextIO | None = None) -> PlainProgress | LiveProgress:
    """Live bars if ``stream`` (by default stderr) is a terminal and rich is there, else lines."""
    stream = stream or _stderr()
    if stream is None or not stream.isatty():
        return PlainProgress(stream)
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return PlainProgress(stream)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    return LiveProgress(Progress(*columns, console=Console(file=stream)))


def _stderr() -> TextIO | None:
    """Where people look; a program without a console has none."""
    return sys.stderr


def _label(event: Event) -> str:
    return event.run_id[:8] if event.key is None else event.key.thread


class PlainProgress:
    """A line for whatever a person waits for: starts, ends, failures, waits."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or _stderr()
        self._lock = threading.Lock()
        self._began: dict[tuple[str, ...], float] = {}
        self._items: dict[tuple[str, ...], int] = {}
        self._told: dict[tuple[str, ...], float] = {}

    def on_event(self, event: Event) -> None:
        """Write a line, or nothing."""
        with self._lock:
            said = self._said(event)
            if said is not None and self._stream is not None:
                self._stream.write(f"{_label(event)}: {said}\n")
                self._stream.flush()

    def _said(self, event: Event) -> str | None:
        run = (event.run_id,)
        task = (event.run_id, str(event.step), str(event.data.get("task", event.node)))
        match event.type:
            case "graph_start":
                self._began.setdefault(run, time.monotonic())
                return f"{event.data.get('graph', 'graph')} started"
            case "node_start":
                self._began[task] = time.monotonic()
                attempt = event.data.get("attempt", 1)
                again = f", attempt {attempt}" if attempt != 1 else ""
                return f"step {event.step}: {event.node}{again}"
            case "node_complete":
                return f"step {event.step}: {event.node} done{self._took(task)}"
            case "node_failed":
                error = event.data.get("error", "an error")
                return f"step {event.step}: {event.node} failed with {error}{self._took(task)}"
            case "graph_complete":
                return f"done, {event.step} steps{self._over(run)}"
            case "graph_failed":
                return f"failed with {event.data.get('error', 'an error')}{self._over(run)}"
            case "interrupt":
                self._over(run)
                return f"waits at {event.node}"
            case _:
                return self._said_of_new(event)

    def _said_of_new(self, event: Event) -> str | None:
        """What is said of events that not every graph has."""
        kind = str(event.type)  # not every type that may come is known here
        if kind == "item_complete":
            return self._item(event)
        if kind == "retry":
            return f"step {event.step}: {event.node} will be tried again"
        if kind == "sleep":
            self._over((event.run_id,))
            return "sleeps"
        return None

    def _item(self, event: Event) -> str | None:
        """Items are many: the first, the last, and one line a second in between."""
        fan = (event.run_id, str(event.step), event.node or "")
        done = self._items[fan] = self._items.get(fan, 0) + 1
        total, now = event.data.get("total"), time.monotonic()
        if done not in (1, total) and now - self._told.get(fan, 0.0) < _PAUSE:
            return None
        self._told[fan] = now
        of = f" of {total}" if total else ""
        return f"step {event.step}: {event.node}, {done}{of} items"

    def _took(self, task: tuple[str, ...]) -> str:
        began = self._began.pop(task, None)
        return "" if began is None else f" in {time.monotonic() - began:.1f} s"

    def _over(self, run: tuple[str, ...]) -> str:
        """The run is at rest: forget it, so that nothing grows with the number of runs."""
        took = self._took(run)
        for known in (self._began, self._items, self._told):
            for task in [task for task in known if task[0] == run[0]]:
                del known[task]
        return took


class LiveProgress:
    """Bars: one for each run with its steps, one for each branch, one for each fan-out."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._bars: dict[str, dict[str, TaskID]] = {}

    def on_event(self, event: Event) -> None:
        """Move the bars."""
        with self._lock:
            if event.type == "graph_start":
                self._begin(event)
            elif event.run_id in self._bars:
                self._move(event, self._bars[event.run_id])

    def _begin(self, event: Event) -> None:
        if not self._bars:
            self._progress.start()
        if event.run_id not in self._bars:
            name = f"{_label(event)} {event.data.get('graph', '')}".strip()
            self._bars[event.run_id] = {"": self._progress.add_task(name, total=None, note="")}

    def _move(self, event: Event, bars: dict[str, TaskID]) -> None:
        kind = str(event.type)  # not every type that may come is known here
        name = str(event.data.get("task", event.node))
        if kind == "node_start":
            self._progress.update(bars[""], note=f"step {event.step}")
            if name not in bars:
                bars[name] = self._progress.add_task(f"  {name}", total=None, note="")
        elif kind in ("node_complete", "node_failed"):
            self._drop(bars, name)
            self._drop(bars, f"items of {event.node}")
        elif kind == "item_complete":
            self._item(event, bars)
        elif kind in ("graph_complete", "graph_failed", "interrupt", "sleep"):
            self._end(event, bars)

    def _item(self, event: Event, bars: dict[str, TaskID]) -> None:
        name = f"items of {event.node}"
        if name not in bars:
            total: Any = event.data.get("total")
            bars[name] = self._progress.add_task(f"  {name}", total=total, note="")
        self._progress.advance(bars[name])
        done = next(task for task in self._progress.tasks if task.id == bars[name])
        of = "" if done.total is None else f"/{done.total:.0f}"
        self._progress.update(bars[name], note=f"{done.completed:.0f}{of}")

    def _drop(self, bars: dict[str, TaskID], name: str) -> None:
        bar = bars.pop(name, None)
        if bar is not None:
            self._progress.remove_task(bar)

    def _end(self, event: Event, bars: dict[str, TaskID]) -> None:
        for name in [name for name in bars if name]:
            self._drop(bars, name)
        said = {"graph_complete": "done", "graph_failed": "failed", "interrupt": "waits"}
        word = said.get(event.type, "sleeps")
        note = f"{word}, {event.step} steps"
        self._progress.update(bars[""], total=1, completed=1, note=note)
        del self._bars[event.run_id]
        if not self._bars:
            self._progress.stop()
