"""What only a terminal sees: colour, tables by rich; and completion."""

from __future__ import annotations

import io
import os
import sys

import click
import pytest

from milecastle.cli.completing import complete_threads
from milecastle.cli.main import cli
from milecastle.cli.printing import fitting, print_state, print_table, shortest_length
from tests.unit.cli.commands import Desk
from tests.unit.cli.pseudo_terminal import run_at_a_terminal

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


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_gets_colour_unless_it_says_no(
    monkeypatch: pytest.MonkeyPatch, rich: bool
) -> None:
    terminal = at_a_terminal(monkeypatch)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    print_table(["THREAD", "STATUS"], ROWS)
    assert "\x1b[31mfailed" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    before = len(terminal.getvalue())
    print_table(["THREAD", "STATUS"], ROWS)
    assert "\x1b" not in terminal.getvalue()[before:]


def test_only_statuses_have_a_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose name is a status is not shown as one."""
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    print_table(["THREAD"], [["failed"]])
    assert "\x1b" not in terminal.getvalue()


def test_rich_lays_out_a_table_and_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    print_table(["THREAD", "STATUS"], ROWS)
    written = click.unstyle(terminal.getvalue())
    assert "".join(written.split()).count("a-long-name-of-a-thread") >= 1
    assert len(written.splitlines()) > len(ROWS) + 1


def test_without_rich_columns_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    print_table(["THREAD", "STATUS"], ROWS)
    width = len(ROWS[1][0])
    first, second, _ = click.unstyle(terminal.getvalue()).splitlines()
    assert first == f"{'THREAD':<{width}}  STATUS"
    assert second == f"{'demo':<{width}}  completed"


def test_ids_are_as_short_as_they_stay_unique() -> None:
    one, other = "01a1dd55-96da-7760-8c2c-326d97d9d100", "01a1dd55-96da-7761-8c2c-326d97d9d100"
    assert shortest_length([one]) == shortest_length([]) == shortest_length([one, one]) == 13
    assert shortest_length([one, other]) == len("01a1dd55-96da-7760")


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 7, "漢字漢…"),
        ("e\u0301" * 5, 5, "e\u0301" * 5),
        ("abc", 1, "…"),
    ],
)
def test_a_line_is_cut_to_the_columns_that_it_takes(line: str, width: int, shown: str) -> None:
    assert fitting(line, width) == shown


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_show_truncates_at_the_width_of_the_terminal_unless_full(desk: Desk) -> None:
    """Seen to fail: a long value filled the screen."""
    topic = "t" * 5000
    desk.start("demo", topic)
    narrow = {"COLUMNS": "60", "NO_COLOR": "1"}
    lines = run_at_a_terminal(["show", "demo"], narrow).splitlines()
    assert [line for line in lines if "t" * 60 in line] == []
    assert any(line.endswith("t…") for line in lines)
    assert (
        "lines are truncated at 60 columns, the width of the terminal: --full shows them in full"
        in lines
    )
    assert topic in run_at_a_terminal(["show", "demo", "--full"], narrow)
    assert topic in desk.out("show", "demo")


def test_a_long_list_of_a_state_has_a_line_for_each_item(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seen to fail: an agent's whole conversation was one line."""
    messages = [{"role": "user", "content": f"{number} {'word ' * 9}"} for number in range(30)]
    state = {"messages": messages, "turns": [1, 2]}
    assert not print_state(state)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  messages  30 items:"
    assert lines[1].startswith('    {"role": "user", "content": "0 word')
    assert lines[31:] == ["  turns     [1, 2]"]
    assert print_state(state, 200)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  messages  30 items, the last 20:"
    assert "10 word" in lines[1]
    assert len(lines) == 22


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
