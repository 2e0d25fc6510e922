"""The command line of the benchmarks."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as command_line
from benchmarks.alternating import PeerMissing
from benchmarks.report import Report


def test_json_prints_the_figures_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    def measure(*, quick: bool = False) -> Report:
        asked.append(quick)
        return Report(figures={"no_store": 30.0}, table="for people")

    monkeypatch.setitem(command_line.VERBS, "steps", (measure, ""))
    assert command_line.main(["steps", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out) == {"no_store": 30.0}
    assert command_line.main(["steps"]) == 0
    assert capsys.readouterr().out == "for people\n"
    assert asked == [True, False]


def test_a_missing_peer_is_said_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*, quick: bool = False) -> Report:
        del quick
        raise PeerMissing("LangGraph is not installed: pip install langgraph")

    monkeypatch.setitem(command_line.VERBS, "steps", (measure, ""))
    assert command_line.main(["steps"]) == 2
    assert "pip install langgraph" in capsys.readouterr().err
