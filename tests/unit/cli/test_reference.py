"""The reference page says what the command line has."""

from __future__ import annotations

from milecastle.cli import exits
from milecastle.cli.main import VERBS
from tests.docs.pages import read
from tests.unit.cli.reference import PAGE, written


def test_the_page_is_fresh() -> None:
    """If not: python -m tests.unit.cli.reference."""
    assert written(read(PAGE)) == read(PAGE)


def test_a_stale_page_would_be_seen() -> None:
    text = read(PAGE)
    assert written(text.replace("| `threads` |", "| `thread` |")) == text
    assert text.replace("| `threads` |", "| `thread` |") != text


def test_the_page_has_every_verb_and_every_exit_code() -> None:
    text = read(PAGE)
    assert [verb for verb in VERBS if f"### milecastle {verb}\n" not in text] == []
    codes = [code for name, code in vars(exits).items() if name.isupper() and name[0] != "_"]
    assert [code for code in codes if f"| {code} |" not in text] == []
