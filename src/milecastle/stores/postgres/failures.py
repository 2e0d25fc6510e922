"""A failure as the text that stands beside its run: JSON, in the fields' order.

Reading is strict: text that no writer of ours could have stored is ``Corrupted``, never quoted.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from milecastle.errors import Corrupted
from milecastle.model.failure import Failure, FailureClass
from milecastle.stores.postgres.text import escape, unescape

__all__ = ["failure_from", "failure_to"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_Number = Annotated[int, msgspec.Meta(ge=_LOWEST, le=_HIGHEST)]


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields as they are stored, texts escaped. The run's id is that of the row."""

    failure_class: FailureClass
    resumable: bool
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: _Number
    time: _Number
    node: str | None


_DECODER = msgspec.json.Decoder(_Stored)


def failure_to(failure: Failure) -> str:
    """The text of a failure; ``OverflowError`` for a number that no other store would keep."""
    if not (_LOWEST <= failure.attempt <= _HIGHEST and _LOWEST <= failure.time <= _HIGHEST):
        raise OverflowError("a number of a failure has more than 64 bits")
    stored = _Stored(
        failure.failure_class,
        failure.resumable,
        escape(failure.error_type),
        escape(failure.message),
        tuple(map(escape, failure.traceback)),
        tuple(map(escape, failure.causes)),
        failure.attempt,
        failure.time,
        None if failure.node is None else escape(failure.node),
    )
    return msgspec.json.encode(stored).decode()


def failure_from(run_id: str, text: str) -> Failure:
    """The failure as it was committed."""
    try:
        stored = _DECODER.decode(text)
    except msgspec.DecodeError:
        raise Corrupted("a value that was never written", place="runs.failure") from None
    return Failure(
        run_id=run_id,
        failure_class=stored.failure_class,
        resumable=stored.resumable,
        error_type=unescape(stored.error_type),
        message=unescape(stored.message),
        traceback=tuple(map(unescape, stored.traceback)),
        causes=tuple(map(unescape, stored.causes)),
        attempt=stored.attempt,
        time=stored.time,
        node=None if stored.node is None else unescape(stored.node),
    )
