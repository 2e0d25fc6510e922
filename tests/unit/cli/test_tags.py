"""Tags on the command line: set with a run, changed, listed by."""

from __future__ import annotations

from tests.unit.cli.commands import Desk
from tests.unit.cli.test_running_verbs import BUILD

GIVEN = ("--input", '{"topic": "walls"}')


def test_a_run_is_tagged_and_threads_are_listed_by_tag(desk: Desk) -> None:
    """Fails if --tag is not passed on, or only the last one is."""
    desk.call("run", "demo:app", *GIVEN, "--thread", "a", "--tag", "eu", "--tag", "b c", code=3)
    desk.call("submit", "demo:app", *GIVEN, "--thread", "b", "--tag", "eu")
    desk.start("c")
    found = desk.document("ls", "--tag", "eu").threads
    assert [(line.thread, line.tags) for line in found] == [("a", ("b c", "eu")), ("b", ("eu",))]
    found = desk.document("ls", "--tag", "eu", "--status", "queued").threads
    assert [line.thread for line in found] == ["b"]
    assert desk.document("ls", "--tag", "eu", "--prefix", "c").threads == ()
    assert desk.document("show", "a").tags == ("b c", "eu")


def test_the_column_of_tags_is_there_if_a_thread_has_any(desk: Desk) -> None:
    desk.start("a")
    desk.start("b")
    assert "TAGS" not in desk.out("ls")
    assert "tags" not in desk.out("show", "a")
    desk.call("tag", "a", "--add", "eu", "--add", "b")
    head, a, b = desk.out("ls").splitlines()
    assert (head.split()[-1], a.split("  ")[-1].strip(), b.split()[-1]) == ("TAGS", "b, eu", "-")
    assert "b, eu" in desk.out("show", "a")


def test_tags_are_changed_and_listed(desk: Desk) -> None:
    desk.start("a")
    assert desk.out("tag", "a") == ""
    assert desk.out("tag", "a", "--add", "eu", "--add", "b").splitlines() == ["b", "eu"]
    found = desk.document("tag", "a", "--remove", "b", "--add", "c")
    assert (found.thread, found.tags) == ("a", ("c", "eu"))
    assert "empty" in desk.err("tag", "a", "--add", "", code=2)
    assert "added and removed" in desk.err("tag", "a", "--add", "x", "--remove", "x", code=2)
    assert "nobody" in desk.err("tag", "nobody", "--add", "x", code=2)


def test_file_runs_have_no_tags(desk: Desk) -> None:
    """Fails if a list by tag has threads of a workspace among its own."""
    desk.write("a.txt", "a")
    desk.write("build.py", BUILD)
    desk.call("build", "build:app", "--workspace", ".work")
    desk.start("a")
    desk.call("tag", "a", "--add", "eu")
    assert len(desk.document("ls", "--workspace", ".work").threads) == 2
    found = desk.document("ls", "--tag", "eu", "--workspace", ".work").threads
    assert [line.thread for line in found] == ["a"]
