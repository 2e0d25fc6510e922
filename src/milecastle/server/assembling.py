"""Putting a server together: who may call it, under which names, and what it serves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from milecastle.app.application import App
from milecastle.errors import InvalidRequest
from milecastle.server.access import ALL_SCOPES, Access, Identify, Identity
from milecastle.server.application import Application
from milecastle.server.redaction import Redact
from milecastle.server.service import Service
from milecastle.server.tokens import TokenFile

__all__ = ["assemble"]


def assemble(
    apps: Sequence[App[Any]],
    *,
    tokens: str | os.PathLike[str] | None,
    token: str | None,
    hosts: Iterable[str],
    worker: bool | None,
    redact: Redact | None = None,
    identify: Identify | None = None,
) -> Application:
    """The application; see ``milecastle.server.asgi``."""
    if tokens is None and token is None and identify is None:
        raise InvalidRequest(
            "a server needs tokens=, a file, token= or identify=: nothing is public"
        )
    file = None if tokens is None else TokenFile(tokens)
    service = Service(apps, worker=worker, redact=redact)
    start = None if token is None else (token, Identity(service.tenant, ALL_SCOPES))
    return Application(service, Access((), start, file=file, identify=identify), frozenset(hosts))
