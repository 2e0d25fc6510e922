"""The memory store: for tests, for notebooks, and as the plain statement of the contract."""

from milecastle.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
