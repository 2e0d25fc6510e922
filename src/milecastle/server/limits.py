"""Limits for a request's size, and for its body's time.

Starlette and uvicorn read everything they are sent. uvicorn limits a request line with headers only
while it is incomplete, so both are counted again here.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from milecastle.server.problems import TOO_LARGE, UNREADABLE, Refused

JSON: Final = "application/json"

MOST_HEADERS: Final = 8 * 1024
"""Bytes of path, query and headers."""

MOST_BODY: Final = 1024 * 1024
"""Bytes of a body."""

SLOWEST_BODY: Final = 30.0
"""Seconds that a body may take."""

LOOKED_AT: Final = 5000
"""Threads that are looked at for one page of a list; ``next`` continues after them."""

_LONGEST_LENGTH: Final = 20
"""Digits of a length that are looked at."""


def refuse_large_headers(scope: Scope) -> None:
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MOST_HEADERS:
        raise Refused(TOO_LARGE, 431, f"path and headers may have at most {MOST_HEADERS} bytes")


def refuse_two_lengths(scope: Scope) -> None:
    """Refuse a body with two lengths: a proxy may have used the other one."""
    names = [name for name, _ in scope["headers"]]
    if names.count(b"content-length") + names.count(b"transfer-encoding") > 1:
        raise Refused(UNREADABLE, 400, "send Content-Length or Transfer-Encoding, once")


async def read_body(request: Request, *kinds: str) -> bytes:
    """Read a body with one of these content types; a body that is too large is not read."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in kinds:
        what = "JSON" if kinds[0] == JSON else "a form"
        raise Refused(UNREADABLE, 415, f"send {what}, with Content-Type: {kinds[0]}")
    declared = request.headers.get("content-length", "0")
    too_large = Refused(TOO_LARGE, 413, f"a body may have at most {MOST_BODY} bytes")
    if len(declared) > _LONGEST_LENGTH or (declared.isdecimal() and int(declared) > MOST_BODY):
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            async for chunk in request.stream():
                found += chunk
                if len(found) > MOST_BODY:
                    raise too_large
    except TimeoutError:
        raise Refused(UNREADABLE, 408, "the body takes too long") from None
    except ClientDisconnect:
        raise Refused(UNREADABLE, 400, "the body is not complete") from None
    return bytes(found)
