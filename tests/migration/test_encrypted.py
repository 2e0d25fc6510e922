"""Encrypted payloads of every version of the format are read forever.

Golden files are never written again: a change of the format adds another beside them. The store
in ``encrypted-v1`` holds a thread that waits before its last node; ``keys`` holds its key.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, CheckpointStore, Keyring, StateGraph, ThreadKey, append
from milecastle.codec.encryption import ThreadSealer
from milecastle.codec.envelope import ENCRYPTION_VERSION, PayloadPlace
from milecastle.errors import EncryptionError
from milecastle.stores.jsonl import JsonlStore

GOLDEN = Path(__file__).parent / "golden"
KEY = ThreadKey("default", "t")


def golden(version: int) -> tuple[ThreadSealer, list[tuple[bytes, dict[str, Any], bytes]]]:
    """What opens the payloads of a version; each with its place and the body that it holds."""
    found = json.loads((GOLDEN / f"encrypted-v{version}.json").read_text())
    key = ThreadKey(found["tenant"], found["thread"])
    payloads = [
        (bytes.fromhex(each["payload"]), each["place"], bytes.fromhex(each["body"]))
        for each in found["payloads"]
    ]
    return ThreadSealer(key, bytes.fromhex(found["thread_key"])), payloads


@pytest.mark.parametrize("version", [1, 2])
def test_payloads_of_each_version_open(version: int) -> None:
    sealer, payloads = golden(version)
    for payload, place, body in payloads:
        assert payload[0] == version
        assert sealer.unseal(payload, PayloadPlace(**place)) == body


@pytest.mark.parametrize("version", [1, 2])
def test_payloads_of_each_version_open_nowhere_else(version: int) -> None:
    sealer, payloads = golden(version)
    for payload, place, _ in payloads:
        with pytest.raises(EncryptionError):
            sealer.unseal(payload, PayloadPlace(**place | {"seq": place["seq"] + 1}))


def test_payload_of_version_1_does_not_open_in_a_thread_of_version_2() -> None:
    """Fails when an old payload is taken as of any life."""
    old, payloads = golden(1)
    payload, place, _ = payloads[1]
    new = golden(2)[0]
    first, where, _ = golden(2)[1][0]
    new.unseal(first, PayloadPlace(**where))
    with pytest.raises(EncryptionError, match="an earlier thread of the same name"):
        new.unseal(payload, PayloadPlace(**place))
    old.unseal(payload, PayloadPlace(**place))
    assert old.seal(b"next", PayloadPlace(3))[0] == ENCRYPTION_VERSION


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


def test_thread_of_version_1_is_read_and_resumed(tmp_path: Path) -> None:
    """Fails when what follows old entries is sealed for another life than they have."""
    folder = tmp_path / "old"
    shutil.copytree(GOLDEN / "encrypted-v1", folder)
    app = trip(folder)
    assert app.state("t").state == {"n": 3, "log": ["a", "b", "c"]}
    assert app.resume("t").state == {"n": 4, "log": ["a", "b", "c", "d"]}
    assert app.store is not None
    assert {entry.payload[0] for entry in app.store.entries(KEY)} == {1, ENCRYPTION_VERSION}
    assert app.state("t", 3).state == {"n": 2, "log": ["a", "b"]}
    checkpoints = CheckpointStore(app.store, encryption=app.encryption)
    checkpoints.put(KEY, {"n": 5, "log": []})
    assert app.state("t").state == {"n": 5, "log": []}
