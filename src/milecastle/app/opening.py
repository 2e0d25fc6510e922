"""Opening stores by name or URL, through a registry that users can add to.

A scheme that is not registered is looked for among the entry points of installed packages, group
``milecastle.stores``. Nothing else is ever imported for a URL.

What is wrong with a URL is told without repeating it: a password may stand anywhere in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from milecastle.errors import InvalidRequest
from milecastle.ports.store import Store

__all__ = ["find_store", "register_store"]

StoreFactory = Callable[[str], Store]


def _memory(url: str) -> Store:
    from milecastle.stores.memory import MemoryStore

    return MemoryStore()


def _sqlite(url: str) -> Store:
    """Three slashes and a relative path, or four and an absolute one; ``?synchronous=normal``."""
    from urllib.parse import parse_qsl, unquote

    from milecastle.stores.sqlite import SqliteStore

    place, _, query = url.partition("://")[2].partition("?")
    path = unquote(place[1:])
    if not path or not place.startswith("/"):
        raise InvalidRequest(
            "this sqlite:// URL names no file: write sqlite:///relative.db or "
            "sqlite:////absolute.db"
        )
    if path == ":memory:":
        raise InvalidRequest("SQLite keeps a file here: memory:// ends with its process")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full")
    if options:
        raise InvalidRequest("this sqlite:// URL has an unknown option; known is synchronous")
    if synchronous not in ("full", "normal"):
        raise InvalidRequest("synchronous is 'full' or 'normal'")
    return SqliteStore(path, synchronous="normal" if synchronous == "normal" else "full")


def _file(url: str) -> Store:
    """A folder: ``file:///absolute/dir``, or ``file://relative/dir`` from where the process is."""
    import re
    from urllib.parse import unquote

    from milecastle.stores.jsonl import JsonlStore

    place, _, query = url.partition("://")[2].partition("?")
    path = unquote(place)
    if not path or query:
        raise InvalidRequest(
            "this file:// URL names no folder, or has options: write file:///absolute/dir or "
            "file://relative/dir"
        )
    return JsonlStore(path[1:] if re.match("/[A-Za-z]:", path) else path)


def _postgres(url: str) -> Store:
    """``postgresql://user@host/database``; options are listed at ``PostgresStore``."""
    try:
        from milecastle.stores.postgres import PostgresStore
    except ImportError as error:
        raise InvalidRequest(
            f"PostgreSQL needs packages that are not there ({error}): "
            "pip install milecastle[postgres]"
        ) from None
    return PostgresStore(url)


_GROUP = "milecastle.stores"

_factories: dict[str, StoreFactory] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "file": _file,
    "postgresql": _postgres,
    "postgres": _postgres,
}


def register_store(name: str, factory: StoreFactory) -> None:
    """Make a store known: ``factory(url)`` is called for ``name`` itself and for ``name://...``."""
    _factories[name] = factory


def find_store(url: str) -> Store:
    """Open the store that a name or a URL means."""
    scheme = url.partition("://")[0]
    factory = _factories.get(scheme) or _from_packages(scheme)
    if factory is None:
        known = ", ".join(f"{name}://" for name in sorted(_factories))
        raise InvalidRequest(
            f"no store is registered for {_named(url)}; known are {known}; register_store(name, "
            f"factory) adds one, as does a package with an entry point in the group '{_GROUP}'"
        )
    return factory(url)


def _named(url: str) -> str:
    """The scheme of a URL, if it has one that can be nothing else."""
    import re

    found = re.match("([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return f"'{found[1]}'" if found else "what was given, which is no URL and no registered name"


def _from_packages(scheme: str) -> StoreFactory | None:
    """The factory that an installed package has for a scheme; kept once it is loaded."""
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=_GROUP, name=scheme)}
    if not found:
        return None
    if len(found) > 1:
        raise InvalidRequest(
            f"several packages offer a store for '{scheme}': {', '.join(sorted(found))}; "
            "register_store(name, factory) settles it"
        )
    value, point = found.popitem()
    try:
        factory = cast("StoreFactory", point.load())
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"the store for '{scheme}' at {value} cannot be loaded") from error
    if not callable(cast("object", factory)):
        raise InvalidRequest(f"the store for '{scheme}' at {value} is not a factory")
    _factories[scheme] = factory
    return factory
