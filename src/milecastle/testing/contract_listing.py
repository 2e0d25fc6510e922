"""The clauses on lists: history, runs, failures, threads, manifests."""

from __future__ import annotations

from itertools import islice
from typing import cast

import msgspec.structs

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import Writer, a_failure, a_key, a_run, make_id

__all__ = ["ListingClauses"]


class ListingClauses(ContractHooks):
    """Rules 6 and 9."""

    def test_history_is_listed_newest_first(self, store: Store) -> None:
        """Rule 9: every entry once, whatever its kind, past any page that a store may have."""
        writer = Writer().begin(store, 150)
        writer.write(store, (ROLLUP, DELTA, SNAPSHOT, DELTA))
        writer.append(store, at=2, source="fork")
        assert self._seqs(store, writer) == list(range(155, 0, -1))

    def test_history_has_everything_but_payloads(self, store: Store) -> None:
        """Rule 9: nothing is decoded to list it."""
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, SNAPSHOT))
        expected = [
            msgspec.structs.replace(entry, payload=b"") for entry in writer.entries.values()
        ]
        assert list(store.history(writer.key)) == expected[::-1]

    def test_history_is_limited(self, store: Store) -> None:
        """Rule 9: to the newest ones; 0 is none."""
        writer = Writer().begin(store, 5)
        assert self._seqs(store, writer, limit=0) == []
        assert self._seqs(store, writer, limit=2) == [5, 4]
        assert self._seqs(store, writer, limit=5) == [5, 4, 3, 2, 1]
        assert self._seqs(store, writer, limit=99) == [5, 4, 3, 2, 1]

    def test_history_is_paged(self, store: Store) -> None:
        """Rule 9: ``before`` is where the page before ended, and is not listed again."""
        writer = Writer().begin(store, 5)
        assert self._seqs(store, writer, before=4) == [3, 2, 1]
        assert self._seqs(store, writer, limit=2, before=4) == [3, 2]
        assert self._seqs(store, writer, limit=2, before=2) == [1]
        assert self._seqs(store, writer, before=1) == []
        assert self._seqs(store, writer, before=0) == []
        assert self._seqs(store, writer, before=99) == [5, 4, 3, 2, 1]

    def test_history_does_not_change_while_it_is_read(self, store: Store) -> None:
        """Rule 6: what is appended meanwhile is not listed, and appending does not wait."""
        writer = Writer().begin(store, 5)
        listed = store.history(writer.key)
        seqs = [next(listed).seq]
        for entry in islice(listed, 9):
            seqs.append(entry.seq)
            writer.append(store)
        assert seqs == [5, 4, 3, 2, 1]
        assert self._seqs(store, writer) == [9, 8, 7, 6, 5, 4, 3, 2, 1]

    def test_reading_is_fine_while_history_is_read(self, store: Store) -> None:
        """Rule 6: also another history, also of the same thread."""
        writer = Writer().begin(store, 4)
        seen: list[int] = []
        for outer in store.history(writer.key):
            chain = store.read(writer.key, outer.seq)
            assert chain is not None
            assert store.locate(writer.key, outer.id) == outer.seq
            seen += [inner.seq for inner in store.history(writer.key, before=outer.seq)]
        assert seen == [3, 2, 1, 2, 1, 1]

    def test_a_history_may_be_left_unread(self, store: Store) -> None:
        """Rule 6: who stops in the middle holds nobody up."""
        writer = Writer().begin(store, 3)
        left = [store.history(writer.key) for _ in range(50)]
        assert [next(listed).seq for listed in left] == [3] * 50
        writer.append(store)
        assert self._seqs(store, writer) == [4, 3, 2, 1]

    def test_runs_are_listed_newest_first(self, store: Store) -> None:
        """Rule 9: by start, not by when they were written; ties by run id, the greater first."""
        writer = Writer()
        starts = {1: 50, 2: 70, 3: 60, 4: 70, 5: 10, 6: 70}
        for number in (3, 6, 1, 4, 5, 2):
            record = a_run(writer.key, number, started_at=starts[number])
            store.commit(writer.batch(runs=(record,)))
        ids = [make_id(number) for number in (6, 4, 2, 3, 1, 5)]
        assert [run.run_id for run in store.runs(writer.key)] == ids
        assert [run.run_id for run in store.runs(writer.key, limit=2)] == ids[:2]
        assert list(store.runs(writer.key, limit=0)) == []
        assert len(store.runs(writer.key, limit=99)) == 6

    def test_a_later_record_of_a_run_replaces_the_earlier(self, store: Store) -> None:
        """Rule 9: there is one record for each run, the newest committed."""
        writer = Writer().begin(store, 2)
        statuses: tuple[RunStatus, ...] = ("interrupted", "running", "completed")
        for status in statuses:
            record = msgspec.structs.replace(writer.run, status=status, metadata={"at": status})
            store.commit(writer.batch(runs=(record,)))
            assert store.run(writer.key, writer.run.run_id) == record
            assert list(store.runs(writer.key)) == [record]
            assert [info.status for info in store.threads(writer.key.tenant)] == [status]

    def test_a_run_is_found_in_its_thread_only(self, store: Store) -> None:
        """Rule 9: unknown ids, and those of other threads, are ``None``."""
        writer = Writer().begin(store)
        other = Writer(a_key("another"), 2).begin(store)
        assert store.run(writer.key, writer.run.run_id) == writer.run
        assert store.run(other.key, writer.run.run_id) is None
        assert store.run(writer.key, make_id(9)) is None
        assert store.run(a_key("nowhere"), writer.run.run_id) is None

    def test_a_failure_belongs_to_one_run(self, store: Store) -> None:
        """Rule 9: of one thread; it stays when other runs follow."""
        writer = Writer().begin(store)
        other = Writer(a_key("another"), 2).begin(store)
        failed = msgspec.structs.replace(writer.run, status="failed")
        failure = a_failure(failed.run_id)
        store.commit(writer.batch(runs=(failed,), failure=failure))
        retry = a_run(writer.key, 3)
        writer.append(store, runs=(retry,))
        second = a_failure(retry.run_id, message="again")
        store.commit(writer.batch(failure=second))
        assert store.failure(writer.key, failed.run_id) == failure
        assert store.failure(writer.key, retry.run_id) == second
        assert store.failure(other.key, failed.run_id) is None
        assert store.failure(other.key, other.run.run_id) is None

    def test_threads_are_listed_with_their_newest_run(self, store: Store) -> None:
        """Rule 9: newest by start, not by when it was written."""
        writer = Writer().begin(store)
        newest = a_run(writer.key, 9, status="interrupted", graph="newer", ended_at=11)
        store.commit(writer.batch(runs=(newest,)))
        store.commit(writer.batch(runs=(a_run(writer.key, 4, status="failed"),)))
        assert list(store.threads(writer.key.tenant)) == [
            ThreadInfo(
                key=writer.key,
                status="interrupted",
                run_id=newest.run_id,
                graph="newer",
                started_at=9,
                ended_at=11,
            )
        ]

    def test_threads_are_listed_by_code_point(self, store: Store) -> None:
        """Rule 9: not as some language sorts them."""
        names = ["a", "B", "b", "A", "_", "a1", "a10", "a2", "\u00e9", "e", "z"]
        names += ["\uffff", "\U0001f3f0", "~", " "]
        for number, name in enumerate(names, 1):
            Writer(a_key(name), number).begin(store)
        assert self._threads(store) == sorted(names)

    def test_threads_are_filtered_by_status(self, store: Store) -> None:
        """Rule 9: by the status that the newest run has now."""
        self._ten_threads(store)
        assert self._threads(store, status="failed") == ["1", "4", "7"]
        assert self._threads(store, status="interrupted") == ["2", "5", "8"]
        assert self._threads(store, status="running") == ["0", "3", "6", "9"]
        assert self._threads(store, status="sleeping") == []

    def test_threads_are_limited_after_filtering(self, store: Store) -> None:
        """Rule 9: a limit counts what is left."""
        self._ten_threads(store)
        assert self._threads(store, limit=0) == []
        assert self._threads(store, limit=3) == ["0", "1", "2"]
        assert self._threads(store, limit=2, status="failed") == ["1", "4"]
        assert self._threads(store, limit=2, status="failed", after="1") == ["4", "7"]

    def test_a_limit_may_be_any_number(self, store: Store) -> None:
        """Rule 9: one below 0 is 0, and none is too great."""
        self._ten_threads(store)
        writer = Writer(a_key("long")).begin(store, 5)
        for number in range(2, 5):
            store.commit(writer.batch(runs=(a_run(writer.key, number),)))
        everything = self._counts(store, writer, None)
        assert everything == [5, 5, 4, 11, 3]
        for limit in (-1, -3, -(2**31), -(2**63) - 1, -(2**70)):
            assert self._counts(store, writer, limit) == [0] * 5
        for limit in (2**31, 2**32, 2**63 - 1, 2**63, 2**64, 2**70):
            assert self._counts(store, writer, limit) == everything

    def test_a_status_that_no_run_has_lists_nothing(self, store: Store) -> None:
        """Rule 9: whatever its text is; nothing is folded or cut off."""
        self._ten_threads(store)
        for text in ("", "nonsense", "FAILED", "failed ", "failed\0", "fail%", "\0", "\ud800"):
            assert self._threads(store, status=cast("RunStatus", text)) == [], ascii(text)

    def test_threads_are_paged(self, store: Store) -> None:
        """Rule 9: ``after`` is not listed again, and need not be there."""
        self._ten_threads(store)
        assert self._threads(store, after="7") == ["8", "9"]
        assert self._threads(store, after="6~") == ["7", "8", "9"]
        assert self._threads(store, after="", limit=1) == ["0"]
        assert self._threads(store, after="9") == []

    def test_a_manifest_is_kept_once(self, store: Store) -> None:
        """Rule 9: the first one stored under a fingerprint stays."""
        writer = Writer()
        payload = bytes(range(256))
        store.commit(writer.batch(manifest=("a" * 32, payload)))
        store.commit(writer.batch(manifest=("a" * 32, b"another")))
        store.commit(writer.batch(manifest=("b" * 32, b"")))
        assert store.manifest(writer.key, "a" * 32) == payload
        assert store.manifest(writer.key, "b" * 32) == b""
        assert store.manifest(writer.key, "c" * 32) is None

    def _seqs(self, store: Store, writer: Writer, **page: int) -> list[int]:
        limit, before = page.get("limit"), page.get("before")
        return [entry.seq for entry in store.history(writer.key, limit=limit, before=before)]

    def _threads(
        self,
        store: Store,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[str]:
        found = store.threads("tenant", status=status, limit=limit, after=after)
        return [info.key.thread for info in found]

    def _counts(self, store: Store, writer: Writer, limit: int | None) -> list[int]:
        """How much is listed in each way that has a limit."""
        return [
            len(list(store.history(writer.key, limit=limit))),
            len(store.entries(writer.key, limit=limit)),
            len(store.runs(writer.key, limit=limit)),
            len(self._threads(store, limit=limit)),
            len(self._threads(store, limit=limit, status="failed")),
        ]

    def _ten_threads(self, store: Store) -> None:
        """Fill threads "0" to "9": running, failed, interrupted, running and so on."""
        statuses: tuple[RunStatus, ...] = ("running", "failed", "interrupted")
        for number in range(10):
            writer = Writer(a_key(str(9 - number)), number + 1).begin(store)
            status = statuses[(9 - number) % 3]
            turned = msgspec.structs.replace(writer.run, status=status)
            store.commit(writer.batch(runs=(turned,)))
