"""O: observing. Events in order, and observers that cannot break a run."""

from __future__ import annotations

import io
import logging
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_args

import pytest

from milecastle import (
    END,
    START,
    App,
    CycleDetected,
    Event,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    StateGraph,
    append,
    register_observer,
)
from milecastle.model.event import EventType
from milecastle.observers.logs import LoggingObserver
from milecastle.observers.trace import draw_trace, read_trace
from tests.acceptance.running import Recorder, Runner, Wrap, always, crash_after

DIGITS = "471147114711"  # more than a time or an id could hold by chance
NUMBER = int(DIGITS + "0")


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


def note(state: Trip, name: str) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [name]}


def fail(state: Trip) -> dict[str, Any]:
    raise ValueError("on purpose")


def line(wrap: Wrap, *observers: Any, last: Any = note, **options: Any) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name="line")
    graph.add_node("a", wrap(note))
    graph.add_node("b", wrap(last))
    graph.add_edge(START, "a")
    graph.add_edge("a", END, when=wrap(always(False)))
    graph.add_edge("a", "b")
    graph.add_edge("b", END)
    return graph.compile(store="memory://", observers=observers, **options)


def told(events: list[Event]) -> list[str]:
    """Each event in short: its type, its node, and what is particular to it."""
    lines: list[str] = []
    for event in events:
        extra = [str(event.data[name]) for name in ("target", "taken") if name in event.data]
        words = [event.type, event.node or "", *extra, f"seq {event.seq}" if event.seq else ""]
        lines.append(" ".join(word for word in words if word))
    return lines


OPENING = [
    "graph_start",
    "state_created",
    "checkpoint_save __start__ seq 1",
    "edge_evaluate __start__ a True seq 1",
    "edge_transition __start__ a seq 1",
    "state seq 1",
    "state_copied a",
    "node_start a",
    "node_complete a",
    "checkpoint_save a seq 2",
    "edge_evaluate a __end__ False seq 2",
    "edge_evaluate a b True seq 2",
    "edge_transition a b seq 2",
    "state seq 2",
]


@pytest.mark.requirement("O1", api="Event")
def test_every_event_of_a_run_is_emitted_in_order(run: Runner, wrap: Wrap) -> None:
    """The golden sequence of a run from its input to its end."""
    seen = Recorder()
    result = run.invoke(line(wrap, seen), {"n": 0}, "t")
    assert told(seen.events) == [
        *OPENING,
        "state_copied b",
        "node_start b",
        "node_complete b",
        "checkpoint_save b seq 3",
        "edge_evaluate b __end__ True seq 3",
        "edge_transition b __end__ seq 3",
        "state seq 3",
        "graph_complete b seq 3",
    ]
    assert {event.run_id for event in seen.events} == {result.run_id}
    assert {event.key for event in seen.events} == {result.thread}
    assert [event.step for event in seen.events if event.type == "node_start"] == [1, 2]
    complete = next(event for event in seen.events if event.type == "node_complete")
    assert complete.update == {"n": 1, "log": ["a"]}
    assert complete["node"] == "a"
    assert {"type", "node", "update"} <= set(complete.keys())
    save = next(event for event in seen.events if event.type == "checkpoint_save")
    assert (save["source"], save.step) == ("input", 0)


@pytest.mark.requirement("O1", api="Event")
def test_events_of_a_failing_run_are_in_order(run: Runner, wrap: Wrap) -> None:
    """The node fails, then the graph; the types of errors are reported."""
    seen = Recorder()
    with pytest.raises(ExecutionError):
        run.invoke(line(wrap, seen, last=fail), {"n": 0}, "t")
    assert told(seen.events) == [
        *OPENING,
        "state_copied b",
        "node_start b",
        "node_failed b",
        "graph_failed b",
    ]
    assert [event.data["error"] for event in seen.events[-2:]] == ["ValueError", "ExecutionError"]


