"""Logs to be cut and damaged, and what may be read of them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from milecastle.codec.envelope import seal
from milecastle.model.checkpoint import DELTA, ROLLUP
from milecastle.model.keys import ThreadKey
from milecastle.model.tags import TagChange
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run


def write_log(folder: Path, size: int) -> tuple[ThreadKey, Path]:
    """Write a thread that has everything that a thread can have, in at least ``size`` bytes."""
    store = JsonlStore(folder)
    writer = Writer(a_key()).begin(store)
    path = store.path_of(writer.key)
    number = 1
    while path.stat().st_size < size:
        number += 1
        failed = a_run(writer.key, number, status="failed", metadata={"host": "h"})
        store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
        writer.append(store, manifest=(f"fingerprint {number}", b'{"nodes":[]}'))
        readable = seal(msgspec.msgpack.encode([1, "notes", [f"note {number}", 1.5, None]]))
        writer.append(store, DELTA, payload=readable)
        writer.append(store, ROLLUP)
        store.commit(writer.batch(results=(a_result(writer.head),)))
        writer.append(store, source="takeover")
        store.commit(writer.batch(tags=TagChange((f"tag {number}", "tag"))))
    store.close()
    return writer.key, path


def read_log(folder: Path, key: ThreadKey) -> dict[str, Any]:
    """Read all that a fresh store can read of the thread."""
    store = JsonlStore(folder)
    try:
        return everything_of(store, key)
    finally:
        store.close()
