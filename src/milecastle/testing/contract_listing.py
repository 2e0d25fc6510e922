from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import cast

import msgspec.structs
import pytest

from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.pages import Page
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.entries import Writer, a_failure, a_key, a_run, make_id


class ListingClauses(ContractHooks):
    """Rules 6, 9 and 13."""

    def test_history_is_listed_newest_first(self, store: Store) -> None:
        # Rule 9: every entry once, whatever its kind, past any page that a store may have.
        writer = Writer().begin(store, 150)
        writer.write(store, (ROLLUP, DELTA, SNAPSHOT, DELTA))
        writer.append(store, at=2, source="fork")
        assert self._seqs(store, writer) == list(range(155, 0, -1))

    def test_history_has_everything_but_payloads(self, store: Store) -> None:
        # Rule 9: nothing is decoded to list it.
        writer = Writer().begin(store).write(store, (DELTA, ROLLUP, SNAPSHOT))
        expected = [
            msgspec.structs.replace(entry, payload=b"") for entry in writer.entries.values()
        ]
        assert list(store.history(writer.key)) == expected[::-1]

    def test_history_is_limited(self, store: Store) -> None:
        # Rule 9: to the newest ones; 0 is none.
        writer = Writer().begin(store, 5)
        assert self._seqs(store, writer, limit=0) == []
        assert self._seqs(store, writer, limit=2) == [5, 4]
        assert self._seqs(store, writer, limit=5) == [5, 4, 3, 2, 1]
        assert self._seqs(store, writer, limit=99) == [5, 4, 3, 2, 1]

    def test_history_is_paged(self, store: Store) -> None:
        # Rule 9: ``before`` is where the page before ended, and is not listed again.
        writer = Writer().begin(store, 5)
        assert self._seqs(store, writer, before=4) == [3, 2, 1]
        assert self._seqs(store, writer, limit=2, before=4) == [3, 2]
        assert self._seqs(store, writer, limit=2, before=2) == [1]
        assert self._seqs(store, writer, before=1) == []
        assert self._seqs(store, writer, before=0) == []
        assert self._seqs(store, writer, before=99) == [5, 4, 3, 2, 1]

    def test_history_does_not_change_while_it_is_read(self, store: Store) -> None:
        # Rule 6: what is appended meanwhile is not listed, and appending does not wait.
        writer = Writer().begin(store, 5)
        listed = store.history(writer.key)
        seqs = [next(listed).seq]
        for entry in islice(listed, 9):
            seqs.append(entry.seq)
            writer.append(store)
        assert seqs == [5, 4, 3, 2, 1]
        assert self._seqs(store, writer) == [9, 8, 7, 6, 5, 4, 3, 2, 1]

    def test_reading_is_fine_while_history_is_read(self, store: Store) -> None:
        # Rule 6: also another history, also of the same thread.
        writer = Writer().begin(store, 4)
        seen: list[int] = []
        for outer in store.history(writer.key):
            chain = store.read(writer.key, outer.seq)
            assert chain is not None
            assert store.locate(writer.key, outer.id) == outer.seq
            seen += [inner.seq for inner in store.history(writer.key, before=outer.seq)]
        assert seen == [3, 2, 1, 2, 1, 1]

    def test_a_history_may_be_left_unread(self, store: Store) -> None:
        # Rule 6: a reader that stops in the middle blocks no other call.
        writer = Writer().begin(store, 3)
        left = [store.history(writer.key) for _ in range(50)]
        assert [next(listed).seq for listed in left] == [3] * 50
        writer.append(store)
        assert self._seqs(store, writer) == [4, 3, 2, 1]

    def test_runs_are_listed_newest_first(self, store: Store) -> None:
        # Rule 9: in the order of their first commit, whatever their clocks and ids say.
        writer = Writer()
        starts = {1: 50, 2: 70, 3: 60, 4: 70, 5: 10, 6: 70}
        for number in (3, 6, 1, 4, 5, 2):
            record = a_run(writer.key, number, started_at=starts[number])
            store.commit(writer.batch(runs=(record,)))
        writer.append(store)
        for number in (6, 3):
            record = a_run(writer.key, number, started_at=starts[number], status="completed")
            store.commit(writer.batch(runs=(record,)))
        ids = [make_id(number) for number in (2, 5, 4, 1, 6, 3)]
        assert [run.run_id for run in store.runs(writer.key)] == ids
        assert [run.run_id for run in store.runs(writer.key, limit=2)] == ids[:2]
        assert list(store.runs(writer.key, limit=0)) == []
        assert len(store.runs(writer.key, limit=99)) == 6

    def test_a_later_record_of_a_run_replaces_the_earlier(self, store: Store) -> None:
        # Rule 9: there is one record for each run, the newest committed.
        writer = Writer().begin(store, 2)
        statuses: tuple[RunStatus, ...] = ("interrupted", "running", "completed")
        for status in statuses:
            record = msgspec.structs.replace(writer.run, status=status, metadata={"at": status})
            store.commit(writer.batch(runs=(record,)))
            assert store.run(writer.key, writer.run.run_id) == record
            assert list(store.runs(writer.key)) == [record]
            assert [info.status for info in store.threads(writer.key.tenant)] == [status]

    def test_a_run_is_found_in_its_thread_only(self, store: Store) -> None:
        # Rule 9: unknown ids, and those of other threads, are ``None``.
        writer = Writer().begin(store)
        other = Writer(a_key("another"), 2).begin(store)
        assert store.run(writer.key, writer.run.run_id) == writer.run
        assert store.run(other.key, writer.run.run_id) is None
        assert store.run(writer.key, make_id(9)) is None
        assert store.run(a_key("nowhere"), writer.run.run_id) is None

    def test_a_run_is_found_by_its_input(self, store: Store) -> None:
        # Rule 9: the newest that has it, however its record changes later, and after a crash.
        writer = Writer()
        inputs = {1: "a", 2: "b", 3: "a", 4: "", 5: "c"}
        records = {
            number: a_run(writer.key, number, input_digest=digest, started_at=9 - number)
            for number, digest in inputs.items()
        }
        for record in records.values():
            store.commit(writer.batch(runs=(record,)))
        ended = msgspec.structs.replace(records[1], status="completed")
        store.commit(writer.batch(runs=(ended,)))
        Writer(a_key("another"), 7).append(store, runs=(a_run(a_key("another"), 7),))
        for seen in (store, self.reopen(store)):
            found = {digest: seen.find_run(writer.key, digest) for digest in "abcd"}
            assert found == {"a": records[3], "b": records[2], "c": records[5], "d": None}
            assert seen.find_run(writer.key, "") is None
            assert seen.find_run(a_key("another"), "a") is None
            assert seen.find_run(a_key("nowhere"), "a") is None

    def test_a_failure_belongs_to_one_run(self, store: Store) -> None:
        # Rule 9: of one thread; it stays when other runs follow.
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

    def test_threads_are_listed_as_their_writers_said(self, store: Store) -> None:
        # Rule 13: every field, with or without entries and records, and the last one counts.
        writer = Writer().begin(store)
        waiting = ThreadInfo(
            key=writer.key,
            status="interrupted",
            run_id=writer.run.run_id,
            graph="another",
            started_at=9,
            ended_at=11,
            wake_at=2**53 + 1,
            questions=3,
        )
        changed = msgspec.structs.replace
        over = changed(waiting, status="completed", ended_at=None, wake_at=None, questions=0)
        for line in (waiting, over, waiting):
            store.commit(writer.batch(thread=line))
            assert list(store.threads(writer.key.tenant)) == [line]
            assert store.thread(writer.key) == line
        failed = changed(writer.run, status="failed", ended_at=12)
        store.commit(writer.batch(runs=(failed,), thread=over))
        assert store.thread(writer.key) == over
        writer.append(store, thread=waiting)
        assert store.thread(writer.key) == waiting
        with self.reopened(store) as again:
            assert list(again.threads(writer.key.tenant)) == [waiting]
            assert again.thread(writer.key) == waiting

    def test_a_line_says_which_workers_may_run_its_thread(self, store: Store) -> None:
        # Rule 13: lane, time, worker and priority, in every list; 0 is the time of the store.
        writer = Writer().begin(store)
        line = msgspec.structs.replace(
            ThreadInfo.of(writer.run),
            status="queued",
            lane="graph@3f \U0001f3f0",
            due_at=2**53 + 1,
            worker="wall-4711",
            priority=-7,
        )
        tenant = writer.key.tenant
        store.commit(writer.batch(thread=line))
        with self.reopened(store) as again:
            assert again.thread(writer.key) == line
            assert list(again.threads(tenant)) == [line]
            assert list(again.threads(tenant, status="queued")) == [line]
            assert again.recent_threads(tenant).items == (line,)
            assert again.recent_threads(tenant, status="queued").items == (line,)
            writer.append(again)
            writer.append(again, SNAPSHOT)
            writer.prune(again, 2)
            assert again.thread(writer.key) == line
            writer.append(again, thread=msgspec.structs.replace(line, due_at=0, worker=""))
            found = again.thread(writer.key)
            assert found is not None
            assert found.due_at
            assert found == msgspec.structs.replace(line, due_at=found.due_at, worker="")
            writer.append(again, thread=ThreadInfo.of(writer.run))
            assert again.thread(writer.key) == ThreadInfo.of(writer.run)

    def test_a_run_record_alone_does_not_change_what_a_thread_is(self, store: Store) -> None:
        # Rule 13: a run that could not be loaded is recorded, and the thread still waits.
        writer = Writer().begin(store)
        waiting = msgspec.structs.replace(
            ThreadInfo.of(writer.run), status="interrupted", questions=1
        )
        store.commit(writer.batch(thread=waiting))
        unloadable = a_run(writer.key, 9, status="failed", ended_at=10)
        failure = a_failure(unloadable.run_id)
        store.commit(writer.batch(runs=(unloadable,), failure=failure, thread=None))
        ended = msgspec.structs.replace(writer.run, status="completed")
        store.commit(writer.batch(runs=(ended,), thread=None))
        writer.append(store)
        assert store.thread(writer.key) == waiting
        assert list(store.threads(writer.key.tenant, status="interrupted")) == [waiting]
        assert list(store.threads(writer.key.tenant, status="failed")) == []

    def test_a_thread_with_nothing_but_runs_is_listed(self, store: Store) -> None:
        # Rule 13: by the last record of the first batch that has any, until a writer says more.
        writer = Writer()
        first, second = a_run(writer.key, 8), a_run(writer.key, 2, status="failed", ended_at=3)
        store.commit(writer.batch(runs=(first, second), thread=None))
        assert store.thread(writer.key) == ThreadInfo.of(second)
        store.commit(writer.batch(runs=(a_run(writer.key, 9, status="failed"),), thread=None))
        assert list(store.threads(writer.key.tenant)) == [ThreadInfo.of(second)]
        writer.begin(store)
        assert store.thread(writer.key) == ThreadInfo.of(writer.run)

    def test_a_thread_is_found_under_its_own_key_only(self, store: Store) -> None:
        # Rules 5 and 13: not under another tenant, and not by a part of its name.
        writer = Writer().begin(store)
        assert store.thread(writer.key) == ThreadInfo.of(writer.run)
        for other in (a_key("threads"), a_key("threa"), a_key(tenant="other"), a_key("nowhere")):
            assert store.thread(other) is None
        store.delete(writer.key)
        assert store.thread(writer.key) is None

    def test_threads_are_listed_by_code_point(self, store: Store) -> None:
        # Rule 9: not as some language sorts them.
        names = ["a", "B", "b", "A", "_", "a1", "a10", "a2", "\u00e9", "e", "z"]
        names += ["\uffff", "\U0001f3f0", "~", " "]
        for number, name in enumerate(names, 1):
            Writer(a_key(name), number).begin(store)
        assert self._threads(store) == sorted(names)

    def test_threads_are_filtered_by_status(self, store: Store) -> None:
        # Rule 9: by the status that the thread has now.
        self._ten_threads(store)
        assert self._threads(store, status="failed") == ["1", "4", "7"]
        assert self._threads(store, status="interrupted") == ["2", "5", "8"]
        assert self._threads(store, status="running") == ["0", "3", "6", "9"]
        assert self._threads(store, status="sleeping") == []

    def test_threads_are_limited_after_filtering(self, store: Store) -> None:
        # Rule 9: a limit counts what is left.
        self._ten_threads(store)
        assert self._threads(store, limit=0) == []
        assert self._threads(store, limit=3) == ["0", "1", "2"]
        assert self._threads(store, limit=2, status="failed") == ["1", "4"]
        assert self._threads(store, limit=2, status="failed", after="1") == ["4", "7"]

    def test_a_limit_may_be_any_number(self, store: Store) -> None:
        # Rule 9: a limit below 0 means 0, and no limit is too large.
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
        # Rule 9: whatever its text is; nothing is folded or cut off.
        self._ten_threads(store)
        for text in ("", "nonsense", "FAILED", "failed ", "failed\0", "fail%", "\0", "\ud800"):
            assert self._threads(store, status=cast("RunStatus", text)) == [], ascii(text)

    def test_threads_are_paged(self, store: Store) -> None:
        # Rule 9: ``after`` is not listed again, and need not be there.
        self._ten_threads(store)
        assert self._threads(store, after="7") == ["8", "9"]
        assert self._threads(store, after="6~") == ["7", "8", "9"]
        assert self._threads(store, after="", limit=1) == ["0"]
        assert self._threads(store, after="9") == []

    def test_a_manifest_is_kept_once(self, store: Store) -> None:
        # Rule 9: the first one stored under a fingerprint stays.
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
        return [
            len(list(store.history(writer.key, limit=limit))),
            len(store.entries(writer.key, limit=limit)),
            len(store.runs(writer.key, limit=limit)),
            len(self._threads(store, limit=limit)),
            len(self._threads(store, limit=limit, status="failed")),
        ]

    def _ten_threads(self, store: Store) -> None:
        statuses: tuple[RunStatus, ...] = ("running", "failed", "interrupted")
        for number in range(10):
            writer = Writer(a_key(str(9 - number)), number + 1).begin(store)
            status = statuses[(9 - number) % 3]
            turned = msgspec.structs.replace(writer.run, status=status)
            store.commit(writer.batch(runs=(turned,)))