@pytest.mark.requirement("O1", api="Event")
@pytest.mark.requirement("H1", api="Event")
def test_events_of_an_interrupt_and_its_resume_are_in_order(run: Runner, wrap: Wrap) -> None:
    """The thread is loaded and resumed before anything else happens."""
    seen = Recorder()
    app = line(wrap, seen, interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    assert told(seen.events) == [*OPENING, "checkpoint_save a seq 3", "interrupt b seq 3"]
    assert seen.events[-1].state == {"n": 1, "log": ["a"]}
    seen.events.clear()
    run.resume(app, "t")
    assert told(seen.events)[:5] == [
        "graph_start",
        "checkpoint_load a seq 3",
        "checkpoint_resume a seq 3",
        "state_copied b",
        "node_start b",
    ]
    assert seen.events[2].data["next"] == ("b",)
    seen.events.clear()
    run.invoke(app, {"n": 5}, "t")
    assert told(seen.events)[:4] == [
        "graph_start",
        "checkpoint_load b seq 4",
        "state_created",
        "checkpoint_save __start__ seq 5",
    ]


@pytest.mark.requirement("O1", api="Event")
def test_takeover_emits_a_save(run: Runner) -> None:
    """A takeover of a thread appends its own entry first."""
    seen = Recorder()
    app = line(lambda function: function, seen)
    crash_after(app, {"n": 0}, "t", commits=2)
    seen.events.clear()
    run.resume(app, "t")
    assert told(seen.events)[:4] == [
        "graph_start",
        "checkpoint_load a seq 2",
        "checkpoint_resume a seq 2",
        "checkpoint_save a seq 3",
    ]
    assert seen.events[3].data["source"] == "takeover"


@pytest.mark.requirement("O1", api="Event")
def test_each_branch_emits_its_start_and_its_end(run: Runner, wrap: Wrap) -> None:
    """Those that failed as failed, those that were known already not at all."""
    broken = [True]

    def branch(state: Trip, name: str) -> dict[str, Any]:
        if name == "b" and broken[0]:
            raise ValueError("on purpose")
        return {"log": [name]}

    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b"):
        graph.add_node(name, wrap(branch))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    seen = Recorder()
    app = graph.compile(store="memory://", observers=[seen])
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    ends = [event for event in seen.events if event.type in ("node_complete", "node_failed")]
    assert {(event.type, event.node) for event in ends} == {
        ("node_complete", "a"),
        ("node_failed", "b"),
    }
    assert [event.node for event in seen.events if event.type == "node_start"] == ["a", "b"]
    seen.events.clear()
    broken[0] = False
    run.resume(app, "t")
    assert [event.node for event in seen.events if event.type == "node_start"] == ["b"]


@pytest.mark.requirement("O1", api="Event")
def test_every_type_of_event_is_emitted_by_some_run(run: Runner, wrap: Wrap) -> None:
    """All but retries, sleeps, items, what nodes emit, and what only readers are told.

    These are ``update`` of streams, and ``missed`` of those who follow another process.
    """
    seen = Recorder()
    app = line(wrap, seen, interrupt_before=["b"], last=fail)
    run.invoke(app, {"n": 0}, "t")
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    run.invoke(line(wrap, seen), {"n": 0}, "t")
    loop: StateGraph[Trip] = StateGraph(Trip)
    loop.add_node("a", wrap(always({})))
    loop.add_edge(START, "a")
    loop.add_edge("a", "a", when=lambda state: True)
    loop.add_edge("a", END)
    with pytest.raises(CycleDetected):
        run.invoke(loop.compile(observers=[seen]), {"n": 0})
    assert set(get_args(EventType)) - set(seen.types) == {
        "emit",
        "item_complete",
        "missed",
        "retry",
        "sleep",
        "update",
    }


class Bomb:
    """An observer that raises at its n-th event."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def on_event(self, event: Event) -> None:
        self.count += 1
        if self.count >= self.at:
            raise RuntimeError("the observer is broken")


@pytest.mark.requirement("O1", api="Observer")
@pytest.mark.parametrize("at", [1, 2, 8, 20])
def test_a_failing_observer_never_breaks_a_run(
    run: Runner, wrap: Wrap, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned of once and not called again in this run; the others hear everything."""
    bomb, seen = Bomb(at), Recorder()
    result = run.invoke(line(wrap, bomb, seen), {"n": 0}, "t")
    assert result.state == {"n": 2, "log": ["a", "b"]}
    assert bomb.count == at
    assert len(seen.events) == 22
    warnings = [record for record in caplog.records if record.name == "milecastle"]
    (line_of_log,) = (record.getMessage() for record in warnings)
    place = rf"{re.escape(__file__)}:\d+"
    wanted = f"observer Bomb raised RuntimeError at {place} and is not called again in this run"
    assert re.fullmatch(wanted, line_of_log)
    assert "is broken" not in caplog.text  # an observer receives values


@pytest.mark.requirement("O1", api="register_observer")
def test_observers_are_found_by_name(run: Runner, wrap: Wrap) -> None:
    """Users add their own; an unknown name is refused with those that are known."""
    seen = Recorder()
    register_observer("mine", lambda: seen)
    run.invoke(line(wrap, "mine"), {"n": 0})
    assert seen.types[-1] == "graph_complete"
    with pytest.raises(InvalidRequest, match="logging, mine, none"):
        line(wrap, "nobody")


class Terminal(io.StringIO):
    """A terminal that counts how often it is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.draws += 1
        return super().write(text)


def shown_by(name: str, caplog: pytest.LogCaptureFixture, trace: Path, *streams: Any) -> list[str]:
    """Which of the built-in observers have left something, of a run with this one."""
    lines, terminal = streams
    logged = any(record.name == "milecastle" for record in caplog.records)
    left = {
        "logging": logged,
        "trace": trace.exists() and trace.stat().st_size > 0,
        "progress": "step 1: a done" in lines.getvalue(),
        "bars": "done, 2 steps" in terminal.getvalue() and "\x1b[" in terminal.getvalue(),
    }
    return [kind for kind, found in left.items() if found]


@pytest.mark.requirement("O2", api="StateGraph.compile")
@pytest.mark.parametrize("name", ["none", "logging", "trace", "progress", "bars"])
def test_each_built_in_observer_does_its_own_part_and_no_other(
    run: Runner,
    wrap: Wrap,
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None, the standard logging, a JSONL trace, progress as lines, and as bars on a terminal.

    Fails for each name whose factory in the registry makes another observer, or none; checked by
    letting each of the four return ``None``, and by ``make_progress`` without bars.
    (OpenTelemetry comes with O3.)
    """
    pytest.importorskip("rich")
    caplog.set_level(logging.DEBUG, "milecastle")
    trace, lines, terminal = tmp_path / "t.jsonl", io.StringIO(), Terminal()
    monkeypatch.setattr("sys.stderr", terminal if name == "bars" else lines)
    observer = {"bars": "progress", "trace": f"trace:{trace}"}.get(name, name)
    run.invoke(line(wrap, observer), {"n": NUMBER, "log": ["swordfish"]}, "t")
    expected = [] if name == "none" else [name]
    assert shown_by(name, caplog, trace, lines, terminal) == expected
    written = trace.read_text("utf-8") if trace.exists() else ""
    told = f"{caplog.text}{written}{lines.getvalue()}{terminal.getvalue()}"
    assert DIGITS not in told
    assert "swordfish" not in told


def sleeping_items(count: int, *observers: Any) -> App[Trip]:
    """A fan-out of items that each take ten milliseconds."""
    graph: StateGraph[Trip] = StateGraph(Trip, name="items")

    def item(state: Trip) -> dict[str, Any]:
        time.sleep(0.01)
        return {"log": ["done"]}

    graph.add_node("item", item, limit=4)
    graph.map(START, "item", over=lambda state: range(count), item="n")
    graph.add_edge("item", END)
    return graph.compile(observers=observers)


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_live_progress_of_many_items_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bar with "n of 500", for less than a tenth of the run, best of three.

    Fails with a bar for each item, and with a count that moves at the end only.
    """
    pytest.importorskip("rich")
    bare = sleeping_items(500)
    bare.invoke({"n": 0})  # imports, threads
    costs: list[float] = []
    for _ in range(3):
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        drawing = sleeping_items(500, "progress")
        began, cpu = time.monotonic(), time.thread_time()
        bare.invoke({"n": 0})
        seconds, without = time.monotonic() - began, time.thread_time() - cpu
        cpu = time.thread_time()
        drawing.invoke({"n": 0})
        costs.append((time.thread_time() - cpu - without) / seconds)

        drawn = terminal.getvalue()
        counts = {int(found) for found in re.findall(r"(\d+) of 500", drawn)}
        assert len(counts) > 2, "the count moves while the items run"
        assert "items of item" in drawn
        assert "item#" not in drawn
    assert min(costs) < 0.1


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_live_progress_draws_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the steps are. Fails with ``Progress`` as rich has it: a new bar is a draw."""
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", note)
    graph.add_edge(START, "a")
    graph.add_edge("a", END, when=lambda state: state["n"] >= 300)
    graph.add_edge("a", "a")
    app = graph.compile(observers=["progress"])
    began = time.monotonic()
    app.invoke({"n": 0}, options=ExecutionOptions(max_steps="unlimited"))
    assert terminal.draws <= 10 * (time.monotonic() - began) + 8, "and the first and the last"


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_the_observer_logging_writes_to_the_standard_logger(
    run: Runner, wrap: Wrap, caplog: pytest.LogCaptureFixture
) -> None:
    """One line per event with node, step, thread and run, and no value of the state."""
    caplog.set_level(logging.DEBUG, "milecastle")
    app = line(wrap, "logging", last=fail)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(app, {"n": NUMBER, "log": ["swordfish"]}, "t")
    records = [record for record in caplog.records if record.name == "milecastle"]
    levels = {
        record.getMessage().split(" node=")[0].split(" step=")[0]: record.levelno
        for record in records
    }
    assert levels["node start"] == logging.INFO
    assert levels["state copied"] == logging.DEBUG
    assert levels["node failed"] == logging.WARNING
    assert levels["graph failed"] == logging.ERROR
    lines = [record.getMessage() for record in records]
    run_id = caught.value.run_id
    assert f"node start node=a step=1 attempt=1 iteration=1 thread=t run={run_id}" in lines
    assert any(line.startswith("checkpoint save node=a step=1 seq=2") for line in lines)
    assert DIGITS not in caplog.text
    assert "swordfish" not in caplog.text


@pytest.mark.requirement("O2", api="Observer")
def test_the_logging_observer_is_silent_below_the_level_of_its_logger(
    run: Runner, wrap: Wrap, caplog: pytest.LogCaptureFixture
) -> None:
    """Its logger can be chosen, and its level decides."""
    caplog.set_level(logging.INFO, "trips")
    runner = line(wrap).runner
    app = App(runner.rebuilt(store=None, observers=(LoggingObserver("trips"),)))
    run.invoke(app, {"n": 0})
    messages = [record.getMessage() for record in caplog.records if record.name == "trips"]
    assert any(message.startswith("node complete node=b") for message in messages)
    assert not any(message.startswith("state") for message in messages)
    assert not any("thread=" in message for message in messages)


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_the_observer_trace_writes_a_file_that_can_be_replayed(
    run: Runner, wrap: Wrap, tmp_path: Path
) -> None:
    """Each run's outcome, visits and durations come back, and the graph is drawn with them."""
    path = tmp_path / "trace.jsonl"
    app = line(wrap, f"trace:{path}", last=fail)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(app, {"n": NUMBER, "log": ["swordfish"]}, "t")
    trace = read_trace(path)
    (found,) = trace.runs.values()
    assert (found.run_id, found.thread, found.graph) == (caught.value.run_id, "t", "line")
    assert (found.status, found.steps) == ("failed", 2)
    assert (found.marks, found.visits) == ({"a": "done", "b": "failed"}, {"a": 1, "b": 1})
    assert 0 <= found.nodes["a"].seconds <= found.seconds
    drawn = draw_trace(app.graph.manifest, found, "mermaid")
    assert "class n1 done" in drawn
    assert "class n2 failed" in drawn
    text = path.read_text("utf-8")
    assert DIGITS not in text
    assert "swordfish" not in text


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_a_trace_of_several_runs_at_once_is_whole(tmp_path: Path) -> None:
    """Runs in threads share an observer, and so does a second app on the same file."""
    path = tmp_path / "trace.jsonl"
    apps = [line(lambda function: function, f"trace:{path}") for _ in range(2)]
    threads = [
        threading.Thread(target=apps[n % 2].invoke, args=({"n": 0}, str(n))) for n in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = read_trace(path)
    assert trace.skipped == 0
    assert sorted(found.thread or "" for found in trace.runs.values()) == list("0123456789")
    assert {found.status for found in trace.runs.values()} == {"completed"}


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_the_observer_progress_writes_lines_without_a_terminal(
    run: Runner, wrap: Wrap, capsys: pytest.CaptureFixture[str]
) -> None:
    """To standard error, and no value of the state."""
    run.invoke(line(wrap, "progress"), {"n": NUMBER, "log": ["swordfish"]}, "t")
    out, told = capsys.readouterr()
    assert out == ""
    lines = [line.split(" in ")[0] for line in told.splitlines()]
    assert lines == [
        "t: line started",
        "t: step 1: a",
        "t: step 1: a done",
        "t: step 2: b",
        "t: step 2: b done",
        "t: done, 2 steps",
    ]
    assert DIGITS not in told
    assert "swordfish" not in told
