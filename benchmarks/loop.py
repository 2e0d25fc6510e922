"""The work that every peer does: one node that loops, an int and a growing list of strings.

Each step raises `n` by one and appends one new string of 100 bytes to `items`, through the
peer's own append reducer; a router sends the run back to the node until `n` has reached the end.
Graphs are compiled outside of the timed part, and each run has a fresh store and thread.
"""

from __future__ import annotations

from collections.abc import Mapping

STEPS = 1_000
TEXT_BYTES = 100


def text(n: int) -> str:
    """Return the string that step `n` appends."""
    return str(n).zfill(TEXT_BYTES)


def verify(state: Mapping[str, object], steps: int) -> None:
    """Refuse a time for work that was not done."""
    expected = [text(n) for n in range(steps)]
    if state["n"] != steps or state["items"] != expected:
        raise AssertionError(f"the loop of {steps} steps did not end in the expected state")
