"""Describing a failure: types, places and messages. Never values of the state, never locals."""

from __future__ import annotations

from collections.abc import Iterator

from milecastle.errors import CodecError, ExecutionError, RunError
from milecastle.model.failure import RESUMABLE, Failure, FailureClass

__all__ = ["describe"]


def describe(error: BaseException, *, run_id: str, node: str | None, time: int) -> Failure:
    """The failure record of a run that ended with ``error``."""
    cause = error.cause if isinstance(error, ExecutionError) else error
    failure_class = _class_of(error)
    return Failure(
        run_id=run_id,
        failure_class=failure_class,
        resumable=RESUMABLE[failure_class],
        error_type=type(cause).__qualname__,
        message=_storable(str(cause)),
        traceback=tuple(_frames(cause)),
        causes=tuple(_storable(f"{type(link).__qualname__}: {link}") for link in _chain(cause)),
        attempt=1,
        time=time,
        node=node,
    )


def _class_of(error: BaseException) -> FailureClass:
    return "execution" if isinstance(error, RunError | CodecError) else "system"


def _storable(text: str) -> str:
    """A message as every store can keep it: without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def _frames(error: BaseException) -> Iterator[str]:
    import traceback

    for frame in traceback.extract_tb(error.__traceback__):
        yield f"{frame.filename}:{frame.lineno} in {frame.name}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    link = error.__cause__ or error.__context__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
