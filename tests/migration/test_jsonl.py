"""Logs of every version of the format are read forever.

The golden workspace was written by ``python -m tests.migration.test_jsonl FOLDER``. Until the first
release is tagged, a change of version 1 makes it again; then it never changes.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import msgspec.structs
import pytest

from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import seal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import FormatTooNew, StoreError
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Source
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Owner, RunRecord, ThreadInfo
from milecastle.ports.mailbox import INPUTS, Consumed, Marks, NewRun
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.jsonl.lines import ROOT_CHECK, frame
from milecastle.stores.jsonl.mailbox import JsonlMailbox
from milecastle.testing.contract_claims import a_line
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.contract_tags import change, tagged
from milecastle.testing.entries import Writer, a_failure, a_result, a_run, an_entry, make_id

GOLDEN = Path(__file__).parent / "golden" / "jsonl-v1"
PLAIN = ThreadKey("default", "demo")
HARD = ThreadKey("Acme/EU", "Case: 1")
PRUNED = ThreadKey("default", "pruned")
DELETED = ThreadKey("default", "deleted")
HELD = ThreadKey("default", "held")
OWNED = ThreadKey("default", "owned")
SHARED = ThreadKey("default", "shared")
TAGGED = ThreadKey("default", "tagged")
MAILED = ThreadKey("default", "mailed")
TAGS = ("blue", "caf\u00e9")
OWNER = Owner(host="wall", boot_id="b" * 36, pid=4711, started="17")
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
    owned = Writer(OWNED, 6)
    owned.run = msgspec.structs.replace(owned.run, owner=OWNER)
    owned.begin(store)
    owned.append(store, source="interrupt", thread=waiting(owned.run))
    owned.append(store)
    store.commit(owned.batch(runs=(a_run(OWNED, 2, status="failed"),), thread=None))
    shared = Writer(SHARED, 7)
    shared.append(store, source="input", runs=(shared.run,), thread=in_a_lane(shared))
    change(store, tagged(store, TAGGED.thread, *TAGS, number=8, tenant="default"), ["red"])
    send_all(store)
    store.close()


def send_all(store: JsonlStore) -> None:
    """Unread, consumed and discarded messages, and an input; then all again in a shorter log."""
    clock = iter(range(1_700_000_000_000_000, 1_700_000_000_000_009))
    mailbox = JsonlMailbox(vars(store)["_pool"], lambda: next(clock))
    writer = Writer(MAILED, 9)
    writer.append(store, source="input", runs=(writer.run,), thread=in_a_lane(writer))
    for mark, topic, payload in (
        ("m1", "go", b"1"),
        ("m2", "caf\u00e9", seal(CODEC.encode([0, "value", {"n": 1}]))),
        ("m3", "go", b"3"),
    ):
        mailbox.send(MAILED, topic, mark, payload)
    new = NewRun(record=a_run(MAILED, 10, status="queued"))
    mailbox.send(MAILED, INPUTS, new.record.run_id, b"input", "graph", new)
    writer.append(store, SNAPSHOT, consumes=(1,))
    mailbox.discard(MAILED, 3)
    writer.write(store, (SNAPSHOT, DELTA))
    writer.prune(store, 2)


def in_a_lane(writer: Writer) -> ThreadInfo:
    return a_line(writer, due_at=1_700_000_000_000_003, worker="wall-4711", priority=2)


def waiting(run: RunRecord) -> ThreadInfo:
    return msgspec.structs.replace(
        ThreadInfo.of(run), status="interrupted", wake_at=2**53 + 1, questions=3
    )


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(shutil.copytree(GOLDEN, tmp_path / "workspace"))


def test_every_entry_is_read(store: JsonlStore) -> None:
    for entry in entries():
        chain = store.read(PLAIN, entry.seq)
        assert chain is not None
        assert chain.entries[-1] == entry
    chain = store.read(PLAIN, 4)
    assert chain is not None
    assert [entry.seq for entry in chain.entries] == [1, 3, 4]


def test_everything_else_is_read(store: JsonlStore) -> None:
    (run,) = store.runs(PLAIN)
    assert (run.status, run.ended_at) == ("failed", 9)
    assert store.failure(PLAIN, run.run_id) == a_failure(run.run_id)
    assert store.manifest(PLAIN, "f" * 32) == b'{"nodes":[]}'
    chain = store.read(PLAIN)
    assert chain is not None
    assert chain.results == (a_result(5, "task", entries()[0].payload),)
    assert [info.key for info in store.threads("default")][:2] == [PLAIN, HELD]
    assert PRUNED in [info.key for info in store.threads("default")][2:]
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


def test_threads_are_listed_by_their_heads(store: JsonlStore) -> None:
    """Fails if one is listed by its newest run, or not at all."""
    listed = [info for info in store.threads("default") if info.key in (PLAIN, HELD, PRUNED)]
    assert [(info.key, info.status, info.wake_at) for info in listed] == [
        (PLAIN, "failed", None),
        (HELD, "sleeping", 1_700_000_000_000_001),
        (PRUNED, "running", None),
    ]
    assert listed == [store.thread(info.key) for info in listed]


def test_owners_and_waits_are_read(store: JsonlStore) -> None:
    failed, first = store.runs(OWNED)
    assert (failed.status, failed.owner, first.owner) == ("failed", None, OWNER)
    assert store.thread(OWNED) == waiting(first)
    assert waiting(first) in store.threads("default")


def test_queued_thread_is_read(store: JsonlStore) -> None:
    assert store.thread(SHARED) == in_a_lane(Writer(SHARED, 7))


def test_tags_are_read(store: JsonlStore) -> None:
    assert store.tags.of("default", [TAGGED.thread, "demo"]) == {TAGGED.thread: (*TAGS, "red")}
    assert [info.key for info in store.tags.threads("default", "red")] == [TAGGED]


def test_messages_are_read(store: JsonlStore) -> None:
    found = [(one.number, one.topic, one.mark) for one in store.mailbox.unread(MAILED)]
    assert found == [(2, "caf\u00e9", "m2"), (4, INPUTS, make_id(10))]
    assert store.mailbox.unread(MAILED)[1].payload == b"input"
    consumed = (Consumed(number=1, mark="m1", seq=2), Consumed(number=3, mark="m3", seq=2))
    assert store.mailbox.marks(MAILED) == Marks(last=4, consumed=consumed)


def test_writing_continues_a_golden_log(store: JsonlStore) -> None:
    """Fails if the log cannot be written to, or loses something."""
    for key in (HARD, PLAIN, HELD, PRUNED):
        before = everything_of(store, key)
        writer = Writer(key, 99)
        for entry in reversed(list(store.history(key))):
            writer.keep(entry)
        store.commit(writer.batch(manifest=("9" * 32, b"{}")))
        again = JsonlStore(store.root)
        assert everything_of(again, key) == before
        writer.append(again, SNAPSHOT)
        assert JsonlStore(store.root).verify_thread(key)
        assert len(list(again.history(key))) == len(before["history"]) + 1


HEADERS = {
    FormatTooNew: b'{"milecastle":2,"tenant":"default","thread":"demo","what":"is new"}',
    StoreError: b'{"format":5,"tenant":"default","thread":"demo","log":"1"}',
}
"""First lines of a later version, and of one from before the first release."""


@pytest.mark.parametrize("kind", HEADERS)
def test_log_of_another_version_is_refused_and_unchanged(
    store: JsonlStore, kind: type[StoreError]
) -> None:
    """Fails if it is taken for damage, or for one of version 1, or is written to."""
    path = store.path_of(PLAIN)
    path.write_bytes(frame(HEADERS[kind], ROOT_CHECK)[0])
    before = path.read_bytes()
    writer = Writer(PLAIN)
    calls: list[Callable[[], object]] = [
        lambda: store.read(PLAIN),
        lambda: store.commit(writer.batch(writer.plan())),
        lambda: store.delete(PLAIN),
        lambda: store.mailbox.send(PLAIN, "go", "m", b"x"),
        lambda: store.repair_thread(PLAIN),
        lambda: store.threads("default"),
    ]
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_the_files_have_the_same_names() -> None:
    keys = (PLAIN, HARD, PRUNED, DELETED, HELD, OWNED, SHARED, TAGGED, MAILED)
    found = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.jsonl"))
    assert found == sorted(
        JsonlStore(GOLDEN).path_of(key).relative_to(GOLDEN).as_posix() for key in keys
    )


def test_the_same_commits_make_the_same_lines(tmp_path: Path) -> None:
    """A change of how lines are written is a change of the format."""
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
        if name not in ("check", "log", "deleted_at", "thread_at", "length")
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]))
