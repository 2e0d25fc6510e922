"""A trace: well-formed lines without values, and what can be read off them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from milecastle.draw import draw_mermaid, draw_svg
from milecastle.errors import InvalidRequest
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.observers.trace import NodeTrace, TraceObserver, draw_trace, read_trace
from tests.unit.draw.shapes import AGENT


def event(
    type: Any,
    node: str | None = None,
    step: int = 1,
    run: str = "r",
    task: str | None = None,
    attempt: int | None = None,
    **data: Any,
) -> Event:
    key = ThreadKey("acme", "t")
    return Event(
        type=type, run_id=run, key=key, node=node, step=step, task=task, attempt=attempt, data=data
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def traced(path: Path, *events: Event) -> Any:
    observer = TraceObserver(path)
    for item in events:
        observer.on_event(item)
    observer.close()
    return read_trace(path)


def test_a_line_has_what_happened_and_no_values(tmp_path: Path) -> None:
    path = tmp_path / "made" / "trace.jsonl"
    secret = Event(
        type="interrupt",
        run_id="r",
        key=ThreadKey("acme", "t"),
        node="ask",
        step=3,
        seq=7,
        state={"word": "swordfish"},
        update={"word": "swordfish"},
        data={
            "id": "i1",
            "question": "swordfish?",
            "show": ["swordfish"],
            "value": "swordfish",
            "error": ["not a name", 5],
            "next": ("a", "b"),
        },
    )
    traced(path, secret)
    (line,) = lines(path)
    assert isinstance(line.pop("at"), int)
    assert line == {
        "type": "interrupt",
        "run": "r",
        "tenant": "acme",
        "thread": "t",
        "node": "ask",
        "step": 3,
        "seq": 7,
        "data": {"id": "i1", "next": ["a", "b"]},
    }


def test_runs_in_many_threads_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    observer = TraceObserver(path)
    long = "x" * 5000

    def work(run: str) -> None:
        observer.on_event(event("graph_start", run=run, graph="g"))
        for step in range(50):
            observer.on_event(event("node_start", "a", step, run, task=long))
            observer.on_event(event("node_complete", "a", step, run, task=long))
        observer.on_event(event("graph_complete", step=50, run=run))

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    observer.close()
    trace = read_trace(path)
    assert trace.skipped == 0
    assert {run.nodes["a"].visits for run in trace.runs.values()} == {50}
    assert len(trace.runs) == 8


def test_a_line_stays_whole_when_the_system_writes_it_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "trace.jsonl", os.write

    def write_a_piece(fd: int, data: bytes) -> int:
        time.sleep(0.0005)
        return write(fd, data[:40])

    observer = TraceObserver(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_a_piece)
        threads = [
            threading.Thread(target=observer.on_event, args=(event("node_start", "a", run=str(n)),))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    observer.close()
    trace = read_trace(path)
    assert (len(trace.runs), trace.skipped) == (12, 0)


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    code = """
import sys
from milecastle.model.event import Event
from milecastle.observers.trace import TraceObserver
observer = TraceObserver(sys.argv[1])
for step in range(300):
    data = {"attempt": 1, "task": "x" * 500}
    observer.on_event(Event(type="node_start", run_id=sys.argv[2], node="a", step=step, data=data))
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name], env=os.environ)
        for name in ("one", "two")
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    trace = read_trace(path)
    assert trace.skipped == 0
    assert {name: run.nodes["a"].visits for name, run in trace.runs.items()} == {
        "one": 300,
        "two": 300,
    }


def test_a_torn_line_is_passed_over_and_never_joined_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    traced(path, event("graph_start", graph="g"))
    path.write_bytes(path.read_bytes() + b'{"at": 5, "type": "node_st')
    assert read_trace(path).skipped == 1
    trace = traced(path, event("graph_complete", step=2))
    assert trace.skipped == 1
    assert trace.runs["r"].status == "completed"


def test_a_closed_observer_opens_its_file_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    observer = TraceObserver(path)
    for _ in range(2):
        observer.on_event(event("graph_start"))
        observer.close()
        observer.close()
    assert len(lines(path)) == 2


