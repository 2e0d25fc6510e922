"""A store says which optional capabilities it has."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.errors import InvalidRequest
from milecastle.stores import MemoryStore
from milecastle.stores.opening import find_store, register_store, require_store


class Silent:
    """The memory store without some attributes."""

    def __init__(self, *without: str) -> None:
        self._inside = MemoryStore()
        self._without = without

    def __getattr__(self, name: str) -> Any:
        if name in self._without:
            raise AttributeError(name)
        return getattr(self._inside, name)


def test_store_without_an_attribute_is_told_where_its_default_is() -> None:
    """Fails if the attributes of a store, or of one that was opened, are not looked at."""
    store: Any = Silent("tags", "feed")
    register_store("silent", lambda url: store)
    for call in (lambda: require_store(store), lambda: find_store("silent://")):
        with pytest.raises(InvalidRequest, match=r"tags, feed.*milecastle.stores.Capabilities"):
            call()
