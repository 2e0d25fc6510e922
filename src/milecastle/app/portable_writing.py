"""Writing portable files: whole or not at all, and on the disk before anything goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from milecastle.errors import Unavailable
from milecastle.stores.jsonl.files import append, sync, sync_folder
from milecastle.stores.jsonl.names import file_name

__all__ = ["add_file", "replace_file"]


def replace_file(path: Path, data: bytes) -> None:
    """Make ``path`` hold exactly these bytes, from one moment to the next."""
    _write(path.parent, data, lambda temporary: temporary.replace(path))


def add_file(folder: Path, node: str, milliseconds: int, data: bytes) -> Path:
    """Write ``{node}_{milliseconds}.pkl``, a name that no other file has: one later if need be."""
    name = file_name(node)

    def place(temporary: Path) -> None:
        nonlocal milliseconds
        while not _take_name(temporary, folder / f"{name}_{milliseconds}.pkl"):
            milliseconds += 1

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    _write(folder, data, place)
    return folder / f"{name}_{milliseconds}.pkl"


def _take_name(temporary: Path, path: Path) -> bool:
    """Give the file its name unless that is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a disk without links: two writers in one millisecond are not told apart
        if path.exists():
            return False
        temporary.rename(path)
    return True


def _write(folder: Path, data: bytes, place: Callable[[Path], object]) -> None:
    """Write a file under a passing name, then let ``place`` give it its own."""
    import tempfile

    temporary: Path | None = None
    try:
        fd, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
        temporary = Path(name)
        try:
            append(fd, data)
            sync(fd)
        finally:
            os.close(fd)
        place(temporary)
        sync_folder(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> Unavailable:
    reason = error.strerror or type(error).__name__
    return Unavailable(f"a checkpoint file cannot be written to {folder}: {reason}")
