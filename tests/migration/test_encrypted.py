"""Encrypted payloads of every version of the format are read forever.

The golden file and folder were written by ``python -m tests.migration.test_encrypted GOLDEN``.
Until the first release is tagged, a change of version 1 makes them again; then they never change.
The store in ``encrypted-v1`` holds a thread that waits before its last node; ``keys`` holds its
key.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict
from unittest.mock import patch

import pytest

from milecastle import END, START, App, CheckpointStore, Keyring, StateGraph, ThreadKey, append
from milecastle.codec.encryption import ThreadSealer
from milecastle.codec.envelope import FORMAT_VERSION, PayloadPlace
from milecastle.errors import EncryptionError
from milecastle.stores.jsonl import JsonlStore

GOLDEN = Path(__file__).parent / "golden"
KEY = ThreadKey("default", "t")
ORDER = ThreadKey("acme", "order-7")
ORDER_KEY = bytes(range(72))
PLACES: list[tuple[dict[str, Any], bytes]] = [
    ({"seq": 1, "kind": 2, "base_seq": 1, "rolled": 0, "parent_id": None}, b"the amber room"),
    (
        {"seq": 2, "kind": 0, "base_seq": 1, "rolled": 1, "parent_id": "entry 1"},
        b"stone after stone " * 400,
    ),
    ({"seq": 9, "kind": 1, "base_seq": 1, "rolled": 5, "parent_id": "entry 8"}, b""),
    ({"seq": 9, "task": "3:work#0"}, b"what a task returned"),
]


@pytest.fixture
def sealer() -> ThreadSealer:
    return ThreadSealer(ORDER, ORDER_KEY)


def payloads() -> list[bytes]:
    found = json.loads((GOLDEN / "encrypted-v1.json").read_text())
    return [bytes.fromhex(payload) for payload in found]


def test_golden_payloads_open(sealer: ThreadSealer) -> None:
    for payload, (place, body) in zip(payloads(), PLACES, strict=True):
        assert payload[0] == FORMAT_VERSION
        assert sealer.unseal(payload, PayloadPlace(**place)) == body


def test_golden_payloads_open_nowhere_else(sealer: ThreadSealer) -> None:
    for payload, (place, _) in zip(payloads(), PLACES, strict=True):
        with pytest.raises(EncryptionError):
            sealer.unseal(payload, PayloadPlace(**place | {"seq": place["seq"] + 1}))


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


def trip(folder: Path) -> App[Trip]:
    def walk(state: Trip, name: str) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [name]}

    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    for name in ("a", "b", "c", "d"):
        graph.add_node(name, walk)
    graph.add_edges(START, "a", "b", "c", "d", END)
    ring = Keyring({"main": b"k" * 32}, store=JsonlStore(folder / "keys"))
    return graph.compile(
        store=JsonlStore(folder / "store"), encryption=ring, interrupt_before=["d"]
    )


def test_golden_thread_is_read_and_resumed(tmp_path: Path) -> None:
    """Fails when what follows stored entries is sealed for another life than they have."""
    folder = tmp_path / "old"
    shutil.copytree(GOLDEN / "encrypted-v1", folder)
    app = trip(folder)
    assert app.state("t").state == {"n": 3, "log": ["a", "b", "c"]}
    assert app.resume("t").state == {"n": 4, "log": ["a", "b", "c", "d"]}
    assert app.state("t", 3).state == {"n": 2, "log": ["a", "b"]}
    assert app.store is not None
    checkpoints = CheckpointStore(app.store, encryption=app.encryption)
    checkpoints.put(KEY, {"n": 5, "log": []})
    assert app.state("t").state == {"n": 5, "log": []}


def write(folder: Path) -> None:
    sealer = ThreadSealer(ORDER, ORDER_KEY, new=True)
    made = [sealer.seal(body, PayloadPlace(**place)).hex() for place, body in PLACES]
    (folder / "encrypted-v1.json").write_text(json.dumps(made, indent=1) + "\n")
    runs = "milecastle.app.runs.starting"
    with (
        patch(f"{runs}.describe_environment", dict),
        patch(f"{runs}.current_owner", lambda: None),
        patch("milecastle.app.threads.graphless_log.describe_environment", dict),
    ):
        trip(folder / "encrypted-v1").invoke({"n": 0, "log": []}, "t")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
