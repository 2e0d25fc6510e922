"""ls, runs, show, history, diff, graph: looking without changing, and without the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from milecastle import ThreadKey, open_store
from tests.unit.cli.commands import DEMO, Desk


def test_threads_are_listed_with_their_status(desk: Desk) -> None:
    desk.start("a")
    desk.start("b")
    desk.finish("b")
    lines = desk.out("ls").splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["THREAD", "STATUS", "WAITS", "FOR", "GRAPH"],
        ["a", "interrupted", "-", "Draft", lines[1].split()[4]],
        ["b", "completed", "-", "Draft", lines[2].split()[4]],
    ]
    found = desk.document("ls", "--status", "completed")
    assert [line.thread for line in found.threads] == ["b"]
    assert [line.thread for line in desk.document("ls", "--after", "a").threads] == ["b"]
    assert [line.thread for line in desk.document("ls", "--limit", "1").threads] == ["a"]


def test_an_empty_list_says_so_on_stderr_only(desk: Desk) -> None:
    desk.start()
    result = desk.call("ls", "--status", "failed")
    assert result.stdout == ""
    assert "no matching threads" in result.stderr
    assert desk.document("ls", "--status", "failed").threads == ()


def test_long_values_and_names_are_never_cut_off(desk: Desk) -> None:
    name, topic = "n" * 300, "t" * 5000
    desk.start(name, topic)
    assert name in desk.out("ls")
    assert topic in desk.out("show", name)
    assert f"a fact about {topic}" in desk.out("diff", f"{name}@1")


def test_runs_are_listed_and_one_is_shown_with_its_failure(desk: Desk) -> None:
    desk.start("t", "trouble")
    desk.call("resume", "t", "--app", "demo:app", code=1)
    desk.start("u")
    assert [line.thread for line in desk.document("runs").runs] == ["t", "u"]
    (run,) = desk.document("runs", "t").runs
    assert run.status == "failed"
    assert run.failure.node == "write"
    text = desk.out("runs", "t", "--run", run.run_id[:8])
    assert "RuntimeError: no ink" in text
    assert "demo.py:" in text
    assert "RuntimeError at write" in desk.out("runs", "t")
    assert "needs the thread" in desk.err("runs", "--run", "01", code=2)
    assert "no run whose id begins with 'ff'" in desk.err("runs", "t", "--run", "ff", code=2)


def test_a_checkpoint_is_shown_by_seq_by_id_and_by_the_beginning_of_its_id(desk: Desk) -> None:
    desk.start()
    second = desk.document("show", "demo@2")
    assert second.state == {"topic": "walls", "notes": ["a fact about walls"]}
    assert second.status == "interrupted"
    assert second.checkpoint.next == ("write",)
    desk.finish()
    last = desk.document("show", "demo@4").checkpoint
    for known in (last.id, last.id[:13]):
        assert desk.document("show", f"demo@{known}").checkpoint == last
    assert "type more of the id" in desk.err("show", "demo@01", code=2)
    assert "no checkpoint with id 0f" in desk.err("show", "demo@0f", code=2)
    assert "no checkpoint 9" in desk.err("show", "demo@9", code=2)


def test_the_failure_of_a_thread_is_shown_with_it(desk: Desk) -> None:
    desk.start("t", "trouble")
    desk.call("resume", "t", "--app", "demo:app", code=1)
    text = desk.out("show", "t")
    assert "status      failed" in text
    assert "execution, resumable, node write, attempt 1" in text


def test_a_thread_that_ended_is_completed_and_its_earlier_checkpoints_are_not(desk: Desk) -> None:
    desk.start()
    desk.finish()
    assert desk.document("show", "demo").status == "completed"
    assert desk.document("show", "demo@1").status == "interrupted"


def test_a_thread_with_an_at_in_its_name_is_found_by_its_whole_name(desk: Desk) -> None:
    desk.start("joe@2")
    assert desk.document("show", "joe@2").thread == "joe@2"
    desk.start("joe")
    assert desk.document("show", "joe@1").thread == "joe"
    assert desk.document("show", "joe@2@1").checkpoint.seq == 1
    assert desk.document("history", "joe@2").thread == "joe@2"


@pytest.mark.parametrize(
    "call", [["show"], ["diff"], ["fork", "--app", "demo:app"], ["graph", "--thread"]]
)
def test_a_name_that_is_also_a_checkpoint_of_another_thread_is_refused(
    desk: Desk, call: list[str]
) -> None:
    """Seen to fail: the thread 'joe@2' was taken, and checkpoint 2 of 'joe' could not be named."""
    desk.start("joe@2")
    desk.start("joe")
    text = desk.err(*call, "joe@2", code=2)
    assert "'joe@2' is both a thread and checkpoint 2 of thread 'joe'" in text
    written = re.findall(r"'(joe@[^']*)' for the", text)
    shown = [desk.document("show", address) for address in written]
    assert [(one.thread, one.checkpoint.seq) for one in shown] == [("joe@2", 3), ("joe", 2)]


def test_a_seq_of_any_length_is_looked_for(desk: Desk) -> None:
    desk.start()
    for seq in ("9" * 17, "9" * 25, "9" * 400):
        assert "no checkpoint" in desk.err("show", f"demo@{seq}", code=2)


def test_a_huge_integer_is_shown(desk: Desk) -> None:
    """Seen to fail with ValueError: the limit of 4,300 digits."""
    desk.write("demo.py", DEMO.replace('return {"notes"', 'return {"pages": 1 << 40_000, "notes"'))
    desk.start()
    assert desk.document("show", "demo").state["pages"] == hex(1 << 40_000)
    assert "0x1000" in desk.out("diff", "demo@1")


def test_a_name_that_somebody_gave_is_never_completed(desk: Desk) -> None:
    desk.start("order-10")
    assert "did you mean 'order-10'" in desk.err("show", "order-1", code=2)


def test_a_thread_with_an_id_for_a_name_is_found_by_its_beginning(desk: Desk) -> None:
    desk.call("run", "demo:app", "--input", '{"topic": "walls"}', code=3)
    (thread,) = desk.document("ls").threads
    assert desk.document("show", thread.thread[:13]).thread == thread.thread
    assert "there is no thread '01a'" in desk.err("show", "01a", code=2)


def test_two_threads_with_the_same_prefix_need_a_longer_prefix(desk: Desk) -> None:
    with_id = "01a1dd3a-3bac-791b-acbf-2481dae316c{}"
    desk.start(with_id.format(1))
    desk.start(with_id.format(2))
    assert "type more" in desk.err("show", "01a1dd3a", code=2)


def test_a_thread_that_is_not_there_is_named_with_what_there_is(desk: Desk) -> None:
    desk.start("demo")
    assert "did you mean 'demo'" in desk.err("history", "dmo", code=2)
    assert "`milecastle ls`" in desk.err("history", "quite-different", code=2)
    assert "no threads at all" in desk.err("history", "demo", "--tenant", "other", code=2)


def test_history_is_listed_newest_first_with_parents(desk: Desk) -> None:
    desk.start()
    desk.call("fork", "demo@1", "--app", "demo:app")
    rows = [line.split()[:5] for line in desk.out("history", "demo").splitlines()]
    assert rows[0] == ["SEQ", "SOURCE", "NODES", "NEXT", "PARENT"]
    assert rows[1] == ["4", "fork", "-", "research", "1"]
    assert rows[2] == ["3", "interrupt", "research", "write", "2"]
    found = desk.document("history", "demo", "--limit", "2").checkpoints
    assert [line.seq for line in found] == [4, 3]


def test_a_difference_is_shown_by_path(desk: Desk) -> None:
    desk.start()
    desk.call("update", "demo", "--set", "topic=trails", "--set", "pages=3", "--app", "demo:app")
    assert desk.out("diff", "demo@3", "demo@4") == '~ $.topic  "walls" -> "trails"\n+ $.pages  3\n'
    assert desk.out("diff", "demo@4", "demo@3") == '~ $.topic  "trails" -> "walls"\n- $.pages  3\n'
    (change,) = desk.document("diff", "demo@1", "demo@2").changes
    assert (change.path, change.kind, change.new) == ("$.notes[0]", "added", "a fact about walls")
    assert "are the same" in desk.call("diff", "demo@2", "demo@3").stderr


def test_two_threads_are_compared(desk: Desk) -> None:
    desk.start("a", "walls")
    desk.start("b", "roads")
    assert '~ $.topic  "walls" -> "roads"' in desk.out("diff", "a@1", "b@1")


@pytest.mark.parametrize(("flag", "begins"), [("--svg", "<svg"), ("--mermaid", ""), ("--text", "")])
def test_a_graph_is_drawn_in_every_form(desk: Desk, flag: str, begins: str) -> None:
    drawing = desk.out("graph", "demo:app", flag)
    assert drawing.lstrip().startswith(begins)
    assert "research" in drawing
    assert desk.document("graph", "demo:app", flag).form == flag[2:]


def test_a_drawing_goes_into_a_file(desk: Desk) -> None:
    assert desk.out("graph", "demo:app", "--svg", "-o", "graph.svg") == ""
    assert (desk.folder / "graph.svg").read_text("utf-8").startswith("<svg")


def test_the_graph_of_a_thread_is_drawn_without_its_code(desk: Desk) -> None:
    desk.start()
    (desk.folder / "demo.py").unlink()
    assert "research" in desk.out("graph", "--thread", "demo")
    open_store("sqlite:///runs.db").put(ThreadKey("default", "plain"), {"n": 1})
    assert "no graph is recorded" in desk.err("graph", "--thread", "plain", code=2)


def test_looking_needs_no_code(desk: Desk) -> None:
    desk.start()
    (desk.folder / "demo.py").unlink()
    for verb in (["ls"], ["runs"], ["show", "demo"], ["history", "demo"], ["diff", "demo@1"]):
        desk.call(*verb)


TYPED = """\
from dataclasses import dataclass
from typing import Annotated, TypedDict
from milecastle import END, START, StateGraph, append

