"""Signals that end a task without a failure of its own.

``Paused``: it waits for a person, a time or a message. The others end a flow's function; they
are not exceptions, so code that catches ``Exception`` cannot continue it.
"""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.errors import MilecastleError
from milecastle.model.interrupt import Interrupt


class Paused(BaseException):
    """Ends an attempt that cannot continue now. Not an error: do not catch it.

    ``label`` identifies the wait in its step. It ends with an answer to ``question``, at ``until``
    (in microseconds since 1970), or with a message in one of the ``topics``, each given with the
    last seen message's number: whichever comes first.
    """

    def __init__(
        self,
        label: str,
        question: Interrupt | None = None,
        until: int | None = None,
        topics: tuple[tuple[str, int], ...] = (),
    ) -> None:
        super().__init__(label)
        self.label = label
        self.question = question
        self.until = until
        self.topics = topics

    @property
    def each(self) -> Sequence[Paused]:
        return (self,)


class PausedFlow(Paused):
    """Ends a flow that waits in several parts; it resumes when one wait has ended."""

    def __init__(self, each: Sequence[Paused]) -> None:
        super().__init__(each[0].label)
        self._each = each

    @property
    def each(self) -> Sequence[Paused]:
        return self._each


class Released(BaseException):
    pass


class BeyondRecord(BaseException):
    pass


class StepRefused(Exception):
    """Ends a step call that cannot run elsewhere, or whose result cannot be used."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class FlowStopped(BaseException):
    """Ends a flow that may not write: an entry was refused, or the code differs from the record."""

    def __init__(self, error: MilecastleError, *, differs: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.differs = differs
