"""A thread cannot go on as asked."""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.errors.root import MilecastleError

__all__ = ["InvalidAnswer", "InvalidRequest", "RecoveryError", "ResumeRefused"]


class RecoveryError(MilecastleError):
    """A thread cannot go on as asked."""

    code = "MC300"


class ResumeRefused(RecoveryError):
    """The thread, or the file, will not be resumed; ``reasons`` gives every reason."""

    code = "MC301"

    def __init__(
        self, thread: str, reasons: Sequence[str], *, what: str = "thread", advice: str = ""
    ) -> None:
        self.thread = thread
        self.reasons = tuple(reasons)
        told = [*self.reasons, advice] if advice else self.reasons
        super().__init__(f"{what} '{thread}' was not resumed: " + "; ".join(told))


class InvalidRequest(RecoveryError):
    """The call names a thread, a checkpoint or an argument that is not there."""

    code = "MC302"


class InvalidAnswer(InvalidRequest):
    """An answer that the question does not take. The thread stays as it was."""

    code = "MC303"
