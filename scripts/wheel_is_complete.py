"""Says whether a built wheel holds everything under `src/milecastle`, and nothing else.

A module, a typing marker or an SQL file that is left out of the wheel is only missed by users:
the tests of a source tree never see it. Nor do they see a file too many.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
ALSO = {"milecastle/cli/errors.md"}
"""What the wheel holds from elsewhere: the page of error codes."""


def _wanted(source: Path) -> set[str]:
    files = (path for path in source.rglob("*") if path.is_file())
    found = {p.relative_to(source).as_posix() for p in files if "__pycache__" not in p.parts}
    return found | ALSO


def _shipped(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def missing(wheel: Path, source: Path) -> list[str]:
    """Return the files of the source tree that the wheel does not hold."""
    return sorted(_wanted(source) - _shipped(wheel))


def surplus(wheel: Path, source: Path) -> list[str]:
    """Return the files of the wheel that are neither in the source tree nor its metadata."""
    return sorted(
        name
        for name in _shipped(wheel) - _wanted(source)
        if not name.split("/", 1)[0].endswith(".dist-info")
    )


def main(arguments: list[str]) -> int:
    """Check the wheel named on the command line; 1 if something is missing."""
    lost = missing(Path(arguments[0]), SOURCE)
    for name in lost:
        print(f"not in the wheel: {name}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
