"""What is found wrong with a thread, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec.structs
import pytest

from milecastle import CheckpointStore, StateGraph, ThreadKey, Unavailable
from milecastle.app.upkeep.verifying import verify_thread
from milecastle.codec.envelope import seal
from milecastle.errors import Corrupted
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.manifest import END, START, Manifest
from milecastle.model.run import RunRecord
from milecastle.ports.store import Chain
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from tests.unit.cli.commands import Desk

KEY = ThreadKey("t", "x")


class Lying(WrappedStore):
    """A store that reads back something else than was written, in one way."""

    def __init__(self, lie: str) -> None:
        super().__init__(MemoryStore())
        self._lie = ""
        store = CheckpointStore(self)
        for number in range(3):
            store.put(KEY, {"number": number, "long": "x" * 9000})
        self._lie = lie

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        found = list(super().entries(key, after=after, limit=limit))
        if self._lie == "gone":
            raise Unavailable("the store was closed")
        if self._lie == "damaged":
            raise Corrupted("the row is damaged", place="row 7")
        if self._lie == "gap" and found:
            del found[1]
        if self._lie in _SPOILT and found:
            found[2] = msgspec.structs.replace(found[2], payload=_SPOILT[self._lie])
        return found

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        chain = super().read(key, seq)
        if chain is None or self._lie not in ("old head", "result"):
            return chain
        if self._lie == "old head":
            return super().read(key, 2)
        return Chain(chain.entries, (TaskResult(seq=3, task="a", payload=b"short"),))

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        found = super().runs(key, limit=limit)
        return found[1:] if self._lie == "no run" else found


_SPOILT = {
    "checksum": seal(b"abc")[:-1],
    "no list": seal(b"\x01"),
    "no operation": seal(b"\x91\x01"),
}


@pytest.mark.parametrize(
    ("lie", "place", "problem"),
    [
        ("damaged", "row 7", "the row is damaged"),
        ("gap", "thread 'x', seq 3", "the entry before it has seq 1"),
        ("checksum", "thread 'x', seq 3", "damaged"),
        ("no list", "thread 'x', seq 3", "not a list of operations"),
        ("no operation", "thread 'x', seq 3", "not an operation"),
        ("old head", "thread 'x', seq 2", "the history and the head do not match"),
        ("result", "thread 'x', seq 3, task 'a'", "too short"),
        ("no run", "thread 'x', seq 3", "has no record"),
    ],
)
def test_a_lie_is_found_with_its_place(lie: str, place: str, problem: str) -> None:
    (found,) = verify_thread(Lying(lie), KEY).findings
    assert found.place == place
    assert problem in found.problem


def test_the_truth_has_no_findings() -> None:
    report = verify_thread(Lying(""), KEY)
    assert (report.checkpoints, report.runs, report.findings) == (3, 3, ())


def test_unreachable_store_is_not_damage() -> None:
    with pytest.raises(Unavailable):
        verify_thread(Lying("gone"), KEY)


class AnotherGraph(WrappedStore):
    """A store that keeps another graph under a fingerprint."""

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        return Manifest(nodes=(), edges=(), channels=()).to_bytes()


def test_a_graph_under_another_name_is_found(desk: Desk) -> None:
    from typing import TypedDict

    class State(TypedDict):
        n: int

    def add(state: State) -> dict[str, int]:
        return {"n": state["n"] + 1}

    graph = StateGraph(State)
    graph.add_node(add)
    graph.add_edges(START, "add", END)
    store = AnotherGraph(MemoryStore())
    graph.compile(store=store, tenant="t").invoke({"n": 1}, thread="x")
    (found,) = verify_thread(store, KEY).findings
    assert "does not match the recorded one" in found.problem
