"""Draws a flame graph of the processor time of each section of `python -m benchmarks cpu`.

The timer of the process rings after every few milliseconds of processor time; then the stack of
each thread is noted with the processor time that this thread took since the last ring. What a C
function takes is seen at the line that called it.
Each section becomes `docs/evidence/flames/NAME.svg`: a box is a function, its width the share of
the time in which it was on the stack, its title the share and the most expensive line.

    python -m scripts.flames            all sections
    python -m scripts.flames jsonl      one of them; with --lines its most expensive lines, as text
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import clock_gettime, process_time, pthread_getcpuclockid
from types import FrameType
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks import fanout, fleet_speed, milecastle_loop, stores
from benchmarks.bare import Clock
from benchmarks.cpu import NAMES
from benchmarks.postgres_server import fresh_schema, postgres_server

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "evidence" / "flames"
WIDTH, ROW, LEAST = 720, 17, 0.004
"""The width of a drawing, the height of a box, and the least share that is drawn."""

PERIOD = 0.001

Place = tuple[str, str, int]
"""File, function and line."""
Stack = tuple[Place, ...]


class Sampler:
    """A clock of a benchmark: between its first reading and its second, stacks are noted."""

    def __init__(self) -> None:
        self.stacks: Counter[Stack] = Counter()
        self._used: dict[int, float] = {}
        self._main = get_ident()
        self._is_on = False

    def __call__(self) -> float:
        """Switch on or off; the processor time."""
        self._is_on = not self._is_on
        if self._is_on:
            self._used = {self._main: clock_gettime(pthread_getcpuclockid(self._main))}
            signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, PERIOD * self._is_on, PERIOD)
        return process_time()

    def _note(self, number: int, frame: FrameType | None) -> None:
        for thread, found in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
            now = clock_gettime(pthread_getcpuclockid(thread))
            took, self._used[thread] = now - self._used.get(thread, now), now
            if took > 0:
                stack = stack_of(frame if thread == self._main else found)
                self.stacks[stack] += round(took * 1e6)


def stack_of(frame: FrameType | None) -> Stack:
    """The places of a stack, from the outermost inwards, without what drives the measurement."""
    places: list[Place] = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.endswith(("flames.py", "contextlib.py")):
            places.append((short(code.co_filename), code.co_name, frame.f_lineno))
        frame = frame.f_back
    return tuple(place for place in reversed(places) if "runpy" not in place[0])


def short(path: str) -> str:
    """A file as it is shown: from the package on, or its name."""
    for package in ("milecastle", "psycopg_pool", "psycopg", "benchmarks"):
        if f"/{package}/" in path:
            inside = path.rpartition(f"/{package}/")[2]
            return inside if package == "milecastle" else f"{package}/{inside}"
    return path.rpartition("/")[2]


def sections(folder: Path, cluster: Cluster, clock: Clock) -> dict[str, Callable[[], object]]:
    """What is sampled, by the names of `benchmarks.cpu`."""
    steps = 1_000

    def sqlite(query: str = "") -> str:
        return f"sqlite:///{tempfile.mkdtemp(dir=folder)}/loop.db{query}"

    def in_schema(work: Callable[[str], object]) -> None:
        with fresh_schema(cluster) as schema:
            work(cluster.url_of(schema))

    return {
        "no_store": lambda: [milecastle_loop.no_store(steps, clock) for _ in range(30)],
        "memory": lambda: [milecastle_loop.memory(steps, clock) for _ in range(20)],
        "sqlite_normal": lambda: stores.ours(sqlite("?synchronous=normal"), 5 * steps, clock),
        "sqlite_full": lambda: stores.ours(sqlite(), 2 * steps, clock),
        "jsonl": lambda: stores.ours(f"file://{tempfile.mkdtemp(dir=folder)}", 2 * steps, clock),
        "sqlite_group": lambda: stores.our_group(sqlite(), 200, 25, clock),
        "fanout_item": lambda: fanout.ours(5 * steps, clock),
        "postgres": lambda: in_schema(lambda url: stores.ours(url, 2 * steps, clock)),
        "postgres_group": lambda: in_schema(lambda url: stores.our_group(url, 200, 25, clock)),
        "fleet_run": lambda: fleet_speed.worked(cluster, steps, 1, clock),
    }


def draw(name: str, samples: Counter[Stack]) -> str:
    """The SVG of a flame graph."""
    total = sum(samples.values()) or 1
    boxes: list[str] = []
    depth = max((len(stack) for stack in samples), default=1)
    height = _draw_level(samples, 0, 0.0, total, depth, boxes)
    top = (depth - height) * ROW
    box = f"0 {top - 24} {WIDTH} {height * ROW + 26}"
    title = f"{name}: {total / 1e6:.2f} s of the processor"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" viewBox="{box}">',
        f"<title>{escape(title)}</title>",
        "<desc>Flame graph: a box is a function, its width its share of the time.</desc>",
        "<style>text{font:11px monospace;pointer-events:none}",
        "@media (prefers-color-scheme: dark){.head{fill:#f0f6fc}}</style>",
        f'<text class="head" x="2" y="{top - 8}">{escape(title)}</text>',
        *boxes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _draw_level(
    samples: Counter[Stack], level: int, left: float, total: int, depth: int, boxes: list[str]
) -> int:
    """Draw the boxes of one level and all above it; how many levels there are."""
    groups: dict[tuple[str, str], Counter[Stack]] = {}
    for stack, count in samples.items():
        if len(stack) > level:
            groups.setdefault(stack[level][:2], Counter())[stack] += count
    highest = level
    for (file, function), own in sorted(groups.items()):
        share = sum(own.values()) / total
        if share < LEAST:
            continue
        lines = Counter({stack[level][2]: 0 for stack in own})
        for stack, count in own.items():
            lines[stack[level][2]] += count
        y, width = (depth - level - 1) * ROW, share * WIDTH
        label = f"{function} {file}"[: int(width / 6.7)]
        shade = 60 + sum(map(ord, file)) % 30
        boxes.append(
            f"<g><title>{escape(function)}, {escape(file)}: {share:.1%}, most at line "
            f'{lines.most_common(1)[0][0]}</title><rect x="{left:.1f}" y="{y}" '
            f'width="{width:.1f}" height="{ROW - 1}" fill="hsl({shade - 35},85%,{shade}%)"/>'
            f'<text x="{left + 2:.1f}" y="{y + 12}">{escape(label)}</text></g>'
        )
        highest = max(highest, _draw_level(own, level + 1, left, total, depth, boxes))
        left += width
    return max(highest, level + bool(groups))


def hottest(samples: Counter[Stack], count: int = 25) -> str:
    """The places at which most samples were taken, as text."""
    total = sum(samples.values()) or 1
    found: Counter[Place] = Counter()
    for stack, number in samples.items():
        found[stack[-1]] += number
    return "\n".join(
        f"{number / total:6.1%}  {file}:{line} {function}"
        for (file, function, line), number in found.most_common(count)
    )


def main() -> None:
    """Sample and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--lines", action="store_true", help="print lines, and draw nothing")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, postgres_server() as cluster:
        if cluster is None:
            sys.exit("there is no PostgreSQL here")
        for section in chosen.names or NAMES:
            sampler = Sampler()
            sections(Path(name), cluster, sampler)[section]()
            if chosen.lines:
                print(f"{section}\n{hottest(sampler.stacks)}")
            else:
                FOLDER.mkdir(parents=True, exist_ok=True)
                (FOLDER / f"{section}.svg").write_text(draw(section, sampler.stacks), "utf-8")


if __name__ == "__main__":
    main()
