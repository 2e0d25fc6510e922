"""Effects for a call's transport. A call is a generator: it yields these, and does no I/O."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class HttpCall(msgspec.Struct, frozen=True):
    """Send a request; answered with an ``HttpAnswer``, or with ``LostResponse``.

    ``seconds`` is how long to wait for each part of the response. If it ``streams``, the answer has
    no content: ``NextPart`` reads it.
    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = {}
    seconds: float = 60.0
    streams: bool = False


class NextPart(msgspec.Struct, frozen=True):
    """Read more of the stream; answered with bytes, none at its end, or with ``LostResponse``."""


class Pause(msgspec.Struct, frozen=True):
    seconds: float


class Yielded(msgspec.Struct, frozen=True):
    value: Any


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    content: bytes


class LostResponse(msgspec.Struct, frozen=True):
    """Nothing, or not everything, was received: the request's effect is unknown."""

    reason: str


ClientEffect: TypeAlias = HttpCall | NextPart | Pause | Yielded
Steps: TypeAlias = Generator[ClientEffect, Any, T]