def test_what_became_of_each_node_is_read(tmp_path: Path) -> None:
    trace = traced(
        tmp_path / "trace.jsonl",
        event("graph_start", step=0, graph="loop"),
        event("node_start", "a", 1),
        event("node_complete", "a", 1),
        event("node_start", "b", 2),
        event("retry", "b", 2, attempt=2),
        event("node_failed", "b", 2, error="ValueError"),
        event("node_start", "a", 3),
        event("something_new", "a", 3),
        event("item_complete", "fan", 3, task="fan:1"),
        event("item_complete", "fan", 3, task="fan:2"),
        event("node_start", "slow", 3),
        event("node_complete", "a", 3),
        event("graph_failed", "b", 3, error="ExecutionError"),
    )
    run = trace.runs["r"]
    assert (run.tenant, run.thread, run.graph) == ("acme", "t", "loop")
    assert (run.status, run.steps) == ("failed", 3)
    assert run.visits == {"a": 2, "b": 1, "fan": 0, "slow": 1}
    assert run.marks == {"a": "done", "b": "failed", "fan": "active", "slow": "active"}
    assert run.nodes["b"] == NodeTrace(
        outcome="failed", visits=1, failures=1, retries=1, seconds=run.nodes["b"].seconds
    )
    assert run.nodes["fan"].items == 2


@pytest.mark.parametrize(
    ("type", "status"), [("interrupt", "interrupted"), ("sleep", "sleeping"), (None, "running")]
)
def test_a_run_that_did_not_end_says_so(tmp_path: Path, type: str | None, status: str) -> None:
    more = [event(type, step=1)] if type else []
    run = traced(tmp_path / "t", event("graph_start"), *more).runs["r"]
    assert run.status == status


def test_a_node_that_is_waited_for_is_next_and_one_that_was_is_done(tmp_path: Path) -> None:
    after = [event("node_start", "a", 1), event("node_complete", "a", 1)]
    run = traced(tmp_path / "after", *after, event("interrupt", "a", 1)).runs["r"]
    assert run.marks == {"a": "done"}
    run = traced(tmp_path / "before", *after, event("interrupt", "b", 1)).runs["r"]
    assert run.marks == {"a": "done", "b": "next"}
    looped = [*after, event("node_start", "c", 2), event("node_complete", "c", 2)]
    run = traced(tmp_path / "again", *looped, event("interrupt", "a", 2)).runs["r"]
    assert run.marks == {"a": "next", "c": "done"}


def test_durations_are_those_of_a_clock_that_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    observer = TraceObserver(tmp_path / "t")
    for kind, node, task, at in (
        ("graph_start", None, None, 0),
        ("node_start", "a", "a:1", 1),
        ("node_start", "a", "a:2", 2),
        ("node_complete", "a", "a:1", 5),
        ("node_complete", "a", "a:2", 9),
        ("graph_complete", None, None, 10),
    ):
        now[0] = at * 1_000_000_000
        observer.on_event(event(kind, node, task=task))
    observer.close()
    run = read_trace(tmp_path / "t").runs["r"]
    assert run.seconds == pytest.approx(10)
    assert run.nodes["a"].seconds == pytest.approx(4 + 7)


def test_missing_trace_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no trace"):
        read_trace(tmp_path / "none")


def test_a_trace_is_drawn_with_outcomes_and_visits(tmp_path: Path) -> None:
    run = traced(
        tmp_path / "t",
        *(event(kind, "agent", n) for n in (1, 3) for kind in ("node_start", "node_complete")),
        event("node_start", "tools", 2),
        event("node_failed", "tools", 2),
        event("node_start", "gone from the graph", 2),
    ).runs["r"]
    drawn = draw_trace(AGENT, run, "mermaid", title="agent")
    assert '["agent \u00d72"]' in drawn
    assert '["tools \u00d71"]' in drawn
    assert "classDef done fill:" in drawn
    assert "    class n1 done\n" in drawn
    assert "    class n2 failed\n" in drawn
    assert "active" not in drawn
    svg = draw_trace(AGENT, run)
    assert '<g class="mc-node mc-done"><title>agent \u00d72 (done)</title>' in svg
    assert '<g class="mc-node mc-failed"><title>tools \u00d71 (failed)</title>' in svg
    with pytest.raises(InvalidRequest, match="'svg' or 'mermaid'"):
        draw_trace(AGENT, run, "text")


def test_a_drawing_without_marks_is_as_before() -> None:
    assert draw_mermaid(AGENT) == draw_mermaid(AGENT, marks={}, visits={})
    assert draw_svg(AGENT) == draw_svg(AGENT, marks={}, visits={})
    with pytest.raises(ValueError, match="no such mark: purple"):
        draw_mermaid(AGENT, marks={"agent": "purple"})
