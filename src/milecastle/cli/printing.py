"""Printing: tables and JSON. Nothing is ever cut off.

Colour and rich tables are for terminals, and never when ``NO_COLOR`` is set; what is piped is
plain text in columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from milecastle.cli.values import as_json

__all__ = [
    "counted",
    "moment",
    "print_document",
    "print_lines",
    "print_table",
    "say",
    "styled_status",
    "wants_colour",
]

_COLOURS = {
    "completed": "green",
    "ok": "green",
    "interrupted": "yellow",
    "sleeping": "yellow",
    "warning": "yellow",
    "running": "cyan",
    "failed": "red",
    "cancelled": "magenta",
    "superseded": "magenta",
}


def wants_colour() -> bool:
    """Whether stdout is a terminal of somebody who did not say no to colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_document(document: msgspec.Struct) -> None:
    """Print what ``--json`` asks for."""
    click.echo(as_json(msgspec.to_builtins(document), indent=2))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        click.echo(line, color=wants_colour())


def say(message: str) -> None:
    """Tell a person something, on stderr."""
    click.echo(message, err=True)


def counted(number: int, what: str) -> str:
    """A number of things: 1 thread, 2 threads."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def styled_status(status: str) -> str:
    """A status, in colour where that is wanted."""
    return click.style(status, fg=_COLOURS.get(status)) if wants_colour() else status


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, as wide as they need to be."""
    if wants_colour() and _print_rich(head, rows):
        return
    table = [tuple(head), *rows]
    widths = [max(len(click.unstyle(row[at])) for row in table) for at in range(len(head))]
    for row in table:
        cells = [
            cell + " " * (width - len(click.unstyle(cell)))
            for cell, width in zip(row, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip(), color=wants_colour())


def _print_rich(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    Console().print(table)
    return True


def moment(time: int | datetime | None) -> Any:
    """A time as ISO 8601 in UTC, to the second for ``str``; ``None`` stays."""
    if time is None:
        return None
    if isinstance(time, int):
        time = datetime.fromtimestamp(time / 1_000_000, UTC)
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
