"""The signal that pauses a task without a failure: it waits for a person, a time or a message."""

from __future__ import annotations

from milecastle.model.interrupt import Interrupt


class Paused(BaseException):
    """Ends an attempt that cannot continue now. Not an error: do not catch it.

    ``label`` identifies the wait in its step. It ends with an answer to ``question``, at ``until``
    (in microseconds since 1970), or with a message of one of the ``topics``, each given with the
    number of the last message seen: whichever comes first.
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
