"""Opening file stores: ``file:///absolute/dir`` or ``file://relative/dir``."""

from __future__ import annotations

import re
from urllib.parse import unquote

from milecastle.errors import InvalidRequest
from milecastle.stores.jsonl.store import JsonlStore


def open_url(url: str) -> JsonlStore:
    place, _, query = url.partition("://")[2].partition("?")
    path = unquote(place)
    if not path or query:
        raise InvalidRequest(
            "this file:// URL has no folder, or has options: write file:///absolute/dir or "
            "file://relative/dir"
        )
    return JsonlStore(path[1:] if re.match("/[A-Za-z]:", path) else path)


def unopened(url: str) -> None:
    return
