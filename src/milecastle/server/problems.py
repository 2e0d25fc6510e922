"""Errors as HTTP answers: problem documents (RFC 9457) with our codes.

Rules:

- ``STATUSES`` is the one map from our errors to statuses. It has every class in ``errors.py``.
- The server's own refusals, before it calls anything of ours, are ``HttpProblem``s.
- Any other exception is a 500 without details: its text may contain state values. Its type and
  place are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from milecastle import errors
from milecastle.errors import MilecastleError, ResumeRefused, RunInProgress, place_of
from milecastle.server.redaction import Redact, without_values
from milecastle.views.values import as_json

_log = logging.getLogger("milecastle.server")

STATUSES: Final[Mapping[type[MilecastleError], int]] = {
    errors.MilecastleError: 500,
    errors.DefinitionError: 500,
    errors.RunError: 500,
    errors.ExecutionError: 500,
    errors.MaxStepsExceeded: 500,
    errors.CycleDetected: 500,
    errors.NodeTimeout: 500,
    errors.RunTimeout: 500,
    errors.TimedOut: 500,
    errors.StepFailed: 500,
    errors.RunCancelled: 409,
    errors.InvalidUpdate: 500,
    errors.RoutingError: 500,
    errors.AttemptsExhausted: 500,
    errors.ProcessLost: 500,
    errors.RunFailed: 500,
    errors.CommandFailed: 500,
    errors.FileRefused: 500,
    errors.RecoveryError: 409,
    errors.ResumeRefused: 409,
    errors.InvalidRequest: 400,
    errors.InvalidAnswer: 422,
    errors.AlreadyAnswered: 409,
    errors.NotAsked: 409,
    errors.MailboxFull: 409,
    errors.ThreadNotFound: 404,
    errors.StoreError: 503,
    errors.Conflict: 409,
    errors.RunInProgress: 409,
    errors.MemoryChanged: 409,
    errors.Corrupted: 500,
    errors.Unavailable: 503,
    errors.ShardMoved: 503,
    errors.FormatTooNew: 500,
    errors.CodecError: 500,
    errors.UnserializableState: 422,
    errors.UntrustedFile: 422,
    errors.EncryptionError: 500,
    errors.NoKeyring: 409,
    errors.KeyNotFound: 409,
    errors.PlaintextRefused: 409,
    errors.NoObjects: 409,
    errors.RequestRefused: 500,
}
"""A client can fix 4xx: 409 by looking again at the thread, 400 and 422 by asking for something
else. 500 is a run or data that is broken, 503 a store that does not answer."""


class HttpProblem(msgspec.Struct, frozen=True):
    code: str
    title: str


UNAUTHORIZED: Final = HttpProblem("MC601", "no valid token")
FORBIDDEN: Final = HttpProblem("MC602", "the token does not have the scope")
FOREIGN: Final = HttpProblem("MC603", "the Host or the Origin is not accepted")
NOT_FOUND: Final = HttpProblem("MC604", "it does not exist")
NO_THREAD: Final = HttpProblem(errors.ThreadNotFound.code, "there is no such thread")
TOO_LARGE: Final = HttpProblem("MC605", "the request is too large")
UNREADABLE: Final = HttpProblem("MC606", "the request cannot be read")
TOO_MANY: Final = HttpProblem("MC607", "too many requests are open")
EXPIRED: Final = HttpProblem("MC608", "the token has expired")
NO_ISSUER: Final = HttpProblem("MC609", "the issuer does not answer")
NOT_LOGGED_IN: Final = HttpProblem("MC610", "the login at the issuer failed")


class Refused(Exception):
    def __init__(
        self,
        problem: HttpProblem,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = problem
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457. ``code`` is ours: ``milecastle explain CODE`` explains it; ``null`` for a bug.

    ``reasons`` has every reason why a thread was not resumed.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str | None
    reasons: tuple[str, ...] = ()


def status_of(error: MilecastleError) -> int:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_response(error: Exception) -> Response:
    document, headers = problem_document(error)
    return Response(
        as_json(document), document.status, headers, media_type="application/problem+json"
    )


def problem_document(error: Exception) -> tuple[ProblemDocument, Mapping[str, str]]:
    if isinstance(error, Refused):
        found, problem = _document(error.status, error.problem.code, error.detail), error.problem
        return msgspec.structs.replace(found, title=problem.title), error.headers
    if isinstance(error, MilecastleError):
        reasons = error.reasons if isinstance(error, ResumeRefused) else ()
        found = _document(status_of(error), error.code, _public(error))
        return msgspec.structs.replace(found, reasons=reasons), {}
    _log.error("a request raised %s at %s", type(error).__name__, place_of(error))
    return _document(500, None, "unexpected error: the log of the server has its place"), {}


def shown_message(error: MilecastleError, redact: Redact | None) -> str:
    return problem_document(without_values(error, redact))[0].detail


def _public(error: MilecastleError) -> str:
    return error.public_message if isinstance(error, RunInProgress) else error.message


def _document(status: int, code: str | None, detail: str) -> ProblemDocument:
    return ProblemDocument(
        type=f"urn:milecastle:{code}" if code else "about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
    )
