"""The memory store: for tests and notebooks, and as the contract's plain form."""

from milecastle.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
