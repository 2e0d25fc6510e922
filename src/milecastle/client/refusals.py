"""A server's problem documents as the exceptions that ``App`` raises."""

from __future__ import annotations

from typing import Final

import msgspec

from milecastle import errors
from milecastle.client.documents import ProblemAnswer, RunResult
from milecastle.client.effects import HttpAnswer
from milecastle.errors import (
    ExecutionError,
    MilecastleError,
    RequestRefused,
    ResumeRefused,
    RunCancelled,
    RunError,
    RunFailed,
    Unavailable,
)

UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
"""Statuses with which a server, or a proxy before it, says: later."""

_CLASSES: Final[dict[str, type[MilecastleError]]] = {
    kind.code: kind
    for kind in (getattr(errors, name) for name in errors.__all__)
    if isinstance(kind, type) and issubclass(kind, MilecastleError)
}


def unavailable(reason: str, seconds: float) -> Unavailable:
    return Unavailable(
        f"the server has not answered for {seconds:g} seconds ({reason}); whether the call took "
        "effect is unknown, and making it again with the same key= is safe"
    )


def error_of(answer: HttpAnswer) -> MilecastleError:
    """The exception for an error status, with its message and code.

    Of the class's attributes it has only the ``reasons``.
    """
    try:
        problem = msgspec.json.decode(answer.content, type=ProblemAnswer)
    except msgspec.MsgspecError:
        problem = ProblemAnswer()
    kind = _CLASSES.get(problem.code or "")
    detail = problem.detail or "there was no explanation: is it a Milecastle server?"
    if kind is None:
        return RequestRefused(
            f"the server refused the request (status {answer.status}, {problem.code}): {detail}",
            status=answer.status,
            problem=problem.code,
        )
    error = kind.__new__(kind)
    MilecastleError.__init__(error, detail)
    if isinstance(error, RunError):
        error.thread = error.run_id = None
    if isinstance(error, ExecutionError):  # its text is made of these, too
        error.cause, error.hint = Exception(), ""
    if isinstance(error, ResumeRefused):
        error.reasons = problem.reasons
    return error


def failure_of(result: RunResult) -> RunFailed | RunCancelled:
    thread, run_id, failure = result.thread, result.run_id, result.failure
    if result.status == "cancelled":
        return RunCancelled(thread=thread, run_id=run_id)
    what = f"{failure.error_type}: {failure.message}" if failure else "an unknown error"
    where = f" in node '{failure.node}'" if failure and failure.node else ""
    return RunFailed(
        f"run {run_id} of thread '{thread}' failed{where}: {what}; retry('{thread}') hands it over "
        "again",
        failure_type=failure.error_type if failure else "",
        node=failure.node if failure else None,
        thread=thread,
        run_id=run_id,
    )
