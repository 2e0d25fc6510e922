"""A store that was written for an earlier version is refused with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.errors import InvalidRequest
from milecastle.stores import MemoryStore
from milecastle.stores.opening import find_store, register_store, require_store


class Former:
    """The memory store without some attributes, and with the methods of an earlier version."""

    def __init__(self, *without: str, **methods: object) -> None:
        self._inside = MemoryStore()
        self._without = without
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        if name in self._without:
            raise AttributeError(name)
        return self._methods[name] if name in self._methods else getattr(self._inside, name)


@pytest.mark.parametrize(
    ("method", "capability", "now"),
    [
        ("tagged_threads", "tags", "threads"),
        ("pending_migrations", "maintenance", "pending_migrations"),
    ],
)
def test_methods_that_moved_are_named_with_their_new_place(
    method: str, capability: str, now: str
) -> None:
    former: Any = Former(capability, **{method: print})
    register_store("former", lambda url: former)
    for call in (lambda: require_store(former), lambda: find_store("former://")):
        with pytest.raises(InvalidRequest, match=rf"{method}\(\).*'{capability}'.*{now}\(\)"):
            call()


def test_store_without_an_attribute_is_told_where_its_default_is() -> None:
    with pytest.raises(InvalidRequest, match=r"tags, feed.*milecastle.stores.Capabilities"):
        require_store(Former("tags", "feed"))
