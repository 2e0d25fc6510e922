"""People who answer questions, and the records of a thread's answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


class Actor(msgspec.Struct, frozen=True):
    """The one who answers. ``how`` says whether the caller asserts it, or a token proves it.

    ``shown`` is the ``Interrupt.digest`` of the question as it was shown: an answer to a question
    that has changed since is refused. ``on_behalf_of`` is a second name, which is always asserted.
    """

    id: str
    how: Literal["asserted", "authenticated"] = "asserted"
    reason: str = ""
    shown: str | None = None
    on_behalf_of: str | None = None


class AnswerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer in a thread's log, or the end of a question at its deadline (``timed_out``).

    ``by`` is ``None`` if the caller did not say who answers. ``seq`` is its checkpoint, and
    ``digest`` that of the question as it was answered.
    """

    question: str
    seq: int
    time: datetime
    run_id: str
    answer: Any = None
    by: Actor | None = None
    digest: str | None = None
    timed_out: bool = False
