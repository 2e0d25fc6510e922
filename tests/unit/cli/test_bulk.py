"""Many runs at once: listed by status, retried, cancelled and deleted."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.cli.session import with_keys
from milecastle.model.keys import ThreadKey
from milecastle.stores.sqlite import SqliteStore
from milecastle.views.documents import RunsDocument
from tests.unit.cli.commands import Desk

FAILING = """
from pathlib import Path
from typing import TypedDict
from milecastle import END, START, StateGraph

class Draft(TypedDict):
    topic: str

graph = StateGraph(Draft, name="fragile")

@graph.node
def write(state: Draft) -> dict:
    if Path("broken").exists():
        raise RuntimeError("no ink")
    return {"topic": state["topic"] + "!"}

graph.add_edges(START, "write", END)
app = graph.compile(store="sqlite:///runs.db")
"""


@pytest.fixture
def held(desk: Desk) -> Desk:
    """Three runs that failed."""
    desk.write("fragile.py", FAILING)
    desk.write("broken", "")
    for number in range(3):
        given = ("--thread", f"t{number}", "--input", '{"topic": "x"}')
        desk.call("submit", "fragile:app", *given)
    desk.call("worker", "fragile:app", "--until-idle", "--poll", "0.05")
    return desk


def threads(desk: Desk, *arguments: str) -> list[str]:
    return [run.thread for run in desk.json(RunsDocument, "runs", *arguments).runs]


def test_failed_runs_are_listed(held: Desk) -> None:
    """Fails if the filter by graph or status is not applied."""
    assert threads(held, "--status", "failed") == ["t0", "t1", "t2"]
    assert threads(held, "--status", "failed", "--limit", "2") == ["t0", "t1"]
    assert threads(held, "--status", "failed", "--graph", "fragile") == ["t0", "t1", "t2"]
    assert threads(held, "--status", "failed", "--graph", "other") == []
    assert threads(held, "--status", "queued") == []
    assert "RuntimeError at write" in held.out("runs", "--status", "failed")
    assert "has no runs" in held.call("runs", "--status", "failed", "--tenant", "other").stderr


def test_failed_runs_are_retried_in_bulk(held: Desk) -> None:
    """Fails if a thread is left out, or one that was retried is retried again."""
    (held.folder / "broken").unlink()
    arguments = ("--status", "failed", "--retry-all", "--app", "fragile:app")
    assert "2 runs retried, 0 skipped" in held.out("runs", *arguments, "--limit", "2")
    assert threads(held, "--status", "queued") == ["t0", "t1"]
    document = held.json(RunsDocument, "runs", *arguments)
    assert (document.changed, document.skipped) == (1, 0)
    held.call("worker", "fragile:app", "--until-idle", "--poll", "0.05")
    assert threads(held, "--status", "failed") == []
    assert "0 runs retried" in held.out("runs", *arguments)


def test_queued_runs_are_cancelled_in_bulk(held: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without progress on stderr, and if a cancelled run counts as skipped."""
    monkeypatch.setattr("milecastle.cli.verbs.runs._EVERY", 0.0)
    held.call("runs", "--status", "failed", "--retry-all", "--app", "fragile:app")
    result = held.call("runs", "--status", "queued", "--cancel-all")
    assert "3 runs cancelled, 0 skipped" in result.stdout
    assert "2 runs cancelled, 0 skipped" in result.stderr
    assert threads(held, "--status", "cancelled") == ["t0", "t1", "t2"]


def test_only_the_runs_that_were_listed_are_cancelled(
    held: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: a run that started after the thread was looked at was cancelled."""
    held.call("runs", "--status", "failed", "--retry-all", "--limit", "1", "--app", "fragile:app")

    def later(*args: Any) -> Any:
        given = ("--thread", "t0", "--input", '{"topic": "y"}', "--if-busy", "cancel")
        held.call("submit", "fragile:app", *given)
        return with_keys(*args)

    monkeypatch.setattr("milecastle.cli.verbs.runs.with_keys", later)
    found = held.call("runs", "--status", "queued", "--cancel-all").stdout
    assert "0 runs cancelled, 1 skipped" in found
    assert threads(held, "--status", "queued") == ["t0"]


def test_threads_are_deleted_in_bulk(held: Desk) -> None:
    """Fails if threads of another status are deleted, or one is left."""
    held.call("runs", "--status", "failed", "--retry-all", "--limit", "1", "--app", "fragile:app")
    assert "2 runs deleted, 0 skipped" in held.out("runs", "--status", "failed", "--delete-all")
    assert threads(held) == ["t0", "t0"]


def test_what_changed_meanwhile_or_refuses_is_skipped(
    held: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the line is not read again, and if the first refusal ends it all.

    One thread is deleted after it was listed, and one belongs to another graph.
    """
    held.call("submit", "demo:app", "--thread", "t3", "--input", '{"topic": "x"}')
    held.call("cancel", "t3")
    for name in ("t0", "t1"):
        held.call(
            "runs", "--status", "failed", "--retry-all", "--limit", "1", "--app", "fragile:app"
        )
        held.call("cancel", name)
    real = SqliteStore.thread

    def deleted(store: SqliteStore, key: ThreadKey) -> object:
        return None if key.thread == "t0" else real(store, key)

    monkeypatch.setattr(SqliteStore, "thread", deleted)
    result = held.call("runs", "--status", "cancelled", "--retry-all", "--app", "fragile:app")
    assert "1 run retried, 2 skipped" in result.stdout
    assert "t3 was skipped" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--retry-all",),
        ("--failed",),
        ("--graph", "x"),
        ("--status", "failed", "--cancel-all"),
        ("--status", "queued", "--retry-all"),
        ("--status", "completed", "--cancel-all"),
        ("--status", "failed", "--retry-all", "--delete-all"),
        ("--delete-all",),
        ("t", "--status", "failed"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(desk: Desk, arguments: tuple[str, ...]) -> None:
    assert desk.call("runs", *arguments, code=2).stderr


def test_threads_of_another_graph_are_not_retried(held: Desk) -> None:
    """The other graph has the same nodes. Fails if its code is given the threads of this one."""
    code = (held.folder / "fragile.py").read_text()
    assert code.count('name="fragile"') == 1
    (held.folder / "twin.py").write_text(code.replace('name="fragile"', 'name="twin"'))
    result = held.call("runs", "--status", "failed", "--retry-all", "--app", "twin:app")
    assert "0 runs retried, 3 skipped" in result.stdout
    assert "t0 was skipped: it is of the graph 'fragile'" in result.stderr
    assert threads(held, "--status", "failed") == ["t0", "t1", "t2"]
