"""HTML for notebooks: a title, facts and tables, everything escaped and cut.

It has the colours and shapes of the web view, light or dark as the notebook is, and asks no other
host for anything. Without its style, as in an untrusted notebook, it is a plain list and table.
Rules with a doubled class or a width undo Jupyter's rules for lists and tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_LONGEST = 500

_STATUS: Final = {
    "completed": ("good", "Completed"),
    "running": ("run", "Running"),
    "queued": ("queue", "Waits for a worker"),
    "interrupted": ("ask", "Needs answer"),
    "stopped": ("ask", "Stopped here"),
    "sleeping": ("sleep", "Sleeping"),
    "failed": ("bad", "Failed"),
    "cancelled": ("off", "Cancelled"),
    "superseded": ("off", "Replaced"),
    "added": ("good", "added"),
    "removed": ("bad", "removed"),
    "changed": ("run", "changed"),
}
"""A status as its colour and its word, as on the pages."""

_COLOURS: Final = {
    "good": ("#176a3e", "#e4f3ea", "#76d39c", "#152c1e"),
    "run": ("#1b56b3", "#e7effb", "#8fb8f8", "#18253d"),
    "ask": ("#7d4f00", "#fbf0d8", "#efc269", "#33260b"),
    "sleep": ("#5d469f", "#eeeaf8", "#bfabf3", "#282041"),
    "queue": ("#4c5662", "#e9edf0", "#a9b4c0", "#252a30"),
    "bad": ("#ab2a22", "#fce9e7", "#ff9f96", "#3b1815"),
    "off": ("#5f5a53", "#eeebe7", "#aca79d", "#272521"),
}

_SHAPE: Final = (
    ".mc-card{color-scheme:light dark;color:light-dark(#1d1b19,#ebe8e2);"
    "background:light-dark(#fff,#1b1a18);border:1px solid light-dark(#e3e0da,#312f2b);"
    "border-radius:10px;padding:12px 16px;max-width:72em;overflow-x:auto;"
    "font:14px/1.45 system-ui,sans-serif;font-variant-numeric:tabular-nums}"
    ".mc-card dl{display:flex;flex-wrap:wrap;gap:2px 16px;margin:4px 0 8px}"
    ".mc-card dl div{display:flex;gap:6px;overflow-wrap:anywhere}"
    ".mc-card dt,.mc-card dd{float:none;width:auto}"
    ".mc-card dt,.mc-card.mc-card th{color:light-dark(#5f5a53,#aca79d);font-weight:400;"
    "font-size:12px}"
    ".mc-card dd{margin:0;font-weight:550}"
    ".mc-card.mc-card table{border-collapse:collapse;margin:8px 0 0;font-size:13px;color:inherit}"
    ".mc-card.mc-card.mc-card tr{background:none}"
    ".mc-card.mc-card th,.mc-card.mc-card td{text-align:left;vertical-align:top;"
    "padding:5px 16px 5px 0;border-top:1px solid light-dark(#e3e0da,#312f2b);background:none;"
    "overflow-wrap:anywhere}"
    ".mc-card.mc-card td{white-space:pre-wrap}"
    "[data-jp-theme-light=true] .mc-card,.vscode-light .mc-card{color-scheme:light}"
    "[data-jp-theme-light=false] .mc-card,.vscode-dark .mc-card{color-scheme:dark}"
    ".mc-pill{border-radius:11px;padding:2px 8px;font-size:12px;font-weight:550}"
)


def _style() -> str:
    kinds = "".join(
        f".mc-{kind}{{color:light-dark({text},{dark});background:light-dark({back},{deep})}}"
        for kind, (text, back, dark, deep) in _COLOURS.items()
    )
    return f"<style>{_SHAPE}{kinds}</style>"


_STYLE: Final = _style()


def card(title: str, facts: Mapping[str, object], *parts: str, status: str = "") -> str:
    shown = "".join(
        f"<div><dt>{_escaped(name)}</dt><dd>{_escaped(str(fact))}</dd></div>"
        for name, fact in facts.items()
    )
    head = f"<b>{_escaped(title)}</b>{f' {pill(status)}' if status else ''}"
    facts_html = f"<dl>{shown}</dl>" if shown else ""
    return f'<div class="mc-card">{_STYLE}{head}{facts_html}{"".join(parts)}</div>'


def pill(status: str) -> str:
    kind, word = _STATUS.get(status, ("off", status))
    return f'<span class="mc-pill mc-{kind}">{_escaped(word)}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, status: int | None = None) -> str:
    top = "".join(f'<th scope="col">{_escaped(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{pill(cell) if place == status else _escaped(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def drawing(svg: str, name: str) -> str:
    """An SVG as an image: light or dark as the card is, where inline it would be as the system."""
    from base64 import b64encode

    data = b64encode(svg.encode()).decode()
    return f'<img alt="Graph {_escaped(name)}" src="data:image/svg+xml;base64,{data}">'


def value_text(value: Any) -> str:
    import reprlib

    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = shown.maxlong = _LONGEST
    shown.maxlist = shown.maxtuple = shown.maxset = shown.maxdict = 20
    return shown.repr(value)


def _escaped(text: str) -> str:
    from html import escape

    from milecastle.support.printable import printable

    return escape(printable(text[: 4 * _LONGEST]))
