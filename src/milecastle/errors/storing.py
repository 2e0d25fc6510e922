"""A store did not do what it was asked."""

from __future__ import annotations

from milecastle.errors.root import MilecastleError

__all__ = ["Conflict", "Corrupted", "FormatTooNew", "StoreError", "Unavailable"]


class StoreError(MilecastleError):
    """A store could not do what was asked."""

    code = "MC400"


class Conflict(StoreError):
    """Another writer appended to the thread first. This writer must stop.

    ``expected`` is the seq that this writer wanted; ``head`` is the thread's newest.
    """

    code = "MC401"

    def __init__(self, *, tenant: str, thread: str, expected: int, head: int) -> None:
        happened = (
            f"was deleted and begun anew: its head is seq {head} again, but not the one that this "
            "writer knew"
            if expected == head + 1
            else f"moved on: this writer wanted seq {expected} and the head is already {head}"
        )
        super().__init__(
            f"thread '{thread}' {happened}; "
            "another run owns the thread, so read it again before writing"
        )
        self.tenant = tenant
        self.thread = thread
        self.expected = expected
        self.head = head


class Corrupted(StoreError):
    """Stored bytes are damaged. ``place`` says where."""

    code = "MC402"

    def __init__(self, message: str, *, place: str) -> None:
        super().__init__(f"{message} at {place}")
        self.place = place


class Unavailable(StoreError):
    """The store cannot be reached, or was closed."""

    code = "MC403"


class FormatTooNew(StoreError):
    """The data was written by a newer format version than this library reads."""

    code = "MC404"

    def __init__(self, *, found: int, supported: int, place: str) -> None:
        super().__init__(
            f"{place} has format version {found}; this version of milecastle reads up to "
            f"{supported}: upgrade milecastle"
        )
        self.found = found
        self.supported = supported
        self.place = place
