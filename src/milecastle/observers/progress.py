"""Progress display: plain lines, or live bars on a terminal with ``rich``.

Names and numbers are shown, never state values.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from milecastle.model.event import Event
from milecastle.support.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PAUSE = 1.0
"""Seconds between two lines about the items of one fan-out."""

_GLANCE = 0.1
"""Seconds between two changes of the bar of one fan-out: the terminal is not drawn more often."""

_ENDS = {
    "graph_complete": "done",
    "graph_failed": "failed",
    "interrupt": "waits",
    "sleep": "sleeps",
}


def make_progress(stream: TextIO | None = None) -> PlainProgress | LiveProgress:
    """Live bars if ``stream`` (by default stderr) is a terminal with rich installed, else lines."""
    stream = stream or _stderr()
    if stream is None or not stream.isatty():
        return PlainProgress(stream)
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return PlainProgress(stream)

    class Bars(Progress):
        """Drawn only by rich's thread: adding a bar would draw at once."""

        def refresh(self) -> None:
            pass

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    return LiveProgress(Bars(*columns, console=Console(file=stream), refresh_per_second=10))


def _stderr() -> TextIO | None:
    return sys.stderr


def _label(event: Event) -> str:
    return event.run_id[:8] if event.key is None else event.key.thread


def _task(event: Event) -> str:
    return event.task or event.node or ""


def _is_item(event: Event) -> bool:
    return event.task is not None and "total" in event.data


class PlainProgress:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or _stderr()
        self._lock = threading.Lock()
        self._began: dict[tuple[str, ...], float] = {}
        self._told: dict[tuple[str, ...], float] = {}

    def on_event(self, event: Event) -> None:
        with self._lock:
            said = self._said(event)
            if said is not None and self._stream is not None:
                self._stream.write(printable(f"{_label(event)}: {said}") + "\n")
                self._stream.flush()

    def _said(self, event: Event) -> str | None:
        run = (event.run_id,)
        task = (event.run_id, str(event.step), _task(event))
        match event.type:
            case "graph_start":
                self._began.setdefault(run, time.monotonic())
                return f"{event.data.get('graph', 'graph')} started"
            case "node_start":
                if _is_item(event):
                    return self._item(event, 0)
                self._began[task] = time.monotonic()
                again = f", attempt {event.attempt}" if (event.attempt or 1) > 1 else ""
                return f"step {event.step}: {event.node}{again}"
            case "node_complete":
                took = self._took(task)
                return f"step {event.step}: {event.node} done{took}" if took else None
            case "node_failed":
                error = event.data.get("error", "an error")
                return f"step {event.step}: {event.node} failed with {error}{self._took(task)}"
            case "graph_complete":
                return f"done, {event.step} steps{self._over(run)}"
            case "graph_failed":
                return f"failed with {event.data.get('error', 'an error')}{self._over(run)}"
            case "interrupt":
                self._over(run)
                return f"waiting at {event.node}"
            case "item_complete":
                return self._item(event, event.data["done"])
            case "retry":
                return f"step {event.step}: {event.node} will be retried"
            case "sleep":
                self._over(run)
                return "sleeps"
            case _:
                return None

    def _item(self, event: Event, done: int) -> str | None:
        """Items are many: report the start, the end, and one line per second."""
        fan = (event.run_id, str(event.step), event.node or "")
        total, now = event.data["total"], time.monotonic()
        if done != total and now - self._told.get(fan, -_PAUSE) < _PAUSE:
            return None
        self._told[fan] = now
        return f"step {event.step}: {event.node}, {done} of {total} items"

    def _took(self, task: tuple[str, ...]) -> str:
        began = self._began.pop(task, None)
        return "" if began is None else f" in {time.monotonic() - began:.1f} s"

    def _over(self, run: tuple[str, ...]) -> str:
        took = self._took(run)
        for known in (self._began, self._told):
            for task in [task for task in known if task[0] == run[0]]:
                del known[task]
        return took


class LiveProgress:
    """Bars: one for each run with its steps, one for each branch, one for each fan-out.

    An event updates the bars; rich writes to the terminal ten times a second.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._bars: dict[str, dict[str, TaskID]] = {}
        self._shown: dict[TaskID, float] = {}

    def on_event(self, event: Event) -> None:
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
            self._bars[event.run_id] = {"": self._add(name)}

    def _add(self, name: str, total: int | None = None) -> TaskID:
        return self._progress.add_task(printable(name), total=total, note="")

    def _move(self, event: Event, bars: dict[str, TaskID]) -> None:
        if event.type == "item_complete":
            self._item(event, bars)
        elif event.type == "node_start":
            self._start(event, bars)
        elif event.type in ("node_complete", "node_failed"):
            self._drop(bars, _task(event))
        elif event.type == "state":
            for name in [name for name in bars if name]:
                self._drop(bars, name)
        elif event.type in _ENDS:
            self._end(event, bars)

    def _start(self, event: Event, bars: dict[str, TaskID]) -> None:
        name = _task(event)
        if _is_item(event):
            name = f"items of {event.node}"
        if name in bars:
            return
        self._progress.update(bars[""], note=f"step {event.step}")
        bars[name] = self._add(f"  {name}", event.data.get("total"))
        if _is_item(event):
            self._count(bars[name], 0, event.data["total"])

    def _item(self, event: Event, bars: dict[str, TaskID]) -> None:
        """There may be thousands of items per second: the bar is updated less often."""
        done, total = event.data["done"], event.data["total"]
        bar, now = bars.get(f"items of {event.node}"), time.monotonic()
        if bar is not None and (done == total or now - self._shown.get(bar, 0.0) >= _GLANCE):
            self._shown[bar] = now
            self._count(bar, done, total)

    def _count(self, bar: TaskID, done: int, total: int) -> None:
        self._progress.update(bar, completed=done, note=f"{done} of {total}")

    def _drop(self, bars: dict[str, TaskID], name: str) -> None:
        bar = bars.pop(name, None)
        if bar is not None:
            self._progress.remove_task(bar)
            self._shown.pop(bar, None)

    def _end(self, event: Event, bars: dict[str, TaskID]) -> None:
        for name in [name for name in bars if name]:
            self._drop(bars, name)
        note = f"{_ENDS[event.type]}, {event.step} steps"
        self._progress.update(bars[""], total=1, completed=1, note=note)
        del self._bars[event.run_id]
        if not self._bars:
            self._progress.stop()
