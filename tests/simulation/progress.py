"""Which seeds a long form has done on this code, so that it may be run in several pieces.

With ``MILECASTLE_RESUME`` (``just proof-fleet --resume``) it leaves out those that are in its file,
``build/proofs/NAME-DIGEST``: pieces that broke nothing. The digest is of the package and the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path

__all__ = ["note_done", "pieces"]

_ROOT = Path(__file__).parents[2]
_CODE = ("src", "tests/model", "tests/simulation", "tests/recovery/simulating.py")


def pieces(name: str, first: int, count: int, size: int) -> Iterator[range]:
    """The seeds from ``first`` on in pieces, without those that are done."""
    known = _file(name)
    is_resumed = os.environ.get("MILECASTLE_RESUME") and known.exists()
    done = known.read_text().splitlines() if is_resumed else []
    for start in range(first, first + count, size):
        piece = range(start, min(start + size, first + count))
        if _named(piece) not in done:
            yield piece


def note_done(name: str, piece: range) -> None:
    """Note that a piece was made on this code, and broke nothing."""
    _file(name).parent.mkdir(parents=True, exist_ok=True)
    with _file(name).open("a") as known:
        known.write(f"{_named(piece)}\n")


def _named(piece: range) -> str:
    return f"{piece.start} {piece.stop}"


def _file(name: str) -> Path:
    return _ROOT / "build" / "proofs" / f"{name}-{_digest()}"


@cache
def _digest() -> str:
    digest = blake2b(digest_size=8)
    for place in _CODE:
        found = _ROOT / place
        for path in sorted(found.rglob("*") if found.is_dir() else [found]):
            if path.suffix in (".py", ".sql"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
