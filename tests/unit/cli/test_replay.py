"""``milecastle replay`` and ``check --threads``: recorded flows, and the code as it is."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

from tests.unit.cli.commands import Desk, fresh_modules

BEFORE = """\
from milecastle import flow, interrupt, step

@flow(name="f")
def code(order: int) -> str:
    step(str, order)
    return interrupt("go on?", answer=str)

app = code.compile(store="sqlite:///runs.db")
"""
AFTER = BEFORE.replace("step(str, order)", "step(repr, order)")


def test_threads_that_new_code_would_not_continue_are_reported(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried: manifests compared alone, which are equal."""
    desk.write("before.py", BEFORE)
    desk.write("after.py", AFTER)
    monkeypatch.setattr(sys, "path", [str(desk.folder), *sys.path])
    with fresh_modules():
        app: Any = import_module("before").app
    for thread in ("a", "b"):
        app.invoke({"order": 1}, thread=thread)
    app.resume("b", answer="yes")

    assert "2 threads replayed: 2 the same" in desk.out("replay", "before:app")
    text = desk.out("replay", "after:app", code=5)
    why = "in flow 'f' call 1 was step 'str', and the code now makes step 'repr'"
    assert text.splitlines()[0] == f"a: {why}"
    found = desk.document("replay", "after:app", "--sample", "1", code=5)
    assert [(one.thread, one.verdict) for one in found.threads] == [("a", "differs")]

    desk.out("check", "before:app", "--threads")
    assert why in desk.out("check", "after:app", "--threads", code=5)

    text = desk.out("why", "a", "--app", "after:app")
    assert f"the code that was named refuses it: {why}" in text
    for asked in (("why", "a", "--app", "before:app"), ("why", "b", "--app", "after:app")):
        assert "refuses" not in desk.out(*asked)
    assert desk.document("why", "a", "--app", "after:app").reasons[-1].code == "refused"
