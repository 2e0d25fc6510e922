from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from milecastle.client.effects import HttpCall
from milecastle.errors import InvalidRequest
from milecastle.version import __version__


def settings_for(url: str, token: str | None, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments for httpx's clients, which follow no redirect and may have many streams open."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"a server's URL begins with http:// or https://, not {url!r}")
    given = dict(more or {})
    headers = {"User-Agent": f"milecastle/{__version__}", **given.pop("headers", {})}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return {"base_url": url.rstrip("/"), "headers": headers, "limits": limits, **given}


def arguments_of(request: HttpCall) -> dict[str, Any]:
    headers = dict(request.headers)
    content = None
    if request.body is not None:
        headers["Content-Type"] = "application/json"
        content = msgspec.json.encode(request.body)
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.query) or None,
        "headers": headers,
        "content": content,
        "timeout": httpx.Timeout(request.seconds, connect=10.0),
    }


def without_nothing(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}
