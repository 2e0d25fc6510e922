"""run, resume, fork, update: graphs run, and threads changed, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from milecastle.views.documents import FileRunDocument, PlanDocument
from tests.unit.cli.commands import DEMO, Desk


def test_a_run_prints_its_state_and_says_that_it_waits(desk: Desk) -> None:
    result = desk.call("run", "demo:app", "--thread", "demo", "--input", '{"topic": "w"}', code=3)
    assert "researching\n" in result.stdout
    assert "thread demo: interrupted before write (run " in result.stdout
    assert '  topic  "w"' in result.stdout
    assert "Continue with: milecastle resume demo --app demo:app" in result.stderr


def test_with_json_what_nodes_print_goes_to_stderr(desk: Desk) -> None:
    result = desk.call(
        "run", "demo:app", "--thread", "x", "--input", '{"topic": "w"}', "--json", code=3
    )
    assert json.loads(result.stdout)["status"] == "interrupted"
    assert "researching" in result.stderr


def test_input_comes_from_a_file_or_from_stdin(desk: Desk) -> None:
    desk.write("in.json", '{"topic": "files"}')
    desk.call("run", "demo:app", "--thread", "f", "--input", "@in.json", code=3)
    desk.call(
        "run", "demo:app", "--thread", "s", "--input", "-", code=3, input='{"topic": "pipes"}'
    )
    assert desk.document("show", "f").state["topic"] == "files"
    assert desk.document("show", "s").state["topic"] == "pipes"
    assert "none.json" in desk.err("run", "demo:app", "--input", "@none.json", code=2)


def test_input_that_is_not_an_object_is_a_usage_error(desk: Desk) -> None:
    assert "is not JSON" in desk.err("run", "demo:app", "--input", "{topic}", code=2)
    assert "must be a JSON object" in desk.err("run", "demo:app", "--input", "[1]", code=2)
    assert "--config is not JSON" in desk.err("run", "demo:app", "--config", "x", code=2)
    text = desk.err("run", "demo:app", "--thread", "d", "--input", '{"tropic": "w"}', code=2)
    assert "'tropic', which Draft does not declare" in text


def test_a_run_without_a_thread_gets_an_id(desk: Desk) -> None:
    document = desk.document("run", "demo:app", "--input", '{"topic": "w"}', code=3)
    assert len(document.thread) == 36


def test_the_same_input_again_is_where_it_was_and_another_is_refused(desk: Desk) -> None:
    desk.start()
    desk.start()
    assert len(desk.document("history", "demo").checkpoints) == 3
    text = desk.err("run", "demo:app", "--thread", "demo", "--input", '{"topic": "x"}', code=2)
    assert "unfinished run with another input" in text


def test_failing_node_is_reported_with_its_line_and_without_our_traceback(desk: Desk) -> None:
    desk.start("t", "trouble")
    text = desk.err("resume", "t", "--app", "demo:app", code=1)
    assert "node 'write' failed at step 2 with RuntimeError (thread 't') [MC201]" in text
    assert "RuntimeError: no ink" in text
    assert 'demo.py:20: raise RuntimeError("no ink")' in text
    assert "Traceback" not in text
    assert "Traceback" in desk.err("resume", "t", "--app", "demo:app", "--debug", code=1)
    document = desk.error("resume", "t", "--app", "demo:app", code=1)
    assert (document.error.type, document.error.code) == ("ExecutionError", "MC201")


def test_resuming_what_ended_or_is_not_there_is_refused(desk: Desk) -> None:
    desk.start()
    desk.finish()
    assert "it has already ended" in desk.err("resume", "demo", "--app", "demo:app", code=5)
    assert "did you mean 'demo'" in desk.err("resume", "dem", "--app", "demo:app", code=5)
    document = desk.error("resume", "demo", "--app", "demo:app", code=5)
    assert document.error.exit_code == 5
    assert len(document.error.reasons) == 1


def test_resuming_with_a_graph_that_does_not_fit_is_refused_with_every_reason(desk: Desk) -> None:
    desk.start()
    desk.write("demo.py", DEMO.replace("write", "compose").replace("topic:", "subject:"))
    document = desk.error("resume", "demo", "--app", "demo:app", code=5)
    assert len(document.error.reasons) == 2


def test_the_limits_of_a_run_come_from_flags(desk: Desk) -> None:
    desk.write("demo.py", DEMO.replace(', interrupt_before=["write"]', ""))
    given = ("run", "demo:app", "--thread", "m", "--input", '{"topic": "w"}')
    assert "[MC202]" in desk.err(*given, "--max-steps", "1", code=1)
    assert "[MC205]" in desk.err(*given, "--timeout", "0.000001", code=1)
    desk.call(*given)


SHIPPING = """\
from typing import NotRequired, TypedDict
from milecastle import END, START, StateGraph, interrupt

