"""What became of a commit that got no answer.

A server that ends while it commits has, more often than not, committed. So nothing is guessed: the
entry with the writer's own id is there, or it is not. If it is not, the batch is sent again. The
first one may still be on its way; the key lets only one of them in, and it does not matter which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from milecastle.errors import Unavailable
from milecastle.stores.postgres.translating import Lost

__all__ = ["resolve"]


def resolve(
    attempts: Iterable[None], *, is_there: Callable[[], bool], send: Callable[[], bool]
) -> bool:
    """Whether a batch of unknown outcome is written in the end; ``False`` if it was refused.

    ``is_there`` reads whether it is written, ``send`` writes it and says whether it was let in.
    Both may raise ``Lost``. ``Unavailable`` if nothing was learned while there were attempts.
    """
    lost: Lost | None = None
    for _ in attempts:
        try:
            return is_there() or send() or is_there()
        except Lost as again:
            lost = again
    raise Unavailable(
        f"PostgreSQL was lost during a commit, and what became of it is not known yet: {lost}; "
        "read the thread before going on"
    ) from lost
