from __future__ import annotations

from typing import Any, get_args

import msgspec.structs
import pytest

from milecastle.errors import Conflict
from milecastle.model.checkpoint import SNAPSHOT, Entry, Source
from milecastle.model.run import FailureClass, Mode, Owner, RunStatus, TaskFailure, ThreadInfo
from milecastle.ports.store import Batch, Store
from milecastle.testing.contract_hooks import ContractHooks, everything_of
from milecastle.testing.entries import Writer, a_failure, a_result, a_run, an_entry, make_id

HARD_TEXTS = (
    "",
    " ",
    "plain",
    "two\nlines\r\n",
    "\ttab",
    "quote ' and \" and `",
    "back\\slash \\n \\u0041 %s {x}",
    "caf\u00e9 cafe\u0301",
    "\u2028\u2029\ufeff\uffff",
    "\U0001f3f0 wall",
    "null",
    "x" * 10_000,
)
LARGE_NUMBER = 2**53 + 1
"""More than a float can distinguish."""


class KeepingClauses(ContractHooks):
    """Rules 3 and 4."""

    def test_what_was_committed_is_there_after_a_crash(self, store: Store) -> None:
        # Rule 3: a batch is durable when ``commit`` returns.
        writer = Writer().begin(store, 3)
        writer.append(store, manifest=("c" * 32, b"manifest"))
        failed = a_run(writer.key, 2, status="failed")
        store.commit(writer.batch(results=(a_result(4),)))
        store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
        before = everything_of(store, writer.key)
        with self.reopened(store) as again:
            assert everything_of(again, writer.key) == before
            assert len(before["history"]) == 4
            assert before["failures"] == [a_failure(failed.run_id), None]
            assert again.manifest(writer.key, "c" * 32) == b"manifest"

    def test_the_fence_holds_after_a_crash(self, store: Store) -> None:
        # Rules 1 and 3: the head is where it was.
        writer = Writer().begin(store, 3)
        with self.reopened(store) as again:
            late = an_entry(3, id=make_id(99))
            with pytest.raises(Conflict):
                again.commit(Batch(key=writer.key, head=2, entries=(late,)))
            writer.append(again)
            assert [entry.seq for entry in again.history(writer.key)] == [4, 3, 2, 1]

    def test_what_was_refused_is_not_there_after_a_crash(self, store: Store) -> None:
        # Rules 2 and 3: a refused batch leaves no trace for later either.
        writer = Writer().begin(store, 2)
        before = everything_of(store, writer.key)
        with pytest.raises(Conflict):
            store.commit(writer.batch(an_entry(3), an_entry(3), runs=(a_run(writer.key, 2),)))
        with self.reopened(store) as again:
            assert everything_of(again, writer.key) == before

    def test_a_deletion_outlasts_a_crash(self, store: Store) -> None:
        # Rules 3 and 10: what was deleted does not come back.
        writer = Writer().begin(store, 3)
        store.delete(writer.key)
        with self.reopened(store) as again:
            assert again.read(writer.key) is None
            assert list(again.threads(writer.key.tenant)) == []

    def test_a_pruning_outlasts_a_crash(self, store: Store) -> None:
        # Rules 3 and 11: what was pruned does not come back.
        writer = Writer().begin(store, 3)
        writer.append(store, SNAPSHOT)
        writer.prune(store, 3)
        before = everything_of(store, writer.key)
        with self.reopened(store) as again:
            assert everything_of(again, writer.key) == before
            assert [entry.seq for entry in again.history(writer.key)] == [4, 3]

    def test_payloads_come_back_byte_for_byte(self, store: Store) -> None:
        # Rule 4: none, every byte value, text that looks like a format, ends of all kinds.
        every = bytes(range(256))
        payloads = [b"", b"\0", every, every[::-1], b"null", b'{"a": 1}\n', b"\r\n", b"a\0", b" a "]
        payloads += [b"\xff\xfe", "\u2028".encode(), b"'; --"]
        self._check_payloads(store, payloads)

    def test_large_payloads_come_back_byte_for_byte(self, store: Store) -> None:
        # Rule 4: a megabyte, one that packs well and one that does not.
        noise = bytes(number * number * 7919 >> 5 & 255 for number in range(2**16)) * 16
        self._check_payloads(store, [b"\0" * 2**20, noise, noise + b"\n"])

    def _check_payloads(self, store: Store, payloads: list[bytes]) -> None:
        writer = Writer()
        for payload in payloads:
            entry = writer.append(store, SNAPSHOT, payload=payload)
            store.commit(writer.batch(results=(a_result(entry.seq, "task", payload),)))
            chain = store.read(writer.key)
            assert chain is not None
            # Compared before the assert: pytest would explain a difference of megabytes, slowly.
            stored = [found.payload for found in chain.entries]
            stored += [result.payload for result in chain.results]
            came_back = stored == [payload, payload]
            assert came_back
        with self.reopened(store) as again:
            for seq, payload in enumerate(payloads, 1):
                chain = again.read(writer.key, seq)
                assert chain is not None
                came_back = chain.entries[-1].payload == payload
                assert came_back

    def test_every_field_of_an_entry_comes_back(self, store: Store) -> None:
        # Rule 4: empty and not, short and long, in any script.
        many = tuple(f"node {number}" for number in range(1_000))
        variants: list[dict[str, Any]] = [
            {"parent_id": None, "nodes": (), "next": (), "route": ()},
            {"nodes": ("",), "next": ("", ""), "route": ("a",)},
            {"nodes": many, "next": many[::-1], "route": many[:3]},
            {"nodes": HARD_TEXTS, "next": HARD_TEXTS, "route": HARD_TEXTS},
            {"nodes": ("a,b", "c"), "next": ("a", "b,c"), "route": ('["a"]',)},
            {"step": 0, "created_at": LARGE_NUMBER, "fingerprint": "0" * 64},
            {"run_id": make_id(LARGE_NUMBER), "id": make_id(2**100)},
            {"base_seq": 1, "roll_seq": 1, "kind": SNAPSHOT},
            *({"note": text} for text in HARD_TEXTS),
            *({"source": source} for source in get_args(Source)),
        ]
        writer = Writer()
        for seq, variant in enumerate(variants, 1):
            entry = an_entry(seq, **variant)
            store.commit(Batch(key=writer.key, head=seq - 1, entries=(entry,)))
            assert self._head(store, writer) == entry
        with self.reopened(store) as again:
            assert self._head(again, writer).seq == len(variants)

    def _head(self, store: Store, writer: Writer) -> Entry:
        chain = store.read(writer.key)
        assert chain is not None
        return chain.entries[-1]

    def test_every_field_of_a_result_comes_back(self, store: Store) -> None:
        # Rule 4: whatever the tasks are called.
        writer = Writer().begin(store)
        results = tuple(a_result(1, task, b"%d" % number) for number, task in enumerate(HARD_TEXTS))
        store.commit(writer.batch(results=results))
        chain = store.read(writer.key)
        assert chain is not None
        assert {result.task: result for result in chain.results} == {
            result.task: result for result in results
        }

    def test_every_field_of_a_record_comes_back(self, store: Store) -> None:
        # Rule 4: every status, every mode, texts of all kinds.
        writer = Writer()
        texts = dict(zip(HARD_TEXTS, reversed(HARD_TEXTS), strict=True))
        variants: list[dict[str, Any]] = [
            {"previous_run_id": make_id(7), "retry_count": 3, "ended_at": LARGE_NUMBER},
            {"previous_run_id": None, "ended_at": None, "metadata": {}},
            {"status": "sleeping", "wake_at": LARGE_NUMBER},
            {"status": "sleeping", "wake_at": 0},
            {"metadata": texts, "started_at": LARGE_NUMBER},
            {"owner": Owner(host="h", boot_id="", pid=LARGE_NUMBER, started="")},
            *(
                {"owner": Owner(host=text, boot_id=text, pid=1, started=text)}
                for text in HARD_TEXTS
            ),
            *({"graph": text, "input_digest": text} for text in HARD_TEXTS),
            *({"status": status} for status in get_args(RunStatus)),
            *({"mode": mode} for mode in get_args(Mode)),
        ]
        for number, variant in enumerate(variants, 1):
            record = a_run(writer.key, number, **variant)
            store.commit(writer.batch(runs=(record,)))
            assert store.run(writer.key, record.run_id) == record
            assert store.thread(writer.key) == ThreadInfo.of(record)
        assert len(store.runs(writer.key)) == len(variants)

    def test_every_field_of_a_failure_comes_back(self, store: Store) -> None:
        # Rule 4: an error's message may hold anything, NUL too.
        writer = Writer()
        variants: list[dict[str, Any]] = [
            {"node": None, "traceback": (), "causes": ()},
            {"node": "caf\u00e9", "attempt": 4, "time": LARGE_NUMBER},
            {"traceback": HARD_TEXTS, "causes": HARD_TEXTS},
            {"tasks": tuple(_task_failure(text) for text in HARD_TEXTS)},
            {"message": "NUL \0 in the middle", "error_type": "Outer.Inner"},
            *({"message": text} for text in HARD_TEXTS),
            *({"failure_class": each, "resumable": False} for each in get_args(FailureClass)),
        ]
        for number, variant in enumerate(variants, 1):
            record = a_run(writer.key, number, status="failed")
            failure = a_failure(record.run_id, **variant)
            store.commit(writer.batch(runs=(record,), failure=failure))
            assert store.failure(writer.key, record.run_id) == failure

    def test_a_record_is_not_changed_from_outside(self, store: Store) -> None:
        # Rule 4: the writer and the reader of a record hold copies.
        writer = Writer()
        written = a_run(writer.key, metadata={"host": "a"})
        expected = msgspec.structs.replace(written, metadata={"host": "a"})
        store.commit(writer.batch(runs=(written,)))
        written.metadata["host"] = "b"
        assert store.run(writer.key, written.run_id) == expected
        for read in (store.run(writer.key, written.run_id), store.runs(writer.key)[0]):
            assert read is not None
            read.metadata["host"] = "c"
            assert store.run(writer.key, written.run_id) == expected


def _task_failure(text: str) -> TaskFailure:
    return TaskFailure(task=f"work#{text}", node=text, error_type=text, message=text, attempt=2)
