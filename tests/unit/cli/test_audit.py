"""``milecastle audit``: the answers of a thread, and who gave them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

from milecastle import Actor
from tests.unit.cli.commands import Desk, fresh_modules

ASKING = """\
from typing import NotRequired, TypedDict
from milecastle import END, START, StateGraph, interrupt

class Case(TypedDict):
    got: NotRequired[str]

graph = StateGraph(Case)

@graph.node
def ask(state: Case) -> dict:
    first = interrupt("ship?", answer=str)
    second = interrupt("sure?", answer=str)
    return {"got": first + second + interrupt("now?", answer=str, within=0, otherwise="-")}

graph.add_edges(START, "ask", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def test_answers_are_listed_with_who_gave_them(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried: a timeout printed as the answer null."""
    desk.write("asking.py", ASKING)
    monkeypatch.setattr(sys, "path", [str(desk.folder), *sys.path])
    with fresh_modules():
        app: Any = import_module("asking").app
    (first,) = app.invoke({}, "a").interrupts
    by = Actor("token:1", "authenticated", "checked\x1b[2J", on_behalf_of="ann")
    (second,) = app.resume("a", answer="y\x1b[2J", by=by).interrupts
    app.resume("a", answer="yes")
    if app.state("a").status != "completed":
        app.resume("a")
    found = desk.document("audit", "a", "--app", "asking").answers
    assert [(one.question, one.answer, one.timed_out) for one in found[:2]] == [
        (first.id, "y\x1b[2J", False),
        (second.id, "yes", False),
    ]
    assert [(one.by, one.how, one.on_behalf_of, one.reason) for one in found] == [
        ("token:1", "authenticated", "ann", "checked\x1b[2J"),
        (None, None, None, ""),
        (None, None, None, ""),
    ]
    assert (found[2].answer, found[2].timed_out) == (None, True)
    assert found[0].digest == first.digest
    text = desk.out("audit", "a", "--app", "asking")
    head, one, two, three = text.splitlines()
    assert head.split() == ["QUESTION", "ANSWER", "BY", "HOW", "TIME", "REASON"]
    assert "token:1 (on behalf of ann, asserted)  authenticated" in one
    assert "\x1b" not in text
    assert '"yes"' in two
    assert "timed out" in three
    app.close()


def test_answer_on_the_command_line_says_who_gives_it(desk: Desk) -> None:
    """Tried: the reason not passed on; a reason of nobody stored without a name."""
    desk.write("asking.py", ASKING)
    desk.call("run", "asking", "--thread", "b", "--input", "{}", code=3)
    to = ("--app", "asking")
    assert "add --by" in desk.err("answer", "b", "yes", "--reason", "why", *to, code=2)
    desk.call("answer", "b", "yes", "--by", "ann", "--reason", "stock checked", *to, code=3)
    (found,) = desk.document("audit", "b", *to).answers
    assert (found.by, found.how, found.reason) == ("ann", "asserted", "stock checked")
