from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MARKS = ("done", "failed", "next", "active")
"""What a node can be marked as: an outcome, and so a colour."""


class _Palette(NamedTuple):
    paper: str
    ink: str
    soft: str
    line: str
    box: str
    frame: str
    pill: str
    done: tuple[str, str]
    failed: tuple[str, str]
    next: tuple[str, str]
    active: tuple[str, str]


_LIGHT = _Palette(
    paper="#ffffff",
    ink="#1c2430",
    soft="#55606f",
    line="#8390a2",
    box="#f5f7fa",
    frame="#b4bfcd",
    pill="#3d4a5c",
    done=("#e5f5ec", "#2f8f5b"),
    failed=("#fdeaea", "#c93c3c"),
    next=("#fff5dc", "#b98100"),
    active=("#e6effd", "#2f6fd6"),
)
_DARK = _Palette(
    paper="#14181f",
    ink="#e4e9f0",
    soft="#a3aebd",
    line="#76849a",
    box="#1f2630",
    frame="#46536a",
    pill="#c3ccd9",
    done=("#16301f", "#4cbf83"),
    failed=("#3a1a1c", "#ef6b6b"),
    next=("#352a10", "#e0ab3a"),
    active=("#172a47", "#6ba3f5"),
)

_SHAPE = """
.milecastle text{font:500 13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;\
text-anchor:middle}
.milecastle .mc-heading{font-size:15px;font-weight:600;text-anchor:start}
.milecastle .mc-pill text{font-size:12px;font-weight:600}
.milecastle .mc-label text{font-size:11px;font-weight:400}
.milecastle .mc-node .mc-note{font-size:10px;font-weight:400}
.milecastle .mc-pause path{fill:none;stroke-width:2}
.milecastle .mc-node rect{stroke-width:1.25}
.milecastle .mc-edge path{fill:none;stroke-width:1.5;stroke-linecap:round}
.milecastle .mc-maybe path{stroke-dasharray:5 4}
.milecastle .mc-edge .mc-head{stroke:none}
.milecastle .mc-active rect,.milecastle .mc-failed rect,.milecastle .mc-next rect,\
.milecastle .mc-done rect{stroke-width:2}
.milecastle .mc-next rect{stroke-dasharray:5 4}
"""


def _rules(palette: _Palette) -> str:
    rules = [
        f".milecastle .mc-paper,.milecastle .mc-label rect{{fill:{palette.paper}}}",
        f".milecastle text{{fill:{palette.ink}}}",
        f".milecastle .mc-label text,.milecastle .mc-node .mc-note{{fill:{palette.soft}}}",
        f".milecastle .mc-pause circle{{fill:{palette.next[1]}}}",
        f".milecastle .mc-pause path{{stroke:{palette.paper}}}",
        f".milecastle .mc-edge path{{stroke:{palette.line}}}",
        f".milecastle .mc-edge .mc-head{{fill:{palette.line}}}",
        f".milecastle .mc-node rect{{fill:{palette.box};stroke:{palette.frame}}}",
        f".milecastle .mc-pill rect{{fill:{palette.pill};stroke:{palette.pill}}}",
        f".milecastle .mc-pill text{{fill:{palette.paper}}}",
    ]
    for mark in MARKS:
        fill, stroke = getattr(palette, mark)
        rules.append(f".milecastle .mc-node.mc-{mark} rect{{fill:{fill};stroke:{stroke}}}")
        rules.append(f".milecastle .mc-pill.mc-{mark} rect{{fill:{stroke};stroke:{stroke}}}")
    return "\n".join(rules)


def known_marks(marks: Mapping[str, str] | None) -> Mapping[str, str]:
    marks = marks or {}
    if wrong := sorted(set(marks.values()).difference(MARKS)):
        raise ValueError(f"no such mark: {', '.join(wrong)} (there are {', '.join(MARKS)})")
    return marks


def fills() -> dict[str, tuple[str, str, str]]:
    return {mark: (*getattr(_LIGHT, mark), _LIGHT.ink) for mark in MARKS}


# Renderers that do not know ``height:auto`` take it for 0: they skip what is inside ``@media``.
STYLE = (
    f"{_SHAPE}{_rules(_LIGHT)}\n"
    "@media screen{.milecastle{max-width:100%;height:auto}}\n"
    f"@media (prefers-color-scheme:dark){{\n{_rules(_DARK)}\n}}\n"
)