@dataclass
class Page:
    number: int

class Book(TypedDict):
    title: str
    pages: Annotated[list[Page], append]

graph = StateGraph(Book)

@graph.node
def add(state: Book) -> dict:
    return {"pages": [Page(len(state["pages"]) + 1)]}

graph.add_edges(START, "add", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_objects_are_shown_and_compared_without_the_code(desk: Desk) -> None:
    """Seen to fail: the channel was left out, and `diff` said that nothing differs."""
    desk.write("book.py", TYPED)
    desk.call("run", "book:app", "--thread", "b", "--input", '{"title": "Walls"}')
    (desk.folder / "book.py").rename("gone.py")
    page = {"$type": "Page", "number": 1}
    assert desk.document("show", "b").state == {"title": "Walls", "pages": [page]}
    assert '  pages  [{"$type": "Page", "number": 1}]' in desk.out("show", "b")
    assert desk.out("diff", "b@1") == '+ $.pages[0]  {"$type": "Page", "number": 1}\n'
    (desk.folder / "gone.py").rename("book.py")
    assert desk.document("show", "b", "--app", "book:app").state["pages"] == [{"number": 1}]
    assert desk.out("diff", "b@1", "--app", "book:app") == '+ $.pages[0]  {"number": 1}\n'


ARRAYS = """\
from typing import Any, TypedDict
import numpy
from milecastle import END, START, StateGraph

class Data(TypedDict):
    title: str
    values: Any

graph = StateGraph(Data)

@graph.node
def fill(state: Data) -> dict:
    return {"values": numpy.ones(3)}

graph.add_edges(START, "fill", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_what_cannot_be_compared_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail: `diff` printed that the checkpoints are the same, and `--json` no changes."""
    desk.write("arrays.py", ARRAYS)
    desk.call("run", "arrays:app", "--thread", "a", "--input", '{"title": "Walls", "values": 1}')
    monkeypatch.setitem(sys.modules, "numpy", None)  # a process that has not imported it
    result = desk.call("diff", "a@1")
    assert result.stdout.startswith("? $.values  cannot be compared: ")
    assert "the same" not in result.output
    document = desk.document("diff", "a@1")
    assert (document.changes, list(document.not_compared)) == ((), ["values"])
    assert list(desk.document("show", "a").undecoded) == ["values"]
    assert "'values' is omitted" in desk.call("show", "a").stderr
    assert "are the same" in desk.call("diff", "a@1", "a@1").stderr


FAN_OUT = """\
from typing import Annotated, TypedDict
from milecastle import END, START, StateGraph, append

class Work(TypedDict):
    items: list[int]
    done: Annotated[list[int], append]

class One(TypedDict):
    item: int

graph = StateGraph(Work)

@graph.node
def begin(state: Work) -> None:
    pass

@graph.node(limit=1)
def work(state: One) -> dict:
    if state["item"] == 3:
        raise RuntimeError("no ink")
    return {"done": [state["item"]]}

graph.add_edges(START, "begin")
graph.map("begin", "work", over="items", item="item")
graph.add_edges("work", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_tasks_of_a_fan_out_that_have_ended_are_counted(desk: Desk) -> None:
    """Seen to fail: nothing told how far a fan-out was."""
    desk.write("fan.py", FAN_OUT)
    given = ("run", "fan:app", "--thread", "f", "--input", '{"items": [0, 1, 2, 3, 4]}')
    desk.call(*given, code=1)
    (line,) = desk.document("show", "f").tasks
    assert (line.node, line.total) == ("work", 5)
    assert line.done in (3, 4)
    assert f"tasks done  work {line.done} of 5" in desk.out("show", "f")
    assert desk.document("show", "f@1").tasks == ()
    desk.start()
    assert desk.document("show", "demo").tasks == ()
    assert "tasks done" not in desk.out("show", "demo")


def test_ids_are_short_in_tables_and_whole_in_json(desk: Desk) -> None:
    """Seen to fail with whole ids in tables."""
    desk.start("a")
    desk.start("b")
    runs = [line.run_id for line in desk.document("ls").threads]
    for verb in ("ls", "runs"):
        text = desk.out(verb)
        assert [run for run in runs if run in text] == []
        assert [run for run in runs if run[:13] not in text] == []
    checkpoints = desk.document("history", "a").checkpoints
    shown = [line.split()[-1] for line in desk.out("history", "a").splitlines()[1:]]
    assert all(one.id.startswith(short) for one, short in zip(checkpoints, shown, strict=True))
    assert len(set(shown)) == len(checkpoints)
    assert desk.document("show", f"a@{shown[0]}").checkpoint == checkpoints[0]


def test_what_a_checkpoint_keeps_besides_the_state_is_not_shown_as_state(desk: Desk) -> None:
    asking = TYPED.replace("append\n", "append, interrupt\n", 1).replace(
        "    return {", '    interrupt("Go on?")\n    return {'
    )
    desk.write("book.py", asking.replace("pages: Ann", "first: Page\n    pages: Ann"))
    desk.write("given.py", "from book import Page, app\n\ndef main():\n    app.invoke("
               "{'title': 'Walls', 'first': Page(1)}, thread='b')\n")  # fmt: skip
    run = [sys.executable, "-c", "import given; given.main()"]
    subprocess.run(run, check=True, cwd=desk.folder)
    shown = desk.document("show", "b")
    first = {"$type": "Page", "number": 1}
    assert shown.state == {"title": "Walls", "first": first, "pages": []}
    assert [line.question for line in shown.questions] == ["Go on?"]


def test_a_store_that_is_not_there_is_not_made_by_looking(desk: Desk, tmp_path: Path) -> None:
    for url in ("sqlite:///nothing.db", "file://nothing"):
        assert "there is no store at" in desk.err("ls", "--store", url, code=4)
    assert not list(tmp_path.glob("nothing*"))
    assert "exists only inside its process" in desk.err("ls", "--store", "memory://", code=2)
    assert "no store given" in desk.err("ls", code=2)
    assert "no store is registered" in desk.err("ls", "--store", "nix://", code=2)


def test_no_colour_reaches_a_pipe(desk: Desk) -> None:
    desk.start()
    assert "\x1b" not in desk.call("ls").output
