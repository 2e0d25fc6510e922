"""What became of each thread that a form was about: one that is refused stops no other."""

from __future__ import annotations

from collections.abc import Awaitable

from milecastle.errors import MilecastleError
from milecastle.server.problems import Refused, shown_message
from milecastle.server.redaction import Redact

__all__ = ["ThreadOutcome", "outcome_of"]

ThreadOutcome = tuple[str, str, str]
"""A thread, what became of it, and the code of the error if it was refused."""


async def outcome_of(
    thread: str, doing: Awaitable[str], redact: Redact | None = None
) -> ThreadOutcome:
    """Do something to a thread, which says what became of it."""
    try:
        return thread, await doing, ""
    except MilecastleError as error:
        return thread, shown_message(error, redact), error.code
    except Refused as error:
        return thread, error.detail, error.problem.code
