"""Printing: tables and JSON. No other command line module writes to a stream.

Rules:

- Each line and each cell is one line: control sequences and newlines are escaped.
- Nothing is truncated, except ids in tables and lines of ``show`` in a terminal.
- Colour and rich tables are for terminals, and never when ``NO_COLOR`` is set; piped output is
  plain text in columns.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from milecastle.support.printable import printable
from milecastle.views.documents import FailureLine, TaskFailureLine
from milecastle.views.values import as_json, plain

T = TypeVar("T")

_EVERY: Final = 2.0


class ProgressReport:
    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._said = clock()
        self._count = 0

    def at(self, place: str) -> None:
        self._count += 1
        now = self._clock()
        if now - self._said >= _EVERY:
            self._said = now
            say(f"{self._what}: {self._count} done, now {place}")

    def over(self, items: Iterable[T], name: Callable[[T], str] = str) -> Iterator[T]:
        for item in items:
            yield item
            self.at(name(item))


_COLOURED = {"STATUS", "VERDICT"}
_IDS = {"RUN", "ID"}
_TIME_OF_ID = len("01a1dd55-96da")
_COLOURS = {
    "completed": "green",
    "ok": "green",
    "interrupted": "yellow",
    "sleeping": "yellow",
    "warning": "yellow",
    "running": "cyan",
    "failed": "red",
    "lost": "red",
    "cancelled": "magenta",
    "superseded": "magenta",
}

_LONG_LINE: Final = 100
"""Columns above which a list is printed item by item, where there is no terminal."""

_LAST_ITEMS: Final = 20


def wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_document(document: msgspec.Struct) -> None:
    click.echo(as_json(msgspec.to_builtins(document), indent=2))


def print_lines(lines: Iterable[str], width: int | None = None) -> bool:
    cut = False
    for line in map(printable, lines):
        shown = line if width is None else fitting(line, width)
        cut = cut or shown != line
        click.echo(shown)
    return cut


def terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitting(line: str, width: int) -> str:
    if len(line) * 2 <= width:
        return line
    from unicodedata import combining, east_asian_width

    room, end = width, 0
    for at, char in enumerate(line):
        room -= 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1
        if room < 0:
            return line[:end] + "…"
        if room >= 1:
            end = at + 1
    return line


def say(*lines: str) -> None:
    for line in lines:
        click.echo(printable(line), err=True)


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [[printable(cell) for cell in row] for row in rows]
    for at, name in enumerate(head):
        if name in _IDS:
            length = shortest_length([row[at] for row in table])
            for row in table:
                row[at] = row[at][:length]
    if wants_colour() and _print_rich(head, table):
        return
    widths = [max(map(len, column)) for column in zip(head, *table, strict=True)]
    for line in (head, *table):
        cells = [
            _styled(name, cell) + " " * (width - len(cell))
            for name, cell, width in zip(head, line, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip(), color=wants_colour())


def shortest_length(ids: Sequence[str]) -> int:
    """Length that makes ids unique here, and their times mostly distinct."""
    known, length = set(ids), _TIME_OF_ID
    while len({id[:length] for id in known}) < len(known):
        length += 1
    return length


def _colour(column: str, cell: str) -> str | None:
    return _COLOURS.get(cell) if column in _COLOURED and wants_colour() else None


def _styled(column: str, cell: str) -> str:
    colour = _colour(column, cell)
    return click.style(cell, fg=colour) if colour else cell


def _print_rich(head: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
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
        cells = zip(head, row, strict=True)
        table.add_row(*(Text(cell, style=_colour(name, cell) or "") for name, cell in cells))
    Console().print(table)
    return True


def print_facts(facts: Mapping[str, str], width: int | None = None) -> bool:
    """Print pairs, one per line, in two columns.

    Return whether any line was truncated to ``width``.
    """
    names = max(map(len, facts), default=0)
    lines = (f"{name:<{names}}  {value}".rstrip() for name, value in facts.items())
    return print_lines(lines, width)


def print_state(values: Any, width: int | None = None) -> bool:
    """Print channels, one per line; a long list has a line for each item.

    Return whether anything was left out to fit ``width``: then only the last items are printed.
    """
    found = plain(values)
    if not isinstance(found, dict):
        return print_lines([as_json(found)], width)
    channels = cast("dict[str, Any]", found)
    names, left_out = max(map(len, channels), default=0), False
    lines: list[str] = []
    for name, value in channels.items():
        label, text = f"  {name:<{names}}", as_json(value)
        items = cast("Sequence[Any]", value) if isinstance(value, list) else None
        if items is None or len(label) + 2 + len(text) <= (width or _LONG_LINE):
            lines.append(f"{label}  {text}".rstrip())
            continue
        shown = items if width is None else items[-_LAST_ITEMS:]
        more = f", the last {len(shown)}" if len(shown) < len(items) else ""
        lines.append(f"{label}  {counted(len(items), 'item')}{more}:")
        lines += [f"    {as_json(item)}" for item in shown]
        left_out = left_out or bool(more)
    return print_lines(lines, width) or left_out


def print_failure(failure: FailureLine) -> None:
    place = f"node {failure.node}" if failure.node else "no node"
    again = "resumable" if failure.resumable else "not resumable"
    print_lines([f"failure  {failure.failure_class}, {again}, {place}, attempt {failure.attempt}"])
    print_lines(f"  {line}" for line in f"{failure.error_type}: {failure.message}".splitlines())
    print_lines(f"  {line}" for part in failure.traceback for line in part.splitlines())
    print_lines(f"  caused by {cause}" for cause in failure.causes)
    if failure.tasks:
        print_lines([f"  {len(failure.tasks)} tasks failed; a resume runs these again:"])
        print_lines(f"    {_one_line(task)}" for task in failure.tasks)


def _one_line(task: TaskFailureLine) -> str:
    message = " ".join(task.message.split())
    return f"{task.task}  attempt {task.attempt}  {task.error_type}: {message}"
