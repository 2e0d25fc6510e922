"""Charts drawn by the server: bars in percent of the width and pixels of the height."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from milecastle.server.pages.words import parsed

_LABELS: Final = 6
_NICE: Final = (1, 2, 4, 5, 10)


class Stack(NamedTuple):
    start: str
    lower: int
    upper: int


class Bar(NamedTuple):
    """A bar with two counts, its title, and a label below if there is room."""

    lower: int
    upper: int
    said: str
    mark: str


class StackBar(NamedTuple):
    x: float
    width: float
    lower_y: float
    lower: float
    upper_y: float
    upper: float
    said: str


class Chart(NamedTuple):
    height: int
    bars: tuple[StackBar, ...]
    lines: tuple[tuple[float, int], ...]
    marks: tuple[tuple[float, str], ...]
    lower: int
    upper: int
    most: int
    rows: tuple[tuple[str, int, int], ...]
    """The counts as a table, summed from mark to mark."""


def stacked(
    stacks: Sequence[Stack], height: int, words: tuple[str, str], *, days: bool = False
) -> Chart:
    return drawn(
        [
            Bar(
                one.lower,
                one.upper,
                f"{_time(one.start, days)}: {one.lower:,} {words[0]}, {one.upper:,} {words[1]}",
                _time(one.start, days),
            )
            for one in stacks
        ],
        height,
    )


def drawn(given: Sequence[Bar], height: int) -> Chart:
    most = _ceiling(max((one.lower + one.upper for one in given), default=0))
    top, base = 6, height - 20
    scale = (base - top) / most
    step = 100 / max(1, len(given))
    bars: list[StackBar] = []
    for index, one in enumerate(given):
        below, above = one.lower * scale, one.upper * scale
        if not one.lower and not one.upper:
            continue
        bars.append(
            StackBar(
                round(index * step + step * 0.14, 2),
                round(step * 0.72, 2),
                round(base - below, 1),
                round(below, 1),
                round(base - below - above, 1),
                round(above, 1),
                one.said,
            )
        )
    parts = 4 if most % 4 == 0 else 2 if most % 2 == 0 else 1
    lines = tuple(
        (round(base - most * part / parts * scale, 1), most * part // parts)
        for part in range(parts, -1, -1)
    )
    every = max(1, len(given) // _LABELS)
    marks = tuple(
        (round(index * step, 2), one.mark)
        for index, one in enumerate(given)
        if index % every == 0 and index * step < 92
    )
    lower, upper = sum(one.lower for one in given), sum(one.upper for one in given)
    rows = tuple(
        (given[at].mark, sum(one.lower for one in part), sum(one.upper for one in part))
        for at in range(0, len(given), every)
        if (part := given[at : at + every])
    )
    return Chart(height, tuple(bars), lines, marks, lower, upper, most, rows)


def _ceiling(most: int) -> int:
    size = 1
    while True:
        for nice in _NICE:
            if nice * size >= max(4, most):
                return nice * size
        size *= 10


def _time(moment: str, days: bool) -> str:
    given = parsed(moment)
    return f"{given.day} {given:%b}" if days else f"{given:%H:%M}"
