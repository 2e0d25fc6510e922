from __future__ import annotations

from typing import Any, Final

import msgspec


class Remove(msgspec.Struct, frozen=True):
    """In an update for ``messages`` or ``upsert``: delete the item with this id."""

    id: Any


REMOVE_ALL: Final = Remove("__remove_all__")
"""In an update of ``messages`` or ``upsert``: delete all items before it."""
