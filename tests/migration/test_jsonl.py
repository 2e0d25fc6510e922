"""Files written by version 1 of the format are read for ever.

The golden workspace was written by ``python -m tests.migration.test_jsonl FOLDER`` and is never
written again: a change of the format adds another beside it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import msgspec
import msgspec.structs
import pytest

from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import seal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Source
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.entries import Writer, a_failure, a_result, an_entry

GOLDEN = Path(__file__).parent / "golden" / "jsonl-v1"
PLAIN = ThreadKey("default", "demo")
HARD = ThreadKey("Acme/EU", "Case: 1")
PRUNED = ThreadKey("default", "pruned")
DELETED = ThreadKey("default", "deleted")
HELD = ThreadKey("default", "held")
HOLDING: tuple[Source, ...] = ("interrupt", "answer", "sleep", "takeover")
CODEC = LogCodec(ValueCodec(TypeRegistry()))
VALUES: list[list[object]] = [
    [0, "topic", "walls", 0, "notes", [], 0, "n", 2**53 + 1, 0, "x", -0.0],
    [1, "notes", ["a\u2028b \U0001f3f0"], 3, "n", 1],
    [0, "topic", None, 2, "map", {"a": [1.5, True]}],
    [0, "topic", float("nan"), 6, "set", {1, 2}],
    [0, "topic", "long " * 2000],
]


def entries() -> list[Entry]:
    """The entries of the plain thread: readable, base64 and compressed payloads."""
    kinds = (SNAPSHOT, DELTA, ROLLUP, DELTA, SNAPSHOT)
    return [
        an_entry(
            seq,
            kind=kind,
            base_seq=seq if kind == SNAPSHOT else 1,
            roll_seq=seq if kind != DELTA else {2: 1, 4: 3}[seq],
            payload=seal(CODEC.encode(list(operations))),
            note="\u2028" if seq == 2 else "",
            route=("publish",) if seq == 3 else (),
        )
        for seq, (kind, operations) in enumerate(zip(kinds, VALUES, strict=True), 1)
    ]


def write(folder: Path) -> None:
    """Write the golden workspace."""
    store = JsonlStore(folder)
    writer = Writer(PLAIN)
    first, second, *others = entries()
    store.commit(writer.batch(first, runs=(writer.run,), manifest=("f" * 32, b'{"nodes":[]}')))
    writer.head = 1
    store.commit(writer.batch(second, *others))
    writer.head = 5
    failed = msgspec.structs.replace(writer.run, status="failed", ended_at=9)
    store.commit(writer.batch(results=(a_result(5, "task", first.payload),)))
    store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
    Writer(HARD, 2).begin(store, 3)
    pruned = Writer(PRUNED, 3).begin(store).write(store, (DELTA, ROLLUP, DELTA, ROLLUP))
    pruned.prune(store, 3)
    Writer(DELETED, 4).begin(store)
    store.delete(DELETED)
    held = Writer(HELD, 5).begin(store)
    store.commit(held.batch(results=(a_result(1, "once"), a_result(1, "twice"))))
    store.commit(held.batch(results=(a_result(1, "twice", b"again"),)))
    for source in HOLDING:
        held.append(store, source=source)
    asleep = msgspec.structs.replace(held.run, status="sleeping", wake_at=1_700_000_000_000_001)
    store.commit(held.batch(runs=(asleep,)))
    store.close()


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(shutil.copytree(GOLDEN, tmp_path / "workspace"))


def test_every_entry_of_version_1_is_read(store: JsonlStore) -> None:
    for entry in entries():
        chain = store.read(PLAIN, entry.seq)
        assert chain is not None
        assert chain.entries[-1] == entry
    chain = store.read(PLAIN, 4)
    assert chain is not None
    assert [entry.seq for entry in chain.entries] == [1, 3, 4]


def test_everything_else_of_version_1_is_read(store: JsonlStore) -> None:
    (run,) = store.runs(PLAIN)
    assert (run.status, run.ended_at) == ("failed", 9)
    assert store.failure(PLAIN, run.run_id) == a_failure(run.run_id)
    assert store.manifest(PLAIN, "f" * 32) == b'{"nodes":[]}'
    chain = store.read(PLAIN)
    assert chain is not None
    assert chain.results == (a_result(5, "task", entries()[0].payload),)
    assert [info.key for info in store.threads("default")] == [PLAIN, HELD, PRUNED]
    assert [info.key for info in store.threads(HARD.tenant)] == [HARD]


def test_what_was_pruned_and_deleted_stays_so(store: JsonlStore) -> None:
    assert [entry.seq for entry in store.history(PRUNED)] == [5, 4, 3]
    assert store.read(DELETED) is None


def test_what_waits_is_read_with_its_results_and_when_it_wakes(store: JsonlStore) -> None:
    chain = store.read(HELD)
    assert chain is not None
    assert sorted(chain.results, key=lambda result: result.task) == [
        a_result(1, "once"),
        a_result(1, "twice", b"again"),
    ]
    assert [entry.source for entry in store.entries(HELD, after=1)] == list(HOLDING)
    (run,) = store.runs(HELD)
    assert (run.status, run.wake_at) == ("sleeping", 1_700_000_000_000_001)


def test_a_log_of_version_1_is_gone_on_with(store: JsonlStore) -> None:
    writer = Writer(HARD, 2)
    for entry in reversed(list(store.history(HARD))):
        writer.keep(entry)
    writer.append(store, SNAPSHOT)
    assert len(list(JsonlStore(store.root).history(HARD))) == 4


def test_the_files_have_the_names_of_version_1() -> None:
    found = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.jsonl"))
    assert found == sorted(
        JsonlStore(GOLDEN).path_of(key).relative_to(GOLDEN).as_posix()
        for key in (PLAIN, HARD, PRUNED, DELETED, HELD)
    )


def test_the_same_commits_make_the_same_lines(tmp_path: Path) -> None:
    """Whoever changes how lines are written has changed the format."""
    write(tmp_path)
    for path in GOLDEN.rglob("*.jsonl"):
        made = (tmp_path / path.relative_to(GOLDEN)).read_bytes().splitlines()
        kept = path.read_bytes().splitlines()
        assert [bare(line) for line in made] == [bare(line) for line in kept]


def bare(line: bytes) -> dict[str, object]:
    """Return a line without what differs from one writing to the next."""
    found: dict[str, object] = json.loads(line)
    return {
        name: value
        for name, value in found.items()
        if name not in ("check", "log", "deleted_at", "runs_at", "length")
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]))
