"""U1: the command line, as a person uses it: the session of the docs, and a process that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from milecastle.cli.main import VERBS
from milecastle.views.documents import (
    DiffDocument,
    ErrorDocument,
    HistoryDocument,
    LsDocument,
    RunDocument,
    RunsDocument,
)
from tests.acceptance.command_line_session import Play, masked, session
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster
from tests.unit.cli.commands import Desk

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the session is one of a Unix shell")


def settings_of(kind: str) -> dict[str, str]:
    if kind == "sqlite":
        return {}
    return {"MILECASTLE_STORE": the_cluster().url_of(new_schema())}


@pytest.mark.requirement("U1", api="milecastle")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
def test_the_session_of_the_docs_prints_what_the_page_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb in one session, with the same output on SQLite and on PostgreSQL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    play = Play(tmp_path, settings_of(kind))
    for command, shown in session():
        printed = play.do(command).replace(str(tmp_path), ".")
        assert masked(printed) == masked(shown), command


def test_every_verb_is_used_in_the_session() -> None:
    """But three, which run until they are told to stop (tests/acceptance/server uses them), one for
    several databases (tests/unit/cli/test_shards.py), and one for object storage
    (tests/unit/cli/test_archiving_verbs.py)."""
    used = {word for command, _ in session() for word in command.replace('"', " ").split()}
    assert set(VERBS) - used == {"serve", "dev", "mcp", "shards", "restore"}


def test_the_session_would_notice_another_output(tmp_path: Path) -> None:
    play = Play(tmp_path, {})
    assert masked(play.do("echo one")) != masked("two")
    assert masked("a 01a1dd54-9d94-778f-b6e6-4ab28a7584dc b") == "a ID b"
    assert masked("store ok here\nstore  failed there") == "store ok\nstore  failed"


SLOW = """\
import os, signal
from pathlib import Path
from typing import Annotated, TypedDict
from milecastle import END, START, StateGraph, append

class Work(TypedDict):
    done: Annotated[list[str], append]

graph = StateGraph(Work)

@graph.node
def first(state: Work) -> dict:
    return {"done": ["first"]}

@graph.node
def second(state: Work) -> dict:
    if not Path("again").exists():
        Path("again").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"done": ["second"]}

graph.add_edges(START, "first", "second", END)
app = graph.compile(store="sqlite:///runs.db")
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    for name in ("MILECASTLE_STORE", "MILECASTLE_TENANT", "MILECASTLE_APP"):
        monkeypatch.delenv(name, raising=False)
    return Desk(tmp_path)


@pytest.mark.requirement("U1", api="milecastle resume")
@pytest.mark.requirement("T4", api="milecastle resume")
def test_a_run_that_was_killed_is_seen_and_resumed(desk: Desk) -> None:
    """kill -9, then ls, show, history, diff, resume; a second resume says that it ended."""
    desk.write("work.py", SLOW)
    given = [sys.executable, "-m", "milecastle", "run", "work:app", "--thread", "w"]
    done = subprocess.run(given, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    (thread,) = desk.json(LsDocument, "ls").threads
    assert (thread.thread, thread.status) == ("w", "lost")
    history = desk.json(HistoryDocument, "history", "w").checkpoints
    assert [line.seq for line in history] == [2, 1]
    assert history[0].next == ("second",)
    (change,) = desk.json(DiffDocument, "diff", "w@1").changes
    assert change.new == "first"
    result = desk.json(RunDocument, "resume", "w", "--app", "work:app")
    assert result.state == {"done": ["first", "second"]}
    newer, older = desk.json(RunsDocument, "runs", "w").runs
    assert (newer.status, older.status) == ("completed", "superseded")
    assert (newer.previous_run_id, newer.retry_count) == (older.run_id, 1)
    refused = desk.json(ErrorDocument, "resume", "w", "--app", "work:app", code=5).error
    assert "already ended" in refused.reasons[0]


@pytest.mark.requirement("R10", api="milecastle run")
def test_a_run_whose_graph_cannot_be_imported_is_recorded(desk: Desk) -> None:
    """A run is recorded even when the graph cannot be loaded."""
    desk.write("work.py", "import nothing_of_that_name\n")
    desk.err("run", "work:app", "--thread", "w", "--store", "sqlite:///runs.db", code=1)
    (run,) = desk.json(RunsDocument, "runs", "w").runs
    assert run.failure is not None
    assert (run.failure.failure_class, run.failure.resumable) == ("graph", False)


@pytest.mark.requirement("U1", api="milecastle")
def test_second_person_at_one_thread_gets_conflict(desk: Desk) -> None:
    """An overtaken run stops with exit code 6."""
    desk.write("work.py", OVERTAKEN)
    run = subprocess.Popen(
        [sys.executable, "-m", "milecastle", "run", "work:app", "--thread", "w"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    until = time.monotonic() + 60
    while not (desk.folder / "waiting").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    desk.call("update", "w", "--set", 'done=["by hand"]', "--app", "work:app")
    (desk.folder / "go").touch()
    _, said = run.communicate(timeout=60)
    assert run.returncode == 6
    assert "[MC401]" in said


OVERTAKEN = SLOW.replace(
    """    if not Path("again").exists():
        Path("again").touch()
        os.kill(os.getpid(), signal.SIGKILL)
""",
    """    import time
    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.01)
""",
)


def test_documents_are_strict() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"tenant": "a", "threads": [], "more": 1}', type=LsDocument)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"tenant": "a"}', type=LsDocument)
