"""A timeline's lanes and bars as they are drawn: shapes, colours and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from milecastle.server.pages.excerpts import short
from milecastle.server.pages.words import duration, number, plural
from milecastle.views.timeline import BY_HAND, BarKind, NodeBar, TimelineLane

BarShape = Literal["bar", "wait", "pause", "stairs", "hand"]

_SHAPES: Final[Mapping[BarKind, tuple[str, BarShape]]] = {
    "ran": ("work", "bar"),
    "running": ("run", "bar"),
    "failed": ("bad", "bar"),
    "items": ("work", "stairs"),
    "pause": ("back", "pause"),
    "answer": ("ask", "wait"),
    "sleep": ("sleep", "wait"),
    "worker": ("queue", "wait"),
    "hand": ("off", "hand"),
}
_ICONS: Final[Mapping[BarKind, tuple[str, str]]] = {
    "running": ("run", "run"),
    "failed": ("bad", "fail"),
    "answer": ("ask", "ask"),
    "sleep": ("sleep", "sleep"),
    "worker": ("soft", "queue"),
    "hand": ("soft", "person"),
}
_DONE: Final = ("good", "done")
_STAIRS: Final = 2.0
"""The least width of stairs in percent; each percent has at most two steps."""
_HIGH: Final = 20


class BarLook(msgspec.Struct, frozen=True, kw_only=True):
    """A bar. ``points`` outline the stairs, in a box of ``parts`` by 20."""

    kind: str
    shape: BarShape
    x: float
    width: float
    seq: int
    said: str
    is_left: bool
    parts: int = 0
    points: str = ""

    @property
    def end(self) -> float:
        return round(self.x + self.width, 2)


class LaneLook(msgspec.Struct, frozen=True, kw_only=True):
    """A lane. ``tone`` and ``icon`` are its last bar's, ``said`` counts tries, items or runs."""

    node: str
    tone: str
    icon: str
    said: str
    took: str
    bars: tuple[BarLook, ...]
    is_yet: bool


def lane_look(lane: TimelineLane, hand: Mapping[int, str]) -> LaneLook:
    own = [bar for bar in lane.bars if not bar.is_left]
    tone, icon = _ICONS.get((own or lane.bars)[-1].kind, _DONE) if lane.bars else ("soft", "queue")
    return LaneLook(
        node=lane.node,
        tone=tone,
        icon=icon,
        said=_counted(lane, own),
        took=_took(lane, own),
        bars=tuple(_bar_look(lane.node, bar, hand) for bar in lane.bars),
        is_yet=not lane.bars,
    )


def _counted(lane: TimelineLane, own: Sequence[NodeBar]) -> str:
    if lane.items > 1:
        return plural(lane.items, "item")
    if lane.tries > 1:
        return plural(lane.tries, "try", "tries")
    runs = sum(bar.merged for bar in own if bar.kind in ("ran", "running", "failed"))
    return f"\u00d7{number(runs)}" if runs > 1 else ""


def _took(lane: TimelineLane, own: Sequence[NodeBar]) -> str:
    if not lane.bars:
        return "not yet"
    return _lasting(lane.took) if own and lane.node != BY_HAND else ""


def _lasting(length: int) -> str:
    return duration(length / 1_000_000)


def _bar_look(node: str, bar: NodeBar, hand: Mapping[int, str]) -> BarLook:
    kind, shape = _SHAPES[bar.kind]
    heights = _steps(bar.at_once, int(bar.width * 2)) if bar.width >= _STAIRS else []
    if shape == "stairs" and not any(heights):
        shape = "bar"
    return BarLook(
        kind=kind,
        shape=shape,
        x=bar.x,
        width=bar.width,
        seq=bar.seq,
        said=_said(short(node), bar, hand) + (", on another branch" if bar.is_left else ""),
        is_left=bar.is_left,
        parts=len(heights),
        points=_points(heights) if shape == "stairs" else "",
    )


def _steps(at_once: Sequence[int], most: int) -> list[int]:
    size = -(-len(at_once) // max(1, most)) or 1
    return [max(at_once[at : at + size]) for at in range(0, len(at_once), size)]


def _points(heights: Sequence[int]) -> str:
    points = [f"0,{_HIGH}"]
    before = 0
    for at, height in enumerate((*heights, 0)):
        if height != before:
            points += [f"{at},{_top(one, heights)}" for one in (before, height)]
        before = height
    return " ".join(dict.fromkeys(points))


def _top(height: int, heights: Sequence[int]) -> float:
    return round(_HIGH - _HIGH * height / max(heights), 1)


def _said(name: str, bar: NodeBar, hand: Mapping[int, str]) -> str:
    length, place = _lasting(bar.stop - bar.start), f"checkpoint {bar.seq}"
    if bar.note:
        name = f"{name}, {short(bar.note)}"
    if bar.kind == "hand":
        return f"By hand: {hand.get(bar.seq, 'changed')}, {place}"
    if bar.merged > 1 and bar.kind != "items":
        return f"{name}, {_WORDS[bar.kind]} {number(bar.merged)} times in {length}, until {place}"
    match bar.kind:
        case "failed":
            error = f": {short(bar.error)}" if bar.error else ""
            return f"{name}, attempt {bar.attempt} failed after {length}{error}"
        case "items":
            most = f", at most {max(bar.at_once)} at once" if bar.at_once else ""
            failed = f", {plural(bar.failures, 'failed attempt')}" if bar.failures else ""
            return f"{plural(bar.items, 'item')} of {name}{most}{failed}, {length}, {place}"
        case "ran":
            items = f"{plural(bar.items, 'item')} of " if bar.items else ""
            tries = f", attempt {bar.attempt}" if bar.attempt > 1 else ""
            return f"{items}{name}{tries}, {length}, {place}"
        case _:
            return f"{name}, {_WORDS[bar.kind]} for {length}"


_WORDS: Final[Mapping[BarKind, str]] = {
    "ran": "ran",
    "running": "runs",
    "failed": "failed",
    "pause": "pauses before a retry",
    "answer": "waits for an answer",
    "sleep": "asleep",
    "worker": "waits for a worker",
}
