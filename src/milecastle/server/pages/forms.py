"""Forms: read with limits, and only with the CSRF token of the caller's own session.

The token is the session's HMAC: another site cannot read it, and another session's does not fit. A
caller without a session has a token too, an empty session's: there its ``Origin`` counts. Every
form must have one, and it has been compared.

In fields, the filter ``segment`` percent-encodes text that names something: browsers change line
ends when they send it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any, Final, TypeVar, get_origin
from urllib.parse import parse_qsl, unquote

import msgspec
import msgspec.structs
from starlette.datastructures import Headers

from milecastle.errors import MilecastleError
from milecastle.server.access import credential
from milecastle.server.problems import FOREIGN, UNREADABLE, Refused, shown_message
from milecastle.server.redaction import Redact

T = TypeVar("T", bound=msgspec.Struct)

FORM: Final = "application/x-www-form-urlencoded"
_OWN: Final = re.compile(r"/(?![/\\])[\x21-\x7e]*")
"""A path of this server: not ``//host``, and nothing that a browser takes for it."""
_FIELDS: Final = 1100
"""How many fields a form may have."""


def own_path(path: str) -> str:
    """A path that leads back to this server, or its first page."""
    return path if _OWN.fullmatch(path) else "/"


def csrf_token(headers: Headers) -> str:
    session = credential(headers).text.encode("utf-8", "surrogateescape")
    return hmac.new(session, b"csrf", sha256).hexdigest()


def decode_form(kind: type[T], body: bytes, headers: Headers) -> T:
    """A form's fields in their types.

    Raises:
        Refused: it is not a form, is too large, has other fields, or does not have the token.
    """
    try:
        fields = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_FIELDS,
        )
    except ValueError:
        raise Refused(UNREADABLE, 400, "the form cannot be read, or is too long") from None
    given: dict[str, list[str]] = {}
    for name, text in fields:
        given.setdefault(name, []).append(text)
    sent = given.pop("csrf", [""])[0].encode("utf-8", "surrogateescape")
    is_own = hmac.compare_digest(sent, csrf_token(headers).encode())
    if not is_own or "origin" not in headers:  # browsers send it with every form
        raise Refused(FOREIGN, 403, "the form is not of this session: load its page again")
    return _converted(given, kind)


def _converted(given: dict[str, list[str]], kind: type[T]) -> T:
    lists = {
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if get_origin(field.type) is tuple
    }
    values: dict[str, Any] = {}
    for name, texts in given.items():
        if name not in lists and len(texts) > 1:
            raise Refused(UNREADABLE, 400, "a field is given twice")
        values[name] = texts if name in lists else texts[0]
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(UNREADABLE, 400, f"the form is not valid: {error}") from None


def named(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Refused(UNREADABLE, 400, "a name in the form is not UTF-8") from None


ThreadOutcome = tuple[str, str, str]
"""A thread, what became of it, and the code of the error if it was refused."""


async def outcome_of(
    thread: str, doing: Awaitable[str], redact: Redact | None = None
) -> ThreadOutcome:
    try:
        return thread, await doing, ""
    except MilecastleError as error:
        return thread, shown_message(error, redact), error.code
    except Refused as error:
        return thread, error.detail, error.problem.code
