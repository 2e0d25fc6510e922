"""Opening stores by name or URL, through a registry that users can add to."""

from __future__ import annotations

from collections.abc import Callable

from milecastle.errors import InvalidRequest
from milecastle.ports.store import Store

__all__ = ["find_store", "register_store"]

StoreFactory = Callable[[str], Store]


def _memory(url: str) -> Store:
    from milecastle.stores.memory import MemoryStore

    return MemoryStore()


_factories: dict[str, StoreFactory] = {"memory": _memory}


def register_store(name: str, factory: StoreFactory) -> None:
    """Make a store known: ``factory(url)`` is called for ``name`` itself and for ``name://...``."""
    _factories[name] = factory


def find_store(url: str) -> Store:
    """Open the store that a name or a URL means."""
    scheme = url.partition("://")[0]
    factory = _factories.get(scheme)
    if factory is None:
        known = ", ".join(f"{name}://" for name in sorted(_factories))
        raise InvalidRequest(
            f"no store is registered for '{scheme}'; known are {known}; "
            "register_store(name, factory) adds one"
        )
    return factory(url)
