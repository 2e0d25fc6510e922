"""Where declared files may lie: outputs inside of the root, and nowhere that is not theirs.

Before a node runs, what it declared as its outputs is removed. So an output may be neither the
root nor the workspace, nor hold anything that some node reads, nor lie behind a link that leads
elsewhere.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from milecastle.errors import FileRefused

__all__ = ["Places", "inside", "parts_of", "problem_of", "remove"]


class Places:
    """Finds the files of a root, and refuses to leave it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._safe: set[Path] = set()

    def output(self, path: str, node: str) -> Path:
        """Where an output is; ``FileRefused`` if that is not inside of the root."""
        found = self.root / path
        if found.parent not in self._safe:
            if not found.parent.resolve().is_relative_to(self.root):
                raise FileRefused(
                    f"the output '{path}' of node '{node}' lies behind a symbolic link that leads "
                    f"out of {self.root}: declare a path inside of it",
                    path=path,
                    node=node,
                )
            if found.parent.is_dir():
                self._safe.add(found.parent)
        return found

    def clear(self, path: str, node: str) -> None:
        """Remove an output before it is made anew, and make its folder."""
        found = self.output(path, node)
        remove(found)
        found.parent.mkdir(parents=True, exist_ok=True)


def remove(found: Path) -> None:
    """Remove whatever is there; a link goes, and what it leads to stays."""
    if found.is_dir() and not found.is_symlink():
        shutil.rmtree(found)
    else:
        found.unlink(missing_ok=True)


def problem_of(path: str, workspace: tuple[str, ...] | None) -> str | None:
    """Why a path cannot be an output, or ``None``. ``workspace`` is where it lies in the root."""
    parts = parts_of(path)
    if Path(path).is_absolute() or parts[0] == "..":
        return "lies outside of the root: declare a path inside of it"
    if parts == (".",):
        return "is the root itself: declare a file or a folder inside of it"
    if workspace is not None and _meet(parts, workspace):
        return "is in the workspace, or holds it: declare another place"
    return None


def parts_of(path: str) -> tuple[str, ...]:
    """A path without detours, part by part."""
    return tuple(os.path.normpath(path).replace("\\", "/").split("/"))


def inside(folder: Path, root: Path) -> tuple[str, ...] | None:
    """Where a folder lies in the root, or ``None`` if it does not."""
    relative = parts_of(os.path.relpath(os.path.realpath(folder), os.path.realpath(root)))
    return None if relative[0] == ".." else relative


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    short = min(len(one), len(other))
    return one[:short] == other[:short]
