"""Write two pictures: a recording of `milecastle demo` for the README, and a drawn graph.

The recording shows eight lines of a real session in a pseudo terminal: each line appears when it
was printed, but no pause is longer than two seconds, and a command is shown for at least one. Ids,
times and names of this machine are replaced. `--check` records again, writes nothing, and fails if
the lines or the graph differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Final, NamedTuple

from examples.parallel_research import app

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
DEMO: Final = "demo.svg"
GRAPH: Final = "graph.svg"

ID: Final = re.compile(r"\b0[0-9a-f]{7}-[0-9a-f]{4}-[0-9a-f-]{22}\b")
REPLACED: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "2026-11-16T09:00:00.000000Z"),
    (re.compile(r"(?<=kill -9 )\d+|(?<=lost: process )\d+"), "4242"),
    (re.compile(r"(?<=on host )'[^']*'"), "'laptop'"),
    (re.compile(r"\S*/milecastle-demo-\w+"), "/tmp/milecastle-demo"),  # noqa: S108 - text only
)
SHOWN: Final = re.compile(
    r"\$ (milecastle (run|resume)|kill) |(price|charge|ship): |thread order-1: "
)
"""The lines of the session in the picture: two commands, the kill, and their output."""
LINES: Final = 8
LONGEST: Final = 2.0
COMMAND: Final = 1.0
AT_THE_END: Final = 8.0
"""Seconds: the longest pause, the shortest one after a command, and how long the end is shown."""

COLUMNS, ROW, SIZE, WIDTH, MARGIN = 100, 19, 13, 7.83, 18
FONT: Final = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
STYLE: Final = f"""
text {{ font: {SIZE}px {FONT}; white-space: pre; fill: #1f2328 }}
rect {{ fill: #f6f8fa; stroke: #d1d9e0 }}
.command {{ fill: #0550ae; font-weight: 600 }}
.kill {{ fill: #b3141d; font-weight: 600 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }}
rect {{ fill: #161b22; stroke: #3d444d }}
.command {{ fill: #79c0ff }}
.kill {{ fill: #ff8078 }}
}}"""


class Printed(NamedTuple):
    """A line of the session, and the second at which it was printed."""

    at: float
    text: str


def record() -> list[Printed]:
    """Run the demo at a pseudo terminal."""
    import pty

    near, far = pty.openpty()
    command = [sys.executable, "-m", "milecastle", "demo", "--no-browser"]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, stdout=far, stderr=far, env=environment) as demo:
        os.close(far)
        began = time.monotonic()
        with os.fdopen(near, "rb", buffering=0) as terminal:
            lines = [
                Printed(time.monotonic() - began, raw.decode()) for raw in _lines(terminal.fileno())
            ]
    if demo.returncode:
        raise SystemExit("\n".join(["the demo failed:", *(line.text for line in lines)]))
    if "\x1b" in "".join(line.text for line in lines):
        raise SystemExit("the demo printed escape sequences: a picture would not show them")
    return cut(normalised(lines))


def _lines(terminal: int) -> Iterator[bytes]:
    """The lines that a terminal receives, each when it is complete."""
    rest = b""
    while True:
        try:
            rest += os.read(terminal, 65536)
        except OSError:  # the far side is closed
            return
        *whole, rest = rest.split(b"\r\n")
        yield from whole


def normalised(lines: list[Printed]) -> list[Printed]:
    """The lines without what is different each time. Different ids stay different."""
    ids: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return ids.setdefault(found[0], f"01a1dd54-9d94-778f-b6e6-4ab28a7584{len(ids):02x}")

    shown: list[Printed] = []
    for line in lines:
        text = ID.sub(numbered, line.text)
        for pattern, word in REPLACED:
            text = pattern.sub(word, text)
        shown.append(Printed(line.at, text))
    return shown


def cut(lines: list[Printed]) -> list[Printed]:
    """Return the lines that tell the story; fail if they are not eight."""
    shown = [line for line in lines if SHOWN.match(line.text)]
    if len(shown) != LINES:
        texts = "\n".join(line.text for line in lines)
        raise SystemExit(f"{len(shown)} lines match, not {LINES}: adapt SHOWN to the demo\n{texts}")
    return shown


def paced(lines: list[Printed]) -> list[Printed]:
    """The same lines, with pauses that can be read and none that is long."""
    moved, now, before = list[Printed](), 0.0, Printed(lines[0].at, "")
    for line in lines:
        pause = min(line.at - before.at, LONGEST)
        now += max(pause, COMMAND) if before.text.startswith("$ ") else pause
        moved.append(Printed(now, line.text))
        before = line
    return moved


def drawn(lines: list[Printed]) -> str:
    """The animated SVG. Without animation, or if less motion is wanted, all lines are shown."""
    width = round(max(len(line.text) for line in lines) * WIDTH) + 2 * MARGIN
    height = len(lines) * ROW + 2 * MARGIN
    whole = lines[-1].at + AT_THE_END
    rows, frames = list[str](), list[str]()
    for number, line in enumerate(lines):
        kind = "kill" if "$ kill" in line.text else "command" if line.text[:2] == "$ " else ""
        rows.append(
            f'<text class="{f"{kind} l{number}".strip()}" x="{MARGIN}" '
            f'y="{MARGIN + number * ROW + SIZE}">{escape(line.text, quote=False)}</text>'
        )
        frames.append(
            f".l{number} {{ animation: l{number} {whole:.1f}s step-end infinite }}\n"
            f"@keyframes l{number} {{ 0% {{ opacity: 0 }} "
            f"{100 * line.at / whole:.2f}%, 100% {{ opacity: 1 }} }}"
        )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>A run is killed and resumed: a recording of milecastle demo</title>",
            f"<style>{STYLE}\n@media (prefers-reduced-motion: no-preference) {{",
            *frames,
            "}\n</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
            *rows,
            "</svg>\n",
        ]
    )


def shown_in(svg: str) -> list[str]:
    """The lines that a recording shows."""
    return [unescape(text) for text in re.findall(r"<text [^>]*>(.*?)</text>", svg)]


def problems(lines: list[Printed], images: Path) -> list[str]:
    """What of the pictures is not as it was recorded and drawn now."""
    found: list[str] = []
    if shown_in((images / DEMO).read_text("utf-8")) != [line.text for line in lines]:
        found.append(f"{DEMO} is stale: `just recording` records it again")
    if (images / GRAPH).read_text("utf-8") != app.draw("svg"):
        found.append(f"{GRAPH} is stale: `just recording` draws it again")
    return found


def main(arguments: list[str]) -> int:
    """Write the pictures, or with `--check` compare them; 1 if they are stale."""
    lines = record()
    if arguments == ["--check"]:
        found = problems(lines, IMAGES)
        for problem in found:
            print(problem, file=sys.stderr)
        return 1 if found else 0
    (IMAGES / DEMO).write_text(drawn(paced(lines)), encoding="utf-8")
    (IMAGES / GRAPH).write_text(app.draw("svg"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
