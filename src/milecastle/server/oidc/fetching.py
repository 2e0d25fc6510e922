"""Requests to the issuer: blocking, bounded in time and size, and never redirected.

Rules:

- Only URLs that ``refuse_insecure`` accepts are opened. A redirect is an error.
- Messages and log lines contain nothing from an answer: it may have secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.server.oidc.settings import refuse_insecure

T = TypeVar("T")

PATIENCE: Final = 5.0
"""Seconds: for a connection and for each part of an answer. A whole answer may take twice that."""

_MOST: Final = 1024 * 1024
_PART: Final = 64 * 1024


class IssuerFailed(Exception):
    """The issuer did not answer as it should."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        return None


_opener = build_opener(_NoRedirects)


def fetch(
    url: str,
    shape: type[T],
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> T:
    """The JSON document under a URL; with ``form``, the answer to a POST.

    Raises:
        IssuerFailed: there is none with this shape.
    """
    body = None if form is None else urlencode(form).encode()
    sent = {"Accept": "application/json", **(headers or {})}
    until = monotonic() + 2 * PATIENCE
    try:
        refuse_insecure(url.partition("?")[0], "a URL of the issuer")
        request = Request(url, body, sent)  # noqa: S310 - https, or this machine
        with _opener.open(request, timeout=PATIENCE) as response:
            return msgspec.json.decode(_read(response, until), type=shape)
    except HTTPError as error:
        error.close()
        raise IssuerFailed(f"it answered with status {error.code}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise IssuerFailed("its answer is not the document that it should be") from None
    except InvalidRequest as error:
        raise IssuerFailed(error.message) from None
    except (OSError, HTTPException, ValueError) as error:
        raise IssuerFailed(f"it did not answer ({type(error).__name__})") from None


def _read(response: HTTPResponse, until: float) -> bytes:
    found = bytearray()
    while part := response.read1(_PART):
        found += part
        if len(found) > _MOST:
            raise IssuerFailed("its answer is too large")
        if monotonic() > until:
            raise IssuerFailed("its answer takes too long")
    return bytes(found)
