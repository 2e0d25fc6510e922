"""Reading the pages: README and everything under `docs/`, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)


class Block(NamedTuple):
    """A fenced block: what stands behind the fence, the line of its first line, its text."""

    info: str
    line: int
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    info: str | None = None
    begun, lines = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if info is None and line.startswith("```"):
            info, begun, lines = line[3:].strip(), number + 1, []
        elif info is not None and line == "```":
            yield Block(info, begun, "\n".join(lines))
            info = None
        elif info is not None:
            lines.append(line)
    if info is not None:
        raise ValueError(f"the block at line {begun} is not closed")


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")