_TICK = 0.02
"""Longer than the clock of a file system takes to move on."""


class RecencyClauses(ContractHooks):
    """Rule 9, for a tenant's lists.

    ``lists_by_commit``: whether the store knows in which order its threads were committed. If not,
    as with files, times are as the clauses expect them to be, and it lists by those.
    """

    lists_by_commit = True

    def test_recent_threads_are_in_the_order_of_commits(self, store: Store) -> None:
        # Rule 9: whatever their clocks, ids and names say. Steps and pruning move nothing.
        writers = self._begun(store, "mca", starts=(9, 1, 5))
        assert self._names(store.recent_threads("tenant")) == ["a", "c", "m"]
        self._tell(store, writers["m"], "interrupted")
        assert self._names(store.recent_threads("tenant")) == ["m", "a", "c"]
        if self.lists_by_commit:
            writers["c"].append(store, SNAPSHOT)
            writers["c"].prune(store, 2)
        self._tell(store, writers["a"], "running")
        assert self._names(store.recent_threads("tenant")) == ["a", "m", "c"]
        with self.reopened(store) as again:
            assert self._names(again.recent_threads("tenant")) == ["a", "m", "c"]

    def test_recent_threads_are_listed_by_status(self, store: Store) -> None:
        # Rule 9: that of the line as it is now.
        writers = self._begun(store, "abcd")
        self._tell(store, writers["a"], "failed")
        self._tell(store, writers["c"], "failed")
        assert self._names(store.recent_threads("tenant", status="failed")) == ["c", "a"]
        assert self._names(store.recent_threads("tenant", status="running")) == ["d", "b"]
        assert self._names(store.recent_threads("tenant", status="cancelled")) == []
        self._tell(store, writers["a"], "completed")
        assert self._names(store.recent_threads("tenant", status="failed")) == ["c"]

    def test_threads_are_listed_by_when_they_wake(self, store: Store) -> None:
        # Rule 9: those that sleep, and up to a time if one is given.
        writers = self._begun(store, "dabc")
        for name, wake_at in (("a", 300), ("b", 100), ("c", 200), ("d", 200)):
            self._tell(store, writers[name], "sleeping", wake_at)
        assert self._names(store.waking_threads("tenant")) == ["b", "c", "d", "a"]
        assert self._names(store.waking_threads("tenant", until=200)) == ["b", "c", "d"]
        assert self._names(store.waking_threads("tenant", until=99)) == []
        self._tell(store, writers["c"], "running")
        assert self._names(store.waking_threads("tenant")) == ["b", "d", "a"]
        assert self._paged(partial(store.waking_threads, "tenant", limit=1)) == ["b", "d", "a"]

    def test_runs_of_a_tenant_are_in_the_order_of_commits(self, store: Store) -> None:
        # Rule 9: of their first commit. A later record changes a run and does not move it.
        starts = (9, 1, 5, 3) if self.lists_by_commit else (1, 2, 3, 4)
        writers = self._begun(store, "mca", starts=starts[:3])
        second = a_run(writers["m"].key, 77, started_at=starts[3])
        store.commit(writers["m"].batch(runs=(second,)))
        self._tell(store, writers["c"], "completed")
        assert self._names(store.recent_runs("tenant")) == ["m", "a", "c", "m"]
        runs = store.recent_runs("tenant").items
        assert runs[0] == second
        assert runs[2].status == "completed"
        assert self._names(store.recent_runs("tenant", status="running")) == ["m", "a", "m"]
        assert self._names(store.recent_runs("tenant", status="completed")) == ["c"]
        assert self._names(store.recent_runs("tenant", status="failed")) == []
        with self.reopened(store) as again:
            assert again.recent_runs("tenant").items == runs

    def test_lists_of_a_tenant_are_paged(self, store: Store) -> None:
        # Rule 9: each item once, also if something is committed between two pages.
        self._begun(store, "abcde")
        for limit in (1, 2, 3, 5, 9):
            threads_of = partial(store.recent_threads, "tenant", limit=limit)
            runs_of = partial(store.recent_runs, "tenant", limit=limit)
            assert self._paged(threads_of) == list("edcba")
            assert self._paged(runs_of) == list("edcba")
            running = store.recent_threads("tenant", status="running", limit=limit)
            assert self._names(running) == list("edcba")[:limit]
        threads = store.recent_threads("tenant", limit=2)
        runs = store.recent_runs("tenant", limit=2)
        self._begun(store, "f", first=6)
        rest = store.recent_threads("tenant", limit=9, after=threads.after)
        assert (self._names(rest), rest.after) == (list("cba"), None)
        assert self._names(store.recent_runs("tenant", after=runs.after)) == list("cba")
        assert store.recent_runs("tenant", limit=0).items == ()
        assert store.recent_threads("tenant", limit=-1).items == ()
        for text in ("", "x", "[1]", '{"a": 1}'):
            with pytest.raises(InvalidRequest):
                store.recent_threads("tenant", after=text)
            with pytest.raises(InvalidRequest):
                store.recent_runs("tenant", after=text)

    def test_lists_of_a_tenant_have_what_is_there(self, store: Store) -> None:
        # Rules 5 and 10: nothing of another tenant, and nothing that was deleted.
        writers = self._begun(store, "ab")
        other = Writer(a_key("c", "other"), 9).begin(store)
        for name in "ab":
            self._tell(store, writers[name], "sleeping", 5)
        self._tell(store, other, "sleeping", 5)
        store.delete(writers["b"].key)
        for tenant, names in (("tenant", ["a"]), ("other", ["c"]), ("nobody", []), ("\ud800", [])):
            assert self._names(store.recent_threads(tenant)) == names
            assert self._names(store.waking_threads(tenant)) == names
            assert self._names(store.recent_runs(tenant)) == names
        again = Writer(a_key("b"), 11).begin(store)
        assert self._names(store.recent_threads("tenant")) == ["b", "a"]
        assert [run.run_id for run in store.recent_runs("tenant").items] == [
            again.run.run_id,
            writers["a"].run.run_id,
        ]

    def _begun(
        self, store: Store, names: str, *, starts: tuple[int, ...] = (), first: int = 1
    ) -> dict[str, Writer]:
        found: dict[str, Writer] = {}
        for number, name in enumerate(names, first):
            begun = starts[number - first] if starts else number
            found[name] = Writer(a_key(name), number)
            found[name].run = a_run(found[name].key, number, started_at=begun)
            found[name].begin(store)
            self._wait()
        return found

    def _tell(
        self, store: Store, writer: Writer, status: RunStatus, wake_at: int | None = None
    ) -> None:
        self._wait()
        record = a_run(
            writer.key,
            0,
            run_id=writer.run.run_id,
            started_at=writer.run.started_at,
            status=status,
            wake_at=wake_at,
        )
        store.commit(writer.batch(runs=(record,)))

    def _wait(self) -> None:
        if not self.lists_by_commit:
            time.sleep(_TICK)

    def _paged(self, listed: Callable[..., Page[ThreadInfo] | Page[RunRecord]]) -> list[str]:
        page = listed()
        names = self._names(page)
        while page.after is not None:
            page = listed(after=page.after)
            names += self._names(page)
        return names

    def _names(self, page: Page[ThreadInfo] | Page[RunRecord]) -> list[str]:
        return [item.key.thread for item in page.items]
