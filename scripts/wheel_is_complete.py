"""Says whether a built wheel holds everything under `src/milecastle`.

A module, a typing marker or an SQL file that is left out of the wheel is only missed by users:
the tests of a source tree never see it.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
ALSO = {"milecastle/cli/errors.md"}
"""What the wheel holds from elsewhere: the page of error codes."""


def missing(wheel: Path, source: Path) -> list[str]:
    """Return the files of the source tree that the wheel does not hold."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    files = (path for path in source.rglob("*") if path.is_file())
    wanted = {p.relative_to(source).as_posix() for p in files if "__pycache__" not in p.parts}
    return sorted((wanted | ALSO) - shipped)


def main(arguments: list[str]) -> int:
    """Check the wheel named on the command line; 1 if something is missing."""
    lost = missing(Path(arguments[0]), SOURCE)
    for name in lost:
        print(f"not in the wheel: {name}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
