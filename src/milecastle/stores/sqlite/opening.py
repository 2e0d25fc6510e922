"""Opening SQLite stores: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl, unquote

from milecastle.errors import InvalidRequest
from milecastle.stores.sqlite.migrating import SqliteFile
from milecastle.stores.sqlite.store import SqliteStore


def open_url(url: str) -> SqliteStore:
    path, synchronous = _place(url)
    return SqliteStore(path, synchronous=synchronous)


def unopened(url: str) -> SqliteFile:
    return SqliteFile(_place(url)[0])


def _place(url: str) -> tuple[str, Literal["full", "normal"]]:
    """Three slashes and a relative path, or four and an absolute one; ``?synchronous=normal``."""
    place, _, query = url.partition("://")[2].partition("?")
    path = unquote(place[1:])
    if not path or not place.startswith("/"):
        raise InvalidRequest(
            "this sqlite:// URL has no file: write sqlite:///relative.db or sqlite:////absolute.db"
        )
    if path == ":memory:":
        raise InvalidRequest("a SQLite store needs a file: use memory:// for a store in memory")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full")
    if options:
        raise InvalidRequest(
            "this sqlite:// URL has an unknown option; the only option is synchronous"
        )
    if synchronous not in ("full", "normal"):
        raise InvalidRequest("synchronous must be 'full' or 'normal'")
    return path, "normal" if synchronous == "normal" else "full"
