"""Draws the bar charts of the evidence pages from their figures.

Each file `docs/evidence/figures/NAME.json` becomes `docs/images/charts/NAME.svg`. A value is a
number, or the name of what a benchmark measured: `growth.sqlite_10x` is the field `sqlite_10x` of
`docs/evidence/figures/measured/growth.json`, which `python -m benchmarks growth --save` writes. A
figure must be stated on its page, and the page must show the chart.
`--check` writes nothing and fails when a chart is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

import msgspec

ROOT = Path(__file__).resolve().parent.parent
FIGURES = Path("docs/evidence/figures")
CHARTS = Path("docs/images/charts")

WIDTH, LEFT, RIGHT, BAR = 720, 270, 610, 18
"""The width, where bars begin and where the longest ends, and how high one is."""

STYLE = """\
  <style>
    .page { fill: #ffffff; stroke: #d0d7de }
    .bar0 { fill: #8c959f }
    .bar1 { fill: #0969da }
    text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
    .name { font-weight: 600 }
    .note { font-size: 12px; fill: #59636e }
    .end { text-anchor: end }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; stroke: #30363d }
      .bar0 { fill: #6e7681 }
      .bar1 { fill: #58a6ff }
      text { fill: #f0f6fc }
      .note { fill: #9198a1 }
    }
  </style>
"""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bars of one thing that was measured, in the order of the series."""

    name: str
    values: tuple[int | float, ...]


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a chart shows. The last series is ours; ``page`` states every value."""

    title: str
    unit: str
    better: Literal["higher", "lower"]
    page: str
    series: tuple[str, ...]
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.series) <= 2:
            raise ValueError("a chart has one or two series")
        if any(len(group.values) != len(self.series) for group in self.groups):
            raise ValueError("each group has one value for each series")


def load(source: Path) -> Figures:
    """Read a file of figures, with what benchmarks saved; `ValueError` for what none has."""
    raw: Any = msgspec.json.decode(source.read_bytes())
    for group in raw["groups"]:
        group["values"] = [
            _measured(source.parent / "measured", one) if isinstance(one, str) else one
            for one in group["values"]
        ]
    return msgspec.convert(raw, Figures)


def _measured(folder: Path, name: str) -> float:
    verb, _, field = name.partition(".")
    saved = msgspec.json.decode(
        (folder / f"{verb}.json").read_bytes(), type=dict[str, float | None]
    )
    value = saved.get(field)
    if value is None:
        raise ValueError(f"{verb}.json has no {field}: run `python -m benchmarks {verb} --save`")
    return value


def draw(figures: Figures) -> str:
    """Return the SVG of a chart: one group of bars below the other, on one scale from 0."""
    most = max(chain.from_iterable(group.values for group in figures.groups))
    step = BAR * len(figures.series) + 16
    height = 84 + step * len(figures.groups)
    note = f"{figures.unit}, {figures.better} is better"
    lines = [
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="name" x="24" y="30">{escape(figures.title)}</text>',
        f'<text class="note" x="24" y="50">{escape(note)}</text>',
        *_legend(figures.series),
    ]
    for number, group in enumerate(figures.groups):
        lines += _bars(group, 70 + number * step, most)
    inner = "\n".join(f"  {line}" for line in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">\n'
        f'  <title id="title">{escape(figures.title)}</title>\n'
        f'  <desc id="desc">{escape(_described(figures))}</desc>\n{STYLE}{inner}\n</svg>\n'
    )


def _legend(series: Sequence[str]) -> list[str]:
    if len(series) < 2:
        return []
    lines: list[str] = []
    for number, name in enumerate(series):
        y = 20 + number * 18
        lines.append(f'<rect class="bar{number}" x="560" y="{y}" width="12" height="12" rx="2"/>')
        lines.append(f'<text class="note" x="580" y="{y + 10}">{escape(name)}</text>')
    return lines


def _bars(group: Group, top: int, most: float) -> list[str]:
    middle = top + BAR * len(group.values) / 2 + 4
    lines = [f'<text class="end" x="{LEFT - 10}" y="{middle:g}">{escape(group.name)}</text>']
    ours = 2 - len(group.values)
    for number, value in enumerate(group.values):
        y, width = top + number * BAR, max(1.0, (RIGHT - LEFT) * value / most)
        lines.append(
            f'<rect class="bar{number + ours}" x="{LEFT}" y="{y}" width="{width:.1f}" '
            f'height="{BAR - 3}" rx="2"/>'
        )
        text = f'x="{LEFT + width + 6:.1f}" y="{y + 12}">{stated(value)}</text>'
        lines.append(f'<text class="note" {text}')
    return lines


def _described(figures: Figures) -> str:
    parts = [
        f"{group.name}: "
        + ", ".join(
            f"{name} {stated(value)}"
            for name, value in zip(figures.series, group.values, strict=True)
        )
        for group in figures.groups
    ]
    return f"In {figures.unit}. " + "; ".join(parts) + "."


def stated(value: float) -> str:
    """A value as pages write it."""
    return f"{value:,}"


def problems_of(name: str, figures: Figures, page: str) -> list[str]:
    """What is wrong between a chart and the text of its page."""
    values = sorted(set(chain.from_iterable(group.values for group in figures.groups)))
    wrong = [
        f"{figures.page} does not state {stated(value)}"
        for value in values
        if not re.search(rf"(?<![\d.,]){re.escape(stated(value))}(?!\d|[.,]\d)", page)
    ]
    if f"(../images/charts/{name}.svg)" not in page:
        wrong.append(f"{figures.page} does not show it")
    return wrong


def main(arguments: Sequence[str]) -> int:
    """Draw, or with `--check` compare; 1 if a chart is stale or does not fit its page."""
    parser = argparse.ArgumentParser(description="Draw the charts of the evidence pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the docs are")
    options = parser.parse_args(arguments)
    root: Path = options.root
    wrong: list[str] = []
    for source in sorted((root / FIGURES).glob("*.json")):
        figures = load(source)
        page = (root / figures.page).read_text("utf-8")
        found = problems_of(source.stem, figures, page)
        target, fresh = root / CHARTS / f"{source.stem}.svg", draw(figures)
        if not options.check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(fresh, encoding="utf-8", newline="\n")
        elif not target.exists() or target.read_text("utf-8") != fresh:
            found.append("it is stale: run scripts/charts.py")
        wrong += [f"{source.stem}: {one}" for one in found]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
