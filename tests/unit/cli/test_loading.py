"""What module:attribute means, and what is said when it means nothing."""

from __future__ import annotations

import pytest

from tests.unit.cli.commands import DEMO, Desk


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("demo.py:app", "demo:app"),
        ("flows/demo.py", "flows.demo:app"),
        ("a b:c", "demo:app"),
        ("demo:", "demo:app"),
        (":app", "demo:app"),
    ],
)
def test_a_malformed_reference_is_a_usage_error(desk: Desk, given: str, meant: str) -> None:
    assert f"such as {meant}" in desk.err("check", given, code=2)


def test_a_module_that_is_not_there(desk: Desk) -> None:
    assert f"there is no module 'nope' in {desk.folder}" in desk.err("check", "nope:app", code=1)
    assert "there is no module 'nope'" in desk.err("check", "nope.deep:app", code=1)


def test_missing_attribute_is_reported_with_the_existing_ones(desk: Desk) -> None:
    assert "has no 'apps'; it has app, graph" in desk.err("check", "demo:apps", code=1)


def test_something_else_than_an_app(desk: Desk) -> None:
    desk.write("demo.py", "app = 5\nclass Holder:\n    app = 6\n")
    assert "demo:app is int" in desk.err("check", "demo:app", code=1)
    assert "demo:Holder.app is int" in desk.err("check", "demo:Holder.app", code=1)
    assert "module 'demo' has no 'Holder.nix'" in desk.err("check", "demo:Holder.nix", code=1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_code_that_cannot_be_imported_is_reported_with_its_line(
    desk: Desk, line: str, said: str
) -> None:
    path = desk.write("broken.py", f"x = 1\n{line}\n")
    text = desk.err("check", "broken:app", code=1)
    assert said in text
    assert f"{path}:2: {line}" in text
    assert "Traceback" not in text


TWO = """
other = StateGraph(Draft, name="other")
other.add_node("only", lambda state: {})
other.add_edges(START, "only", END)
one, two = app, other.compile(store="sqlite:///runs.db")
both = [one, two]
"""


def test_a_reference_without_an_attribute_means_app(desk: Desk) -> None:
    """``milecastle run demo`` was refused."""
    assert desk.document("check", "demo").nodes == ("research", "write")
    desk.write("lone.py", DEMO.replace("app = graph", "flow = graph"))
    assert desk.document("check", "lone").nodes == ("research", "write")
    desk.write("none.py", "x = 1")
    assert "no other app or graph" in desk.err("check", "none", code=1)


@pytest.mark.parametrize("verb", ["check", "graph", "doctor", "workers", "submit"])
def test_the_app_is_named_by_position_or_by_option(desk: Desk, verb: str) -> None:
    """Some verbs took only the one, some only the other."""
    one, other = (desk.call(verb, *words) for words in (["demo:app"], ["--app", "demo:app"]))
    assert one.exit_code == other.exit_code == 0


def test_a_verb_for_one_app_refuses_several(desk: Desk) -> None:
    desk.write("demo.py", DEMO + TWO)
    said = desk.err("check", "demo:one", "--app", "demo:two", code=2)
    assert "demo:one demo:two has the graphs Draft, other, and this verb takes one" in said
    assert "this verb takes one" in desk.err("check", "demo:both", code=2)
    desk.write("demo.py", "app = []")
    assert "empty list" in desk.err("check", "demo", code=1)


@pytest.mark.parametrize(
    "words",
    [("demo:one", "demo:two"), ("demo:both",), ("demo",), ("demo:one", "--app", "demo:two")],
)
def test_a_worker_serves_several_apps(desk: Desk, words: tuple[str, ...]) -> None:
    """``worker``, ``serve`` and ``dev`` took one; two stores with the same URL are one."""
    desk.write("demo.py", DEMO.replace("app = graph", "app = None or graph") + TWO + "del app\n")
    desk.call("submit", "demo:one", "--thread", "a", "--input", '{"topic": "x"}')
    desk.call("submit", "demo:two", "--thread", "b", "--input", '{"topic": "x"}')
    desk.call("worker", "--until-idle", *words)
    lines = {line.thread: line.status for line in desk.document("ls").threads}
    assert lines == {"a": "interrupted", "b": "completed"}


def test_apps_with_different_stores_are_refused_together(desk: Desk) -> None:
    """A worker ran the second app on the store of the first."""
    desk.write("demo.py", DEMO + TWO.replace("runs.db", "others.db"))
    said = desk.err("worker", "--until-idle", "demo:both", code=2)
    assert "graphs 'Draft' and 'other' are to share one store" in said
    desk.call("worker", "--until-idle", "demo:both", "--store", "sqlite:///third.db")


def test_a_graph_or_a_factory_will_do(desk: Desk) -> None:
    desk.write("demo.py", f"{DEMO}\ndef make():\n    return graph\n")
    for reference in ("demo:graph", "demo:make"):
        document = desk.document("check", reference)
        assert (document.ok, document.nodes) == (True, ("research", "write"))


def test_failing_factory_is_reported_with_its_line(desk: Desk) -> None:
    path = desk.write("demo.py", "def make():\n    raise ValueError('no')\n")
    text = desk.err("check", "demo:make", code=1)
    assert "demo:make() failed: ValueError: no" in text
    assert f"{path}:2" in text


def test_all_problems_of_a_graph_are_reported_with_file_and_line(desk: Desk) -> None:
    wrong = DEMO.replace('START, "research"', 'START, "reserch"').replace("text", "txet", 1)
    path = desk.write("demo.py", wrong)
    lines = desk.out("check", "demo:app", code=1).splitlines()
    assert lines[-1] == f"demo:app: {len(lines) - 1} problems"
    assert len(lines) > 2
    assert all(line.startswith(f"{path}:") for line in lines[:-1])
    document = desk.document("check", "demo:app", code=1)
    assert not document.ok
    assert {problem.file for problem in document.problems} == {str(path)}
    assert {"MC110", "MC115"} <= {problem.code for problem in document.problems}
    for verb in (["run", "demo:app"], ["graph", "demo:app"]):
        assert desk.error(*verb, code=1).error.code == "MC100"


def test_threads_that_would_not_resume_are_listed_with_the_reasons(desk: Desk) -> None:
    desk.start("waits")
    desk.start("ended")
    desk.finish("ended")
    assert "1 unfinished thread, 0 would not resume" in desk.out("check", "demo:app", "--threads")
    desk.write("demo.py", DEMO.replace('"write"', '"compose"').replace("def write", "def compose"))
    text = desk.out("check", "demo:app", "--threads", code=5)
    assert "waits: would not resume (interrupted, next write)" in text
    removed = "renamed to 'compose'? then declare renamed_from='write'"
    assert f"  node 'write' would run next but was removed ({removed})" in text
    assert "1 unfinished thread, 1 would not resume" in text
    document = desk.document("check", "demo:app", "--threads", code=5)
    assert [(fit.thread, fit.fits) for fit in document.threads] == [("waits", False)]


def test_what_was_only_added_is_noted(desk: Desk) -> None:
    desk.start("waits")
    more = DEMO.replace("pages: Not", "size: NotRequired[int]\n    pages: Not")
    desk.write("demo.py", more)
    assert "waits: the graph changed: key 'size' added" in desk.out(
        "check", "demo:app", "--threads"
    )


def test_a_module_that_runs_a_graph_when_it_is_imported_is_refused(desk: Desk) -> None:
    run = 'app.invoke({"topic": "w"}, thread="x")'
    path = desk.write("demo.py", f"{DEMO}{run}\n")
    text = desk.err("check", "demo:app", code=1)
    assert "runs a graph when it is imported" in text
    assert f"{path}:{len(DEMO.splitlines()) + 1}: {run}" in text
    assert desk.document("ls").threads == ()
    desk.write("demo.py", f'{DEMO}if __name__ == "__main__":\n    {run}\n')
    desk.start()


def test_hook_that_is_not_a_function_is_reported(desk: Desk) -> None:
    desk.write("hiding.py", "redact = 5\n")
    wanted = ("mcp", "demo:app", "--redact")
    assert "hiding is int; expected a function" in desk.err(*wanted, "hiding", code=1)
    assert "has no 'hide'" in desk.err(*wanted, "hiding:hide", code=1)
    assert "there is no module 'nope'" in desk.err(*wanted, "nope", code=1)
    assert "is not a reference" in desk.err(*wanted, "hiding.py", code=2)
