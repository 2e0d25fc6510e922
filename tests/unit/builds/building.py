"""Small file graphs for tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from milecastle import END, START, App, StateGraph
from milecastle.builds import command, files, root


class Job(TypedDict, total=False):
    n: int
    told: str


def upper(source: str, target: str) -> Callable[[], None]:
    """A node function that writes a file in capitals."""

    def run() -> None:
        (root() / target).write_text((root() / source).read_text().upper())

    return run


def two_step_app(
    first: Callable[..., Any] | None = None, second: Callable[..., Any] | None = None
) -> App[Job]:
    """in.txt -> mid.txt -> out.txt: a function, then a command, unless others are given."""
    graph = StateGraph(Job, name="two")
    given = first or upper("in.txt", "mid.txt")
    graph.add_node("first", files(inputs="in.txt", outputs="mid.txt")(given))
    copy = "import shutil; shutil.copy('mid.txt', 'out.txt')"
    graph.add_node(
        "second",
        files(inputs="mid.txt", outputs="out.txt")(second)
        if second
        else command("second", [sys.executable, "-c", copy], inputs="mid.txt", outputs="out.txt"),
    )
    graph.add_edges(START, "first", "second", END)
    return graph.compile()


def lay_out(folder: Path, text: str = "hello") -> Path:
    """A root with an input in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.txt").write_text(text)
    return folder
