"""What only a terminal sees: colour, tables by rich; and completion."""

from __future__ import annotations

import io
import sys

import click
import pytest

from milecastle.cli.completing import complete_threads
from milecastle.cli.main import cli
from milecastle.cli.printing import print_table, styled_status, wants_colour
from tests.unit.cli.commands import Desk

ROWS = [["demo", "completed"], ["a-long-name-of-a-thread" * 9, "failed"]]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """To be called in the test itself: pytest puts its own stdout in place before."""
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


def test_a_terminal_gets_colour_unless_it_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch)
    assert wants_colour()
    assert styled_status("failed") == "\x1b[31mfailed\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour()
    assert styled_status("failed") == "failed"


def test_rich_lays_out_a_table_and_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    print_table(["THREAD", "STATUS"], [[row[0], styled_status(row[1])] for row in ROWS])
    written = click.unstyle(terminal.getvalue())
    assert "".join(written.split()).count("a-long-name-of-a-thread") >= 1
    assert len(written.splitlines()) > len(ROWS) + 1


def test_without_rich_columns_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    print_table(["THREAD", "STATUS"], [[row[0], styled_status(row[1])] for row in ROWS])
    width = len(ROWS[1][0])
    first, second, _ = click.unstyle(terminal.getvalue()).splitlines()
    assert first == f"{'THREAD':<{width}}  STATUS"
    assert second == f"{'demo':<{width}}  completed"


def words(incomplete: str, **flags: str) -> list[str]:
    context = click.Context(cli)
    context.params = dict(flags)
    parameter = click.Argument(["thread"])
    return [str(item.value) for item in complete_threads(context, parameter, incomplete)]


def test_threads_are_completed_from_the_store_at_hand(desk: Desk) -> None:
    assert words("") == []
    for name in ("demo-a", "demo-b", "other", "a"):
        desk.start(name)
    assert words("demo") == ["demo-a", "demo-b"]
    assert words("") == ["a", "demo-a", "demo-b", "other"]
    assert words("x") == []
    assert words("demo", store="sqlite:///none.db") == []
    assert words("demo", tenant="acme") == []
