"""The graph that is planned: layers of nodes, each with an input and a node before it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict
from unittest import mock

from milecastle import END, START, App, StateGraph
from milecastle.builds import FileRun, Workspace, command

WIDTH = 100
KILOBYTES = 16


class Nothing(TypedDict, total=False):
    told: str


def above(number: int) -> int | None:
    """The node before a node: the one that stands above it."""
    return number - WIDTH if number >= WIDTH else None


def sources(number: int) -> list[str]:
    """What a node reads: its own input, and what the node before it made."""
    before = above(number)
    made = [] if before is None else [f"out/{before}"]
    return [f"in/{number}", *made]


def make_app(nodes: int) -> App[Nothing]:
    """Each node is a command that joins its inputs and stores their first bytes."""
    graph = StateGraph(Nothing, name="layers")
    size = str(KILOBYTES * 1024)
    for number in range(nodes):
        script = f"cat {' '.join(sources(number))} | head -c {size} > out/{number}"
        graph.add_node(
            command(
                f"n{number}",
                ["sh", "-c", script],
                inputs=sources(number),
                outputs=[f"out/{number}"],
            )
        )
        before = above(number)
        graph.add_edge(START if before is None else f"n{before}", f"n{number}")
    for number in range(max(0, nodes - WIDTH), nodes):
        graph.add_edge(f"n{number}", END)
    return graph.compile()


def lay_out(folder: Path, nodes: int) -> None:
    """Write the inputs, and nothing else."""
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    for number in range(nodes):
        (folder / "in" / str(number)).write_bytes(os.urandom(KILOBYTES * 1024))


def file_run(folder: Path, nodes: int, *, rehash: bool = False) -> FileRun:
    return FileRun(make_app(nodes), Workspace(folder / ".milecastle"), rehash=rehash)


def build_at_once(folder: Path, nodes: int) -> None:
    """Bring a workspace up to date without waiting for the disk, or starting any program."""
    lay_out(folder, nodes)

    def join(node: object, arguments: list[str]) -> object:
        number = int(arguments[-1].rpartition("/")[2])
        data = b"".join((folder / name).read_bytes() for name in sources(number))
        (folder / "out" / str(number)).write_bytes(data[: KILOBYTES * 1024])
        return mock.DEFAULT

    target = "milecastle.builds.nodes.CommandNode._run"
    with mock.patch(target, autospec=True, side_effect=join), not_durable():
        file_run(folder, nodes).run()


@contextmanager
def not_durable() -> Generator[None]:
    """Nothing is forced to the disk: only for laying out."""
    with mock.patch.object(os, "fsync"), mock.patch.object(os, "fdatasync"):
        yield


def main(folder: str, nodes: str) -> None:
    """An incremental run in a separate process."""
    result = file_run(Path(folder), int(nodes)).run()
    print(len(result.executed), len(result.reused))


if __name__ == "__main__":
    main(*sys.argv[1:])
