from __future__ import annotations

from milecastle.stores.memory.store import MemoryStore


def open_url(url: str) -> MemoryStore:
    return MemoryStore()


def unopened(url: str) -> None:
    return
