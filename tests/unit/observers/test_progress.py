"""Progress: plain lines without a terminal, live bars on one that has rich."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.observers.progress import LiveProgress, PlainProgress, make_progress


def event(
    type: Any,
    node: str | None = None,
    step: int = 1,
    run: str = "r",
    task: str | None = None,
    attempt: int | None = None,
    **data: Any,
) -> Event:
    key = ThreadKey("acme", run)
    state = {"word": "swordfish"}
    return Event(
        type=type,
        run_id=run,
        key=key,
        node=node,
        step=step,
        task=task,
        attempt=attempt,
        data=data,
        state=state,
        update=state,
    )


COURSE = [
    event("graph_start", step=0, graph="line"),
    event("state", step=0),
    event("node_start", "a", attempt=1, task="a"),
    event("node_complete", "a", task="a"),
    event("node_start", "b", 2, attempt=2),
    event("retry", "b", 2, attempt=3),
    event("node_failed", "b", 2, error="ValueError"),
    event("something_new", "b", 2, question="swordfish"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(*events: Event) -> list[str]:
    stream = io.StringIO()
    observer = PlainProgress(stream)
    for item in events:
        observer.on_event(item)
    return stream.getvalue().splitlines()


def test_lines_say_what_a_person_waits_for() -> None:
    lines = said(*COURSE, event("graph_failed", "b", 2, error="ExecutionError"))
    shapes = [line.split(" in ")[0] for line in lines]
    assert shapes == [
        "r: line started",
        "r: step 1: a",
        "r: step 1: a done",
        "r: step 2: b, attempt 2",
        "r: step 2: b will be retried",
        "r: step 2: b failed with ValueError",
        "r: failed with ExecutionError",
    ]
    assert lines[2].endswith(" s")
    assert "swordfish" not in "".join(lines)


@pytest.mark.parametrize(
    ("last", "line"),
    [
        (event("graph_complete", step=3), "r: done, 3 steps in "),
        (event("interrupt", "ask", 3), "r: waiting at ask"),
        (event("sleep", step=3, wake_at=5), "r: sleeps"),
    ],
)
def test_how_a_run_stopped_is_the_last_line(last: Event, line: str) -> None:
    assert said(COURSE[0], last)[-1].startswith(line)


def test_items_are_reported_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = io.StringIO()
    observer = PlainProgress(stream)
    for count in range(1, 1001):
        now[0] += 0.003
        task = f"fan#{count}"
        observer.on_event(event("node_start", "fan", 2, total=1000, task=task))
        observer.on_event(event("node_complete", "fan", 2, task=task))
        observer.on_event(event("item_complete", "fan", 2, done=count, total=1000, task=task))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "r: step 2: fan, 0 of 1000 items"
    assert lines[-1] == "r: step 2: fan, 1000 of 1000 items"
    assert len(lines) == 4


def test_nothing_is_retained_of_runs_that_stopped() -> None:
    observer = PlainProgress(io.StringIO())
    ends: list[Any] = ["graph_complete", "graph_failed", "interrupt", "sleep"]
    for number, end in enumerate(ends * 5):
        run = str(number)
        for kind in ("graph_start", "node_start", "item_complete", end):
            observer.on_event(event(kind, "a", run=run, done=1, total=2))
    kept: list[Any] = [value for value in vars(observer).values() if isinstance(value, dict)]
    assert kept == [{}, {}]


def test_a_run_without_a_thread_goes_by_its_id() -> None:
    assert said(Event(type="graph_start", run_id="0123456789abc")) == ["01234567: graph started"]


def test_lines_of_many_threads_stay_whole() -> None:
    stream = io.StringIO()
    observer = PlainProgress(stream)

    def work(run: str) -> None:
        for step in range(100):
            observer.on_event(event("node_start", "a", step, run))

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 400
    assert all(line.endswith(": a") for line in lines)


def test_without_a_terminal_or_without_rich_there_are_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(make_progress(io.StringIO()), PlainProgress)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(make_progress(Terminal()), PlainProgress)


def test_without_any_stream_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    make_progress().on_event(COURSE[0])


def live() -> tuple[LiveProgress, Any]:
    rich: Any = pytest.importorskip("rich.progress")
    console: Any = pytest.importorskip("rich.console")
    bars = rich.Progress(
        "{task.description}",
        "{task.fields[note]}",
        console=console.Console(file=Terminal(), force_terminal=True),
        auto_refresh=False,
    )
    return LiveProgress(bars), bars


def shown(bars: Any) -> list[tuple[str, str]]:
    return [(task.description, task.fields["note"]) for task in bars.tasks]


def test_on_a_terminal_with_rich_there_are_bars() -> None:
    pytest.importorskip("rich")
    stream = Terminal()
    observer = make_progress(stream)
    assert isinstance(observer, LiveProgress)
    for item in [*COURSE, event("graph_complete", step=2)]:
        observer.on_event(item)
    assert "line" in stream.getvalue()
    assert "done, 2 steps" in stream.getvalue()
    assert "swordfish" not in stream.getvalue()


def test_each_branch_and_each_fan_out_has_a_bar() -> None:
    observer, bars = live()
    observer.on_event(event("graph_start", graph="g"))
    observer.on_event(event("node_start", "a", task="a"))
    observer.on_event(event("node_start", "b", task="b"))
    observer.on_event(event("node_start", "c", task="c#0", index=0, total=3))
    observer.on_event(event("node_start", "c", task="c#1", index=1, total=3))
    assert shown(bars) == [
        *(("r g", "step 1"), ("  a", ""), ("  b", "")),
        ("  items of c", "0 of 3"),
    ]
    for n in range(3):
        observer.on_event(event("node_complete", "c", task=f"c#{n}"))
        observer.on_event(event("item_complete", "c", done=n + 1, total=3, task=f"c#{n}"))
    assert ("  items of c", "3 of 3") in shown(bars)
    assert bars.live.is_started
    observer.on_event(event("node_complete", "b", task="b"))
    assert ("  b", "") not in shown(bars)
    observer.on_event(event("state"))
    assert shown(bars) == [("r g", "step 1")]
    observer.on_event(event("interrupt", "a", 1))
    assert shown(bars) == [("r g", "waits, 1 steps")]
    assert not bars.live.is_started


def test_bars_are_removed_when_the_last_run_stopped() -> None:
    observer, bars = live()
    for run in ("one", "two"):
        observer.on_event(event("graph_start", run=run))
    observer.on_event(event("graph_start", run="two"))
    observer.on_event(event("graph_failed", run="one"))
    assert bars.live.is_started
    observer.on_event(event("node_start", "a", run="one"))
    observer.on_event(event("sleep", run="two"))
    assert not bars.live.is_started
    assert [note for _, note in shown(bars)] == ["failed, 1 steps", "sleeps, 1 steps"]


def test_a_name_is_never_markup() -> None:
    pytest.importorskip("rich")
    stream = Terminal()
    observer = make_progress(stream)
    observer.on_event(event("graph_start", graph="[red]x[/nonsense]"))
    observer.on_event(event("graph_complete"))
    assert "[red]x[/nonsense]" in stream.getvalue()


def test_a_name_cannot_forge_a_line_or_move_the_cursor() -> None:
    """Seen to fail with names written as they are."""
    name = "a\x1b[2K\u202e\nr: done"
    lines = said(event("graph_start", step=0, graph=name), event("node_start", name, run=name))
    assert lines == [
        "r: a\\x1b[2K\\u202e\\nr: done started",
        "a\\x1b[2K\\u202e\\nr: done: step 1: a\\x1b[2K\\u202e\\nr: done",
    ]
    progress = make_progress(Terminal())
    assert isinstance(progress, LiveProgress)
    progress.on_event(event("graph_start", step=0, graph=name))
    progress.on_event(event("node_start", name))
    progress.on_event(event("node_start", name, task=f"{name}#0", total=2))
    shown = [task.description for task in progress._progress.tasks]  # pyright: ignore[reportPrivateUsage]
    progress.on_event(event("graph_complete", step=3))
    assert len(shown) == 3
    assert [text for text in shown if not text.isprintable()] == []
