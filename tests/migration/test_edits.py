"""Operation 7 of payloads, ``edit``: a golden log that has it is read forever, on every store.

The log was written by ``python -m tests.migration.test_edits FOLDER``. Until the first release is
tagged, a change of version 1 makes it again; then it never changes.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milecastle import copy_threads
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import seal, unseal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.entries import Writer
from tests.every_store import EVERY_KIND, Stores

GOLDEN = Path(__file__).parent / "golden" / "edits-v1"
KEY = ThreadKey("default", "chat")
CODEC = LogCodec(ValueCodec(TypeRegistry()))


def said(id: str, content: str) -> dict[str, str]:
    return {"id": id, "content": content}


FIRST, REPLACED, THIRD, LATER = said("1", "a"), said("2", "c"), said("3", "d"), said("4", "\u2028")
OPERATIONS: list[tuple[Any, list[Any]]] = [
    (SNAPSHOT, [0, "messages", [FIRST, said("2", "b")]]),
    (DELTA, [7, "messages", [2, [[1, REPLACED]], [THIRD]]]),
    (ROLLUP, [7, "messages", [2, [[0], [1, REPLACED]], [THIRD]]]),
    (DELTA, [7, "messages", [2, [], [LATER]]]),
]
STATES = [
    [FIRST, said("2", "b")],
    [FIRST, REPLACED, THIRD],
    [REPLACED, THIRD],
    [REPLACED, THIRD, LATER],
]
"""The messages after each entry. The rollup repeats the entry before it and removes the first."""


def write(folder: Path) -> None:
    """Write the golden log."""
    with closing(JsonlStore(folder)) as store:
        writer = Writer(KEY)
        for kind, operations in OPERATIONS:
            parts: dict[str, Any] = {} if writer.head else {"runs": (writer.run,)}
            writer.append(store, kind, payload=seal(CODEC.encode(list(operations))), **parts)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_edits_are_read(kind: str, tmp_path: Path) -> None:
    """From the file, and from each store that it is copied to.

    Fails if an operation gets another code, or if a rollup's edit is applied to what it repeats.
    """
    stores = Stores(tmp_path)
    with closing(JsonlStore(shutil.copytree(GOLDEN, tmp_path / "golden"))) as golden:
        store: Store = stores.open(kind)
        copy_threads(golden, store, KEY.tenant)
        for source in (golden, store):
            found = [messages_at(source, seq) for seq in range(1, len(STATES) + 1)]
            assert found == STATES
    stores.close()


def messages_at(store: Store, seq: int) -> object:
    chain = store.read(KEY, seq)
    assert chain is not None
    return CODEC.rebuild([unseal(entry.payload) for entry in chain.entries])["messages"]


def test_golden_file_names_the_operation() -> None:
    """People can read it there."""
    assert '"edit"' in (GOLDEN / "threads" / "default" / "chat.jsonl").read_text(encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
