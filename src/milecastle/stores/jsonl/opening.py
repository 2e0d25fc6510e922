"""From whole lines to what they say, and the errors for those that are not whole.

Every error names the file, the line and the byte where the line begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from milecastle.errors import Corrupted, FormatTooNew
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl.lines import BrokenLine, Line
from milecastle.stores.jsonl.shapes import FORMAT, HeaderShape, read_format, read_header

__all__ = ["broken", "decoded", "open_header"]

T = TypeVar("T")


def open_header(path: Path, line: Line, key: ThreadKey | None = None) -> HeaderShape:
    """The header of a file, if it is one of this format and of this thread."""
    found = decoded(path, line, read_format, number=1).format
    if found > FORMAT:
        raise FormatTooNew(found=found, supported=FORMAT, place=str(path))
    header = decoded(path, line, read_header, number=1)
    if key is not None and (header.tenant, header.thread) != (key.tenant, key.thread):
        raise Corrupted("the file belongs to another thread", place=_place(path, 0, 1))
    return header


def decoded(path: Path, line: Line, decode: Callable[[bytes], T], number: int | None = None) -> T:
    """What ``decode`` makes of a whole line; ``Corrupted``, with the path inside, if it refuses."""
    try:
        return decode(line.body)
    except (ValueError, LookupError) as error:
        raise Corrupted(
            f"a line of the log does not decode: {error}", place=_place(path, line.offset, number)
        ) from None


def broken(path: Path, line: BrokenLine, number: int | None = None, why: str = "") -> Corrupted:
    """The error for a line that is not whole, or not in its place."""
    place = _place(path, line.offset, number)
    if line.torn:
        return Corrupted(
            "the last line of the log is torn: its writer died while writing it, and it was never "
            "acknowledged; `milecastle repair` or `JsonlStore.repair` keeps a copy and cuts it "
            "off, and the thread goes on",
            place=place,
        )
    reason = why or "a line is not what was written"
    return Corrupted(f"the log is damaged: {reason}; restore it from a backup", place=place)


def _place(path: Path, offset: int, number: int | None) -> str:
    number = _number_of(path, offset) if number is None else number
    return f"{path}, line {number}, byte {offset}"


def _number_of(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return file.read(offset).count(b"\n") + 1