class Order(TypedDict):
    name: str

graph = StateGraph(Order)

@graph.node
def ask(state: Order, ctx) -> dict:
    ctx.emit(state["name"])
    interrupt(f"Ship to {state['name']}?", show={"to": state["name"]})
    return {}

graph.add_edges(START, "ask", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_a_trace_shows_no_question_and_nothing_that_is_shown_with_it(desk: Desk) -> None:
    """Both are made from the state. Fails if ``--trace`` prints all of an event's ``data``."""
    desk.write("shipping.py", SHIPPING)
    given = ("--thread", "x", "--input", '{"name": "s3cr3t"}', "--trace", "--json")
    result = desk.call("run", "shipping:app", *given, code=3)
    assert "trace: interrupt ask step=0" in result.stderr
    assert "s3cr3t" not in result.stderr


def test_a_trace_is_printed_without_any_value(desk: Desk) -> None:
    result = desk.call(
        "run", "demo:app", "--thread", "x", "--input", '{"topic": "secret"}', "--trace", code=3
    )
    assert "trace: node_complete research step=1" in result.stderr
    assert "secret" not in result.stderr


def test_a_node_gets_the_config(desk: Desk) -> None:
    desk.write(
        "demo.py",
        DEMO.replace("research(state: Draft)", "research(state, config)").replace(
            "a fact about {state['topic']}", "{config['what']}"
        ),
    )
    desk.call(
        "run", "demo:app", "--thread", "c", "--input", '{"topic": "w"}',
        "--config", '{"what": "bricks"}', code=3,
    )  # fmt: skip
    assert desk.document("show", "c").state["notes"] == ["bricks"]


def test_fork_is_a_separate_thread_or_a_branch(desk: Desk) -> None:
    desk.start()
    assert "forked demo@1 to demo-b@1 (" in desk.out(
        "fork", "demo@1", "--as", "demo-b", "--app", "demo:app"
    )
    assert desk.document("fork", "demo@2", "--app", "demo:app").checkpoint.seq == 4
    text = desk.err("fork", "demo@1", "--as", "demo-b", "--app", "demo:app", code=2)
    assert "already exists" in text


def test_an_update_is_json_where_it_parses_and_text_where_it_does_not(desk: Desk) -> None:
    desk.start()
    line = desk.out(
        "update", "demo", "--set", "topic=trails", "--set", 'notes=["x"]', "--set", "pages=3",
        "--app", "demo:app",
    )  # fmt: skip
    assert line.startswith("updated demo@3 to demo@4 (")
    assert desk.document("show", "demo").state == {
        "topic": "trails",
        "notes": ["a fact about walls", "x"],
        "pages": 3,
    }


def test_an_update_takes_text_where_the_channel_is_text(desk: Desk) -> None:
    desk.start()
    desk.call("update", "demo", "--set", "topic=5", "--app", "demo:app")
    assert desk.document("show", "demo").state["topic"] == "5"
    assert "'topic' list" in desk.err(
        "update", "demo", "--set", "pages=[]", "--app", "demo:app", code=2
    ).replace("'pages'", "'topic'")
    assert "KEY=VALUE" in desk.err("update", "demo", "--set", "topic", "--app", "demo:app", code=2)


def test_an_update_branches_off_an_older_checkpoint(desk: Desk) -> None:
    desk.start()
    written = desk.document("update", "demo@1", "--set", "topic=x", "--app", "demo:app")
    assert written.checkpoint.next == ("research",)
    assert written.checkpoint.seq == 4


def test_a_verb_that_needs_the_code_asks_for_it(desk: Desk) -> None:
    desk.start()
    assert "no graph given" in desk.err("resume", "demo", code=2)
    assert "no graph given" in desk.err("run", code=2)


def test_an_app_without_a_store_runs_and_says_that_nothing_is_saved(desk: Desk) -> None:
    desk.write("demo.py", DEMO.replace('store="sqlite:///runs.db", ', ""))
    result = desk.call("run", "demo:app", "--input", '{"topic": "w"}', code=3)
    assert "nothing was saved" in result.stderr
    assert desk.document("run", "demo:app", "--input", '{"topic": "w"}', code=3).thread is None
    for verb in (["resume", "x"], ["fork", "x"], ["update", "x", "--set", "a=b"], ["ls"]):
        assert "store" in desk.err(
            *verb, *([] if verb == ["ls"] else ["--app", "demo:app"]), code=2
        )
    desk.call(
        "run", "demo:app", "--thread", "x", "--input", '{"topic": "w"}',
        "--store", "sqlite:///other.db", code=3,
    )  # fmt: skip
    assert desk.document("ls", "--store", "sqlite:///other.db").threads[0].thread == "x"


def test_a_tenant_is_kept_apart(desk: Desk) -> None:
    desk.call(
        "run", "demo:app", "--thread", "x", "--input", '{"topic": "w"}', "--tenant", "acme", code=3
    )
    assert desk.document("ls", "--tenant", "acme").threads[0].thread == "x"
    assert desk.document("ls").threads == ()
    desk.call("resume", "x", "--app", "demo:app", "--tenant", "acme")


GIVEN = ("run", "demo:app", "--thread", "demo", "--input", '{"topic": "walls"}')


@pytest.mark.parametrize(
    ("flags", "instead"),
    [
        (("--mode", "resume-only"), "milecastle build demo:app --mode resume-only"),
        (("--workspace", "a b"), "milecastle build demo:app --workspace 'a b'"),
        (("--plan", "--mode", "clean"), "milecastle plan demo:app --mode clean"),
    ],
)
def test_run_refuses_the_flags_of_build_and_says_what_to_type(
    desk: Desk, flags: tuple[str, ...], instead: str
) -> None:
    """Broken on purpose: the flags left to click, which says only that they are unknown."""
    text = desk.err("run", "demo:app", *flags, code=2)
    assert text.rstrip().endswith(f"it runs threads. For file graphs, write: {instead}")
    assert "Did you mean" in desk.err("run", "demo:app", "--thraed", "x", code=2)


BUILD = """\
from pathlib import Path
from typing import NotRequired, TypedDict
from milecastle import END, START, StateGraph
from milecastle.builds import files

class Nothing(TypedDict):
    done: NotRequired[bool]

def upper(state: Nothing) -> None:
    Path("b.txt").write_text(Path("a.txt").read_text().upper())

def double(state: Nothing) -> None:
    Path("c.txt").write_text(Path("b.txt").read_text() * 2)

graph = StateGraph(Nothing, name="build")
graph.add_node("upper", files(inputs=["a.txt"], outputs=["b.txt"])(upper))
graph.add_node("double", files(inputs=["b.txt"], outputs=["c.txt"])(double))
graph.add_edges(START, "upper", "double", END)
app = graph.compile()
"""


def test_a_graph_over_files_runs_what_is_needed_and_says_why(desk: Desk) -> None:
    desk.write("build.py", BUILD)
    desk.write("a.txt", "a")
    named = ("build:app", "--workspace", ".work")
    given = ("build", *named)
    assert "upper: it did not complete before" in desk.out(*given)
    assert (desk.folder / "c.txt").read_text() == "AA"
    again = desk.json(FileRunDocument, *given)
    assert (again.executed, again.reused_nodes) == ({}, ("upper", "double"))
    desk.write("a.txt", "b")
    plan = desk.json(PlanDocument, "plan", *named)
    assert [(line.node, line.action) for line in plan.nodes] == [
        ("upper", "execute"),
        ("double", "execute"),
    ]
    assert "  execute  upper: input 'a.txt' changed" in desk.out("plan", *named)
    assert "2 executed, 0 reused" in desk.out(*given)
    assert "2 executed, 0 reused" in desk.out(*given, "--mode", "clean")
    desk.err(*given, "--mode", "resume-only", code=5)
    assert desk.json(PlanDocument, "plan", *named, "--mode", "resume-only", code=5).refused


def test_a_graph_over_files_needs_a_workspace(desk: Desk) -> None:
    desk.write("build.py", BUILD)
    desk.write("a.txt", "a")
    assert "--workspace DIR" in desk.err("build", "build:app", code=2)
    assert "2 executed" in desk.out("build", "build:app", "--store", "file://work")


def test_run_of_a_graph_over_files_is_a_thread_and_names_build(desk: Desk) -> None:
    """Broken on purpose: the hint left out."""
    desk.write("build.py", BUILD)
    desk.write("a.txt", "a")
    given = ("run", "build:app", "--store", "sqlite:///runs.db", "--thread", "t")
    assert "to run what is needed: milecastle build build:app" in desk.call(*given).stderr
    assert desk.document("show", "t").checkpoint.next == ()


def test_a_run_whose_graph_cannot_be_loaded_is_recorded(desk: Desk) -> None:
    desk.start()
    desk.write("demo.py", "import nothing_of_that_name\n")
    assert "recorded as run" in desk.err(*GIVEN, code=1)
    newest, older = desk.document("runs", "demo").runs
    assert (newest.status, newest.failure.failure_class) == ("failed", "graph")
    assert not newest.failure.resumable
    assert newest.failure.error_type == "ModuleNotFoundError"
    assert (newest.previous_run_id, older.status) == (older.run_id, "interrupted")
    desk.write("demo.py", DEMO)
    desk.finish()


def test_a_first_run_whose_graph_has_problems_is_recorded(desk: Desk) -> None:
    desk.write("demo.py", DEMO.replace('START, "research"', 'START, "reserch"'))
    desk.err(*GIVEN, "--store", "sqlite:///new.db", code=1)
    (run,) = desk.document("runs", "demo", "--store", "sqlite:///new.db").runs
    assert run.failure.error_type == "DefinitionError"
    desk.call("show", "demo", "--store", "sqlite:///new.db", code=2)


ASKING = """\
from typing import TypedDict
from milecastle import END, START, StateGraph, interrupt

class Post(TypedDict):
    text: str
    approved: bool
    title: str

graph = StateGraph(Post)

@graph.node
def review(state: Post) -> dict:
    return {"approved": interrupt("Publish?", show=state["text"], answer=bool)}

@graph.node
def name(state: Post) -> dict:
    return {"title": interrupt("Which title?", answer=str)}

graph.add_edge(START, "review")
graph.add_edge(START, "name")
graph.add_edge("review", END)
graph.add_edge("name", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_questions_are_shown_and_answered_by_id(desk: Desk) -> None:
    desk.write("asking.py", ASKING)
    given = ("run", "asking:app", "--thread", "p", "--input", '{"text": "hello"}')
    result = desk.call(*given, code=3)
    assert 'review asks: Publish?  "hello"  (id ' in result.stdout
    assert "Answer with: milecastle answer p ANSWER --app asking:app" in result.stderr
    (review,) = [one for one in desk.document("show", "p").questions if one.node == "review"]
    assert (review.question, review.answer) == ("Publish?", {"type": "boolean"})
    assert "name asks: Which title?" in desk.out("show", "p")
    to = ("--app", "asking:app")
    assert "there are several open questions" in desk.err("answer", "p", "yes", *to, code=2)
    assert "no question has the id" in desk.err(
        "answer", "p", "yes", *to, "--question", "x", code=2
    )
    text = desk.err("answer", "p", "perhaps", *to, "--question", review.id, code=2)
    assert "[MC303]" in text
    desk.call("answer", "p", "yes", *to, "--question", review.id, code=3)
    done = desk.document("answer", "p", "5", *to)
    assert done.state == {"text": "hello", "approved": True, "title": "5"}
    desk.err("answer", "p", "5", *to, code=5)


def test_a_thread_that_waits_for_no_answer_says_so(desk: Desk) -> None:
    desk.start()
    assert "it has no open question" in desk.err("answer", "demo", "x", "--app", "demo:app", code=5)


def test_changes_are_accepted_by_an_explicit_word(desk: Desk) -> None:
    desk.start()
    desk.write("demo.py", DEMO.replace("pages: NotRequired[int]", "pages: NotRequired[str]"))
    assert "would not resume" in desk.out("check", "demo:app", "--threads", code=5)
    assert desk.error("resume", "demo", "--app", "demo:app", code=5).error.reasons
    accepted = desk.document("resume", "demo", "--app", "demo:app", "--accept-changes")
    assert accepted.status == "completed"
    assert "changes accepted" in desk.out("history", "demo")


MIGRATION = """
import os
app.migrate(os.environ["OLD"], lambda state, nodes: (state, ["compose"]))
"""


@pytest.mark.parametrize("store", [True, False])
def test_a_registered_migration_counts_for_check_and_resume(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, store: bool
) -> None:
    desk.start()
    [run] = desk.document("runs").runs
    monkeypatch.setenv("OLD", run.fingerprint)
    changed = DEMO.replace("write", "compose")
    if not store:
        changed = changed.replace('store="sqlite:///runs.db", ', "")
        monkeypatch.setenv("MILECASTLE_STORE", "sqlite:///runs.db")
    desk.write("demo.py", changed)
    assert "would not resume" in desk.out("check", "demo:app", "--threads", code=5)
    desk.write("demo.py", changed + MIGRATION)
    [line] = desk.document("check", "demo:app", "--threads").threads
    assert (line.fits, line.note) == (True, f"migrated from {run.fingerprint[:8]}")
    assert desk.document("resume", "demo", "--app", "demo:app").status == "completed"


def test_an_app_may_bring_its_own_workspace(desk: Desk) -> None:
    own = BUILD.replace("graph.compile()", 'graph.compile(workspace=".own")')
    desk.write("build.py", own)
    desk.write("a.txt", "a")
    assert "2 executed" in desk.out("build", "build:app")
    assert (desk.folder / ".own" / "runs").is_dir()
    assert "0 executed, 2 reused" in desk.out("build", "build:app")
    for _ in range(3):
        desk.call("build", "build:app", "--mode", "clean")
    given = ("gc", "--keep-last", "2", "--workspace", ".own")
    assert len(desk.document(*given, "--dry-run").file_runs) == 3
    assert "deleted 3 file runs" in desk.out(*given)
    assert desk.document(*given).file_runs == ()
    assert "there is no workspace at .other" in desk.err(*given[:-1], ".other", code=2)


def test_gc_of_a_file_store_lets_its_old_file_runs_go(desk: Desk) -> None:
    desk.write("build.py", BUILD)
    desk.write("a.txt", "a")
    for _ in range(3):
        desk.call("build", "build:app", "--store", "file://work", "--mode", "clean")
    desk.call(
        "run",
        "demo:app",
        "--store",
        "file://work",
        "--thread",
        "demo",
        "--input",
        '{"topic": "walls"}',
        code=3,
    )
    assert len(desk.document("gc", "--keep-last", "1", "--store", "file://work").file_runs) == 2
    assert desk.document("runs", "demo", "--store", "file://work").runs


def test_a_thread_that_ended_takes_no_answer(desk: Desk) -> None:
    desk.start()
    desk.finish()
    assert "it has already ended" in desk.err("answer", "demo", "x", "--app", "demo:app", code=5)


def test_the_store_of_an_app_is_looked_at(desk: Desk) -> None:
    desk.write("demo.py", DEMO.replace("runs.db", "posts.db"))
    desk.start()
    assert "no store given" in desk.err("ls", code=2)
    for verb in (("ls",), ("runs", "demo"), ("history", "demo")):
        assert desk.out(*verb, "--app", "demo:app")


DYING = """\
import os
from typing import TypedDict
from milecastle import END, START, StateGraph

class State(TypedDict, total=False):
    n: int

def die(state: State) -> None:
    os._exit(9)

graph = StateGraph(State)
graph.add_node("die", die)
graph.add_edges(START, "die", END)
app = graph.compile(store="sqlite:///runs.db")
if __name__ == "__main__":
    app.invoke({}, thread="d")
"""


def test_a_run_whose_process_died_is_shown_with_how_to_resume_it(desk: Desk) -> None:
    path = desk.write("dying.py", DYING)
    assert subprocess.run([sys.executable, str(path)], check=False).returncode == 9
    told = desk.call("show", "d")
    assert "status      lost: process " in told.stdout
    assert "`milecastle resume d` continues it" in told.stderr


WAITING_DEMO = (
    DEMO.replace(
        'return {"text": "; ".join(state["notes"])}',
        'return {"text": interrupt("publish?", answer=str)}',
    )
    .replace("append\n", "append, interrupt\n", 1)
    .replace(', interrupt_before=["write"]', "")
)


def test_a_run_that_cannot_be_loaded_does_not_hide_a_thread_that_waits(desk: Desk) -> None:
    """It is recorded, and the thread is listed, retained and answered as before.

    Fails if what a thread is comes from its newest run, as it did: then ``ls`` says ``failed`` and
    ``gc`` deletes the thread.
    """
    desk.write("asking.py", WAITING_DEMO)
    desk.write("broken.py", "import nowhere_to_be_found\n")
    desk.call("run", "asking:app", "--thread", "w", "--input", '{"topic": "walls"}', code=3)
    store = ("--store", "sqlite:///runs.db")
    desk.call("run", "broken:app", "--thread", "w", *store, code=1)
    [line] = desk.document("ls", *store).threads
    assert (line.thread, line.status, line.questions) == ("w", "interrupted", 1)
    runs = desk.document("runs", "w", *store).runs
    assert [run.status for run in runs] == ["failed", "interrupted"]
    assert desk.document("gc", "--older-than", "0s", *store).deleted == ()
    assert desk.document("show", "w", *store).status == "interrupted"
    [fit] = desk.document("check", "asking:app", "--threads").threads
    assert (fit.thread, fit.status) == ("w", "interrupted")
    desk.call("answer", "w", "yes", "--app", "asking:app")
    assert [line.status for line in desk.document("ls", *store).threads] == ["completed"]


def test_build_whose_graph_cannot_be_loaded_is_recorded_in_its_workspace(desk: Desk) -> None:
    """Broken on purpose: recorded in the store instead, which a build does not have."""
    desk.write("build.py", "import nothing_of_that_name\n")
    given = ("build", "build:app", "--workspace", ".work", "--thread", "t")
    assert "recorded as run" in desk.err(*given, code=1)
    (run,) = (desk.folder / ".work" / "runs").iterdir()
    failure = msgspec.json.decode((run / "failure.json").read_bytes())
    assert failure["failure_class"] == "graph"
    assert failure["error_type"] == "ModuleNotFoundError"


MAPPING = """\
from typing import Annotated, TypedDict
from milecastle import END, START, StateGraph, append

class Batch(TypedDict):
    items: list[int]
    item: int
    done: Annotated[list[int], append]

graph = StateGraph(Batch)
graph.add_node("start", lambda state: None)

@graph.node
def work(state: Batch) -> dict:
    if state["item"] % 2:
        raise ValueError(f"item {state['item']} is odd")
    return {"done": [state["item"]]}

graph.add_edge(START, "start")
graph.map("start", "work", over="items", item="item")
graph.add_edge("work", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_every_failed_item_of_a_fan_out_is_shown(desk: Desk) -> None:
    """One of three was shown."""
    desk.write("mapping.py", MAPPING)
    given = ("--thread", "x", "--input", '{"items": [0, 1, 2, 3, 5]}')
    desk.call("run", "mapping:app", *given, code=1)
    shown = desk.call("show", "x", "--store", "sqlite:///runs.db").stdout
    assert "3 tasks failed; a resume runs these again:" in shown
    for task, item in (("work#1", 1), ("work#3", 3), ("work#4", 5)):
        assert f"    {task}  attempt 1  ValueError: item {item} is odd" in shown
    listed = desk.call("runs", "--store", "sqlite:///runs.db").stdout
    assert "ValueError at work and 2 more" in listed
    found = json.loads(desk.call("runs", "--store", "sqlite:///runs.db", "--json").stdout)
    tasks = found["runs"][0]["failure"]["tasks"]
    assert [task["task"] for task in tasks] == ["work#1", "work#3", "work#4"]


RENAMING = """\
from typing import Annotated, TypedDict
from milecastle import END, START, StateGraph, renamed_from

class Order(TypedDict):
    {key}

graph = StateGraph(Order, name="orders")
graph.add_node("take", lambda state: None)
graph.add_node("{node}", lambda state: None{more})
graph.add_edges(START, "take", "{node}", END)
app = graph.compile(store="sqlite:///runs.db", interrupt_after=["take"])
"""


def test_check_says_which_threads_need_a_declared_rename(desk: Desk) -> None:
    """Both were refused; now the one that is declared continues."""
    desk.write("before.py", RENAMING.format(key="item: str", node="send", more=""))
    key = 'thing: Annotated[str, renamed_from("item")]'
    more = ', renamed_from="send"'
    desk.write("after.py", RENAMING.format(key=key, node="ship", more=more))
    desk.call("run", "before:app", "--thread", "x", "--input", '{"item": "a"}', code=3)
    checked = desk.call("check", "after:app", "--threads").stdout
    assert "x: the graph changed: node 'send' renamed to 'ship', key 'item' renamed to" in checked
    resumed = desk.call("resume", "x", "--app", "after:app").stdout
    assert '  thing  "a"' in resumed
    assert "renamed" not in desk.call("check", "after:app", "--threads").stdout
