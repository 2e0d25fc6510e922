"""HTML for notebooks: a title, facts and a table, everything escaped and cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["card", "table", "value_text"]

_LONGEST = 500


def card(title: str, facts: Mapping[str, object], *parts: str) -> str:
    """A title with facts, then HTML parts."""
    shown = "; ".join(f"{_escaped(name)}: {_escaped(str(fact))}" for name, fact in facts.items())
    body = "".join(parts)
    return f"<div><p><b>{_escaped(title)}</b>{'<br>' if shown else ''}{shown}</p>{body}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{_escaped(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def value_text(value: Any) -> str:
    """A value as text, shortened at every level."""
    import reprlib

    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = shown.maxlong = _LONGEST
    shown.maxlist = shown.maxtuple = shown.maxset = shown.maxdict = 20
    return shown.repr(value)


def _escaped(text: str) -> str:
    from html import escape

    from milecastle.support.printable import printable

    return escape(printable(text[: 4 * _LONGEST]))
