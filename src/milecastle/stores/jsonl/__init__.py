"""The file store: one readable, append-only file per thread, in a folder that is the workspace."""

from milecastle.stores.jsonl.store import JsonlStore

__all__ = ["JsonlStore"]
