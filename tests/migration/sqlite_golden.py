"""Makes the golden file of the SQLite store: one for each format version, never made again.

    python -m tests.migration.sqlite_golden

Run it once, when a format version is new. Every later version must read what it wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec.structs

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.ports.store import Store
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run

GOLDEN = Path(__file__).parent / "golden"
MANIFEST = "m" * 32
REPLACED = a_result(2, "one", b"replaced")
KEYS = (a_key("alpha"), a_key("beta"), a_key("gamma", "other"), a_key("nobody"))


def fill(store: Store) -> None:
    """Write everything that a store can hold; the same each time."""
    alpha = Writer(KEYS[0], 1).begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA))
    alpha.append(store, source="takeover", note="caf\u00e9 \U0001f3f0", route=("research",))
    failed = a_run(KEYS[0], 2, status="failed", ended_at=9, metadata={"host": "wall"})
    store.commit(alpha.batch(runs=(failed,), failure=a_failure(failed.run_id)))
    store.commit(alpha.batch(results=(a_result(6, "one"), a_result(6, "two"))))
    store.commit(alpha.batch(manifest=(MANIFEST, b"manifest")))
    beta = Writer(KEYS[1], 3).begin(store).write(store, (DELTA, SNAPSHOT, DELTA, ROLLUP, DELTA))
    beta.prune(store, 3)
    beta.append(store, at=4, source="fork")
    Writer(a_key("deleted"), 4).begin(store, 3)
    store.delete(a_key("deleted"))
    gamma = Writer(KEYS[2], 5).begin(store, 2)
    store.commit(gamma.batch(results=(REPLACED, a_result(2, "two"))))
    for source in ("interrupt", "answer", "sleep"):
        gamma.append(store, source=source)
    store.commit(gamma.batch(results=(a_result(5, "one"), a_result(5, "three"))))
    asleep = msgspec.structs.replace(gamma.run, status="sleeping", wake_at=8)
    store.commit(gamma.batch(runs=(asleep,)))


def everything_in(store: Store) -> list[Any]:
    """All that can be read of what ``fill`` wrote."""
    return [*(everything_of(store, key) for key in KEYS), store.manifest(KEYS[0], MANIFEST)]


def main() -> None:
    """Write the file of the newest version, unless it is there."""
    path = GOLDEN / "sqlite-v1.db"
    if path.exists():
        raise SystemExit(f"{path} is there already, and stays as it is")
    path.parent.mkdir(exist_ok=True)
    store = SqliteStore(path)
    fill(store)
    store.close()


if __name__ == "__main__":
    main()
