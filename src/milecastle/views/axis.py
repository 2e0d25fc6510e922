"""The time axis of a timeline: idle time folded, so that a thread's work can be seen.

A durable thread works for seconds and waits for hours. The axis is a pure function of when tasks
ran: ``folded_axis`` makes its pieces, and ``TimeAxis.x`` maps a time to percent of the width.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

TimeSpan = tuple[int, int]

_IDLE: Final = 5_000_000
_OF_WORK: Final = 10
_BANDS: Final = 6
_NARROW, _WIDE = 8.0, 12.0


class AxisPiece(NamedTuple):
    """An interval in microseconds, and its place in percent. ``is_band``: it is folded."""

    start: int
    stop: int
    x: float
    width: float
    is_band: bool


class TimeAxis(NamedTuple):
    pieces: tuple[AxisPiece, ...]

    def x(self, time: int) -> float:
        """A time's place in percent; before the first piece 0, after the last 100."""
        place = bisect_right(self.pieces, time, key=lambda piece: piece.start) - 1
        if place < 0:
            return 0.0
        piece = self.pieces[place]
        part = min(time, piece.stop) - piece.start
        return piece.x + piece.width * part / max(1, piece.stop - piece.start)


def clock_axis(first: int, last: int) -> TimeAxis:
    return TimeAxis((AxisPiece(first, last, 0.0, 100.0, False),))


def folded_axis(busy: Iterable[TimeSpan], first: int, last: int) -> TimeAxis:
    """Fold long idle intervals: over 5 s, and over a tenth of all work.

    At most six are folded; of more, those with the least work between them are merged. Each takes 8
    to 12 % of the width, and the others share the rest by their lengths.
    """
    worked = _joined(busy, first, last)
    least = max(_IDLE, sum(stop - start for start, stop in worked) // _OF_WORK)
    edges = [first, *(edge for span in worked for edge in span), last]
    bands = [
        (start, stop)
        for start, stop in zip(edges[::2], edges[1::2], strict=True)
        if stop - start > least
    ]
    while len(bands) > _BANDS:
        nearest = min(range(len(bands) - 1), key=lambda at: bands[at + 1][0] - bands[at][1])
        bands[nearest : nearest + 2] = [(bands[nearest][0], bands[nearest + 1][1])]
    return _placed(bands, first, last)


def _joined(spans: Iterable[TimeSpan], first: int, last: int) -> list[TimeSpan]:
    found: list[TimeSpan] = []
    for start, stop in sorted((max(first, one), min(last, other)) for one, other in spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start <= stop:
            found.append((start, stop))
    return found


def _placed(bands: list[TimeSpan], first: int, last: int) -> TimeAxis:
    longest = max((stop - start for start, stop in bands), default=1)
    widths = {span: _NARROW + (_WIDE - _NARROW) * (span[1] - span[0]) / longest for span in bands}
    edges = sorted({first, last, *(edge for span in bands for edge in span)})
    spans = [*pairwise(edges)] or [(first, last)]
    rest = sum(stop - start for start, stop in spans if (start, stop) not in widths)
    room = 100.0 - sum(widths.values())
    stretch = 1.0 if rest else 100.0 / (100.0 - room or 1.0)
    pieces: list[AxisPiece] = []
    x = 0.0
    for span in spans:
        is_band = span in widths
        if is_band:
            width = widths[span] * stretch
        else:
            width = room * (span[1] - span[0]) / rest if rest else 100.0
        pieces.append(AxisPiece(*span, x, width, is_band))
        x += width
    return TimeAxis(tuple(pieces))
