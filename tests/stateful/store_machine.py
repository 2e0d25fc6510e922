"""A Hypothesis state machine: whatever is done to a store, a plain model agrees with it.

The model is a dict of threads; a thread is a dict of entries, one of results by task, and two
of records and failures. Needs Hypothesis and pytest, and is therefore not imported by
``milecastle.testing``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, get_args

import msgspec.structs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.checkpoint import (
    DELTA,
    HOLDING,
    ROLLUP,
    SNAPSHOT,
    Kind,
    Source,
)
from milecastle.model.keys import ThreadKey
from milecastle.model.run import TRANSITIONS, RunStatus, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.store import Batch, Store
from milecastle.ports.tags import Tags
from milecastle.testing.entries import (
    Writer,
    a_failure,
    a_result,
    a_run,
    an_entry,
    chain_of,
    make_id,
    state_of,
)
from tests.stateful.thread_model import ThreadModel

__all__ = ["StoreMachine", "store_machine"]

KEYS = (ThreadKey("t", "a"), ThreadKey("t", "A/"), ThreadKey("T", "a"))
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
SOURCES: tuple[Source, ...] = get_args(Source)
KINDS: tuple[Kind, ...] = (DELTA, DELTA, DELTA, ROLLUP, ROLLUP, SNAPSHOT)
TAGS = ("x", "X", "x/", "\u00e9")

keys = st.sampled_from(KEYS)
limits = st.none() | st.integers(0, 6)
picks = st.integers(0, 10**6)
some_tags = st.sets(st.sampled_from(TAGS), max_size=3)
tenants = st.sampled_from(["t", "T", "other"])
afters = st.none() | st.sampled_from(["", "A", "A/", "a", "b"])


class StoreMachine(RuleBasedStateMachine):
    """Does anything to a store, in any order; ``store_machine`` says to which."""

    hooks: ClassVar[tuple[Callable[[], Store], Callable[[Store], Store]]]

    def __init__(self) -> None:
        super().__init__()
        self.store: Store = self.hooks[0]()
        self.threads: dict[ThreadKey, ThreadModel] = {}
        self.deleted: list[Writer] = []
        self.touched = KEYS[0]
        self.count = 0

    def teardown(self) -> None:
        """Close the store."""
        self.store.close()

    @rule(key=keys, kind=st.sampled_from(KINDS), source=st.sampled_from(SOURCES))
    def append(self, key: ThreadKey, kind: Kind, source: Source) -> None:
        """Append one entry on top of the head."""
        thread = self._thread(key)
        thread.writer.append(self.store, kind, source=source)
        if source not in HOLDING:
            thread.results = {}

    @rule(key=keys, kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=8))
    def append_several(self, key: ThreadKey, kinds: list[Kind]) -> None:
        """Append several entries in one batch."""
        thread = self._thread(key)
        head = thread.head
        for kind in kinds:
            thread.writer.keep(thread.writer.plan(kind))
        entries = tuple(thread.writer.entries[head + 1 + index] for index in range(len(kinds)))
        self.store.commit(Batch(key=key, head=head, entries=entries))
        thread.results = {}

    @rule(key=keys, source=st.sampled_from(sorted(HOLDING)))
    def hold(self, key: ThreadKey, source: Source) -> None:
        """Append what leaves the thread in its step: a takeover, an answer and so on."""
        self.append(key, DELTA, source)

    @rule(key=keys, pick=picks)
    def fork(self, key: ThreadKey, pick: int) -> None:
        """Append a snapshot that branches off an older entry."""
        thread = self._thread(key)
        if thread.writer.entries:
            at = sorted(thread.writer.entries)[pick % len(thread.writer.entries)]
            thread.writer.append(self.store, SNAPSHOT, at=at, source="fork")
            thread.results = {}

    @rule(key=keys, offset=st.sampled_from([-3, -1, 1, 2]), full=st.booleans())
    def commit_at_a_wrong_head(self, key: ThreadKey, offset: int, full: bool) -> None:
        """Commit with a head that is not the head: refused, whatever the batch holds."""
        thread = self._thread(key)
        head = thread.head + offset
        record = a_run(key, 10**9)
        entries = (an_entry(head + 1, id=make_id(10**9)),) if full else ()
        self._refused(
            Batch(
                key=key,
                head=head,
                entries=entries,
                results=(a_result(head, "refused"),),
                runs=(record,),
                failure=a_failure(record.run_id),
                manifest=("refused", b""),
                thread=ThreadInfo.of(record),
                tags=TagChange(("x",), ("X",)),
            ),
            thread.head,
        )
        assert self.store.run(key, record.run_id) is None
        assert self.store.failure(key, record.run_id) is None
        assert self.store.manifest(key, "refused") is None

    @rule(key=keys, wrong=st.sampled_from([-1, 0, 1, 3, 4]))
    def commit_entries_that_do_not_follow(self, key: ThreadKey, wrong: int) -> None:
        """Commit two entries of which the second does not follow: neither is stored."""
        thread = self._thread(key)
        first = thread.writer.plan(SNAPSHOT)
        second = an_entry(thread.head + wrong, id=make_id(10**9))
        self._refused(thread.writer.batch(first, second), thread.head)
        assert self.store.locate(key, first.id) is None

    @rule(key=keys, tasks=st.sets(st.sampled_from(["a", "b", "c", "d"]), min_size=1))
    def keep_results(self, key: ThreadKey, tasks: set[str]) -> None:
        """Keep results of tasks of the step that the head waits for; some had one before."""
        thread = self._thread(key)
        if thread.head:
            payload = b"%d" % self._next()
            results = tuple(a_result(thread.head, task, payload) for task in sorted(tasks))
            self.store.commit(thread.writer.batch(results=results))
            thread.results |= {result.task: result for result in results}

    @rule(key=keys, start=st.integers(0, 5), told=st.booleans())
    def begin_a_run(self, key: ThreadKey, start: int, told: bool) -> None:
        """Record a new run, with or without a line for the index; starts may be equal."""
        thread = self._thread(key)
        record = a_run(key, self._next(), started_at=start)
        line = ThreadInfo.of(record)
        given = line if told else None
        self.store.commit(thread.writer.batch(runs=(record,), thread=given))
        thread.runs[record.run_id] = record
        thread.info = given or thread.info or line

    @rule(key=keys, status=st.sampled_from(STATUSES), pick=picks, entry=st.booleans())
    def say_what_a_thread_is(
        self, key: ThreadKey, status: RunStatus, pick: int, entry: bool
    ) -> None:
        """Change the line of a thread that has a run."""
        thread = self._thread(key)
        if thread.info is None:
            return
        run = list(thread.runs.values())[pick % len(thread.runs)]
        wake_at = pick if pick % 3 else None
        line = msgspec.structs.replace(
            ThreadInfo.of(run),
            status=status,
            wake_at=wake_at,
            questions=pick % 5,
            lane=f"lane {pick % 2}",
            due_at=pick + 1 if pick % 4 else None,
            worker="worker" if pick % 5 == 0 else "",
            priority=pick % 3 - 1,
        )
        if entry:
            thread.writer.append(self.store, thread=line)
            thread.results = {}
        else:
            self.store.commit(thread.writer.batch(thread=line))
        thread.info = line

    @rule(key=keys, pick=picks)
    def turn_a_run(self, key: ThreadKey, pick: int) -> None:
        """Let a run become what it may become; one that failed leaves a failure."""
        thread = self._thread(key)
        live = [run for run in thread.newest_runs() if TRANSITIONS[run.status]]
        if not live:
            return
        run = live[pick % len(live)]
        choices = TRANSITIONS[run.status]
        status = choices[pick // 7 % len(choices)]
        wake_at = pick if status == "sleeping" else None
        turned = msgspec.structs.replace(run, status=status, ended_at=pick, wake_at=wake_at)
        failure = a_failure(run.run_id, time=pick) if status == "failed" else None
        self.store.commit(thread.writer.batch(runs=(turned,), failure=failure))
        thread.runs[run.run_id] = turned
        thread.info = ThreadInfo.of(turned)
        if failure:
            thread.failures[run.run_id] = failure

    @rule(key=keys, added=some_tags, removed=some_tags, pick=picks)
    def change_tags(self, key: ThreadKey, added: set[str], removed: set[str], pick: int) -> None:
        """Change the tags of a thread: alone, or with its line and perhaps an entry.

        One that has no line gets none, unless with a line.
        """
        thread = self._thread(key)
        change = TagChange(tuple(sorted(added - removed)), tuple(sorted(removed)))
        if thread.info is None or pick % 3 == 0:
            self.store.commit(thread.writer.batch(tags=change))
        elif pick % 3 == 1:
            self.store.commit(thread.writer.batch(thread=thread.info, tags=change))
        else:
            thread.writer.append(self.store, thread=thread.info, tags=change)
            thread.results = {}
        if thread.info is not None:
            thread.tags = change.applied(thread.tags)

    @rule(tenant=tenants, tag=st.sampled_from(TAGS), limit=limits, after=afters)
    def list_tagged(self, tenant: str, tag: str, limit: int | None, after: str | None) -> None:
        """List some threads that have a tag."""
        expected = [
            self.threads[key].info
            for key in sorted(self.threads)
            if key.tenant == tenant
            and tag in self.threads[key].tags
            and (after is None or key.thread > after)
        ]
        found = _tags(self.store).threads(tenant, tag, limit=limit, after=after)
        assert list(found) == expected[:limit]

    @rule(key=keys, fingerprint=st.sampled_from(["f", "g"]))
    def keep_a_manifest(self, key: ThreadKey, fingerprint: str) -> None:
        """Store a manifest; another tenant has another one under the same fingerprint."""
        thread = self._thread(key)
        if thread.exists:
            manifest = f"{fingerprint} of {key.tenant}".encode()
            self.store.commit(thread.writer.batch(manifest=(fingerprint, manifest)))
            assert self.store.manifest(key, fingerprint) == manifest

    @rule(key=keys, fenced=st.booleans())
    def delete(self, key: ThreadKey, fenced: bool) -> None:
        """Delete a thread that is there, or not."""
        self.touched = key
        thread = self.threads.pop(key, None)
        head = (thread.head if thread else 0) if fenced else None
        assert self.store.delete(key, head=head) is (thread is not None and thread.exists)
        if thread is not None and thread.head:
            self.deleted.append(thread.writer)

    @rule(key=keys, offset=st.sampled_from([-2, -1, 1, 2]))
    def delete_at_a_wrong_head(self, key: ThreadKey, offset: int) -> None:
        """Delete a thread that moved: refused."""
        thread = self._thread(key)
        with pytest.raises(Conflict) as caught:
            self.store.delete(key, head=thread.head + offset)
        assert caught.value.head == thread.head

    @rule(pick=picks)
    def write_to_a_deleted_thread(self, pick: int) -> None:
        """Let a writer continue whose thread was deleted: refused."""
        if self.deleted:
            writer = self.deleted[pick % len(self.deleted)]
            head = self._thread(writer.key).head
            if head != writer.head:
                self._refused(writer.batch(writer.plan()), head)

    @rule(key=keys, kinds=st.lists(st.sampled_from(KINDS), max_size=8), pick=picks)
    def prune(self, key: ThreadKey, kinds: list[Kind], pick: int) -> None:
        """Write some more, and prune somewhere below what may still be rolled up."""
        if kinds:
            self.append_several(key, kinds)
        writer = self._thread(key).writer
        first = min(writer.entries, default=0)
        last = writer.entries[writer.head].roll_seq if first else 0
        if first and first <= last:
            cut = first + pick % (last - first + 1)
            assert writer.prune(self.store, cut) == cut - first

    @rule(key=keys, above=st.integers(1, 3))
    def prune_too_much(self, key: ThreadKey, above: int) -> None:
        """Prune what a writer may still roll up, or at a head that moved: refused."""
        writer = self._thread(key).writer
        if not writer.entries:
            return
        cut = writer.entries[writer.head].roll_seq + above
        with pytest.raises(InvalidRequest):
            self.store.prune(key, head=writer.head, cut=cut, rewritten=())
        with pytest.raises(Conflict) as caught:
            self.store.prune(key, head=writer.head + above, cut=1, rewritten=())
        assert caught.value.head == writer.head

    @rule()
    def reopen(self) -> None:
        """Open the data again, as after a crash."""
        self.store = self.hooks[1](self.store)

    @rule(key=keys, above=st.integers(0, 3))
    def read_what_is_not_there(self, key: ThreadKey, above: int) -> None:
        """Read below what was pruned and above the head."""
        thread = self._thread(key)
        first = min(thread.writer.entries, default=1)
        assert self.store.read(key, first - 1 - above) is None
        assert self.store.read(key, thread.head + 1 + above) is None

    @rule(key=keys, limit=limits, pick=picks, paged=st.booleans())
    def list_history(self, key: ThreadKey, limit: int | None, pick: int, paged: bool) -> None:
        """List a page of a history."""
        thread = self._thread(key)
        self._check_history(thread, limit, pick % (thread.head + 3) if paged else None)

    @rule(key=keys, limit=limits, pick=picks)
    def follow(self, key: ThreadKey, limit: int | None, pick: int) -> None:
        """Read a page of entries with payloads."""
        thread = self._thread(key)
        self._check_entries(thread, limit, pick % (thread.head + 3) - 1)

    @rule(key=keys, limit=limits)
    def list_runs(self, key: ThreadKey, limit: int | None) -> None:
        """List some runs of a thread."""
        self._check_runs(self._thread(key), limit)

    @rule(
        tenant=tenants,
        status=st.none() | st.sampled_from(STATUSES[:3]),
        limit=limits,
        after=afters,
    )
    def list_threads(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> None:
        """List some threads of a tenant."""
        self._check_threads(tenant, status, limit, after)

    @invariant()
    def the_heads_agree(self) -> None:
        """Whatever was done, the newest entry of each thread is the one that the model has."""
        for key in KEYS:
            head = self.store.read(key)
            thread = self.threads.get(key)
            newest = thread.writer.entries[thread.head] if thread and thread.head else None
            assert (head.entries[-1] if head else None) == newest
            bare = msgspec.structs.replace(newest, payload=b"") if newest else None
            assert self.store.head(key) == bare
            rows = {row.task: row for row in self.store.results(key)}
            assert rows == {row.task: row for row in (head.results if head else ())}
            state = self.store.read_state(key)
            assert (state and state.entries) == (head and head.entries)
            assert all(self.store.count_results(key, task) for task in rows)

    @invariant()
    def the_thread_agrees(self) -> None:
        """All that can be read of the thread that was last spoken of is what the model has."""
        thread = self._thread(self.touched)
        for seq, entry in thread.writer.entries.items():
            self._check_chain(thread, seq)
            assert self.store.locate(self.touched, entry.id) == seq
        self._check_history(thread, None, None)
        self._check_entries(thread, None, 0)
        self._check_runs(thread, None)
        assert self.store.thread(self.touched) == thread.info
        self._check_threads(self.touched.tenant, None, None, None)
        found = _tags(self.store).of(self.touched.tenant, [key.thread for key in KEYS])
        assert found == {
            key.thread: known.tags
            for key, known in self.threads.items()
            if key.tenant == self.touched.tenant and known.tags
        }

    def _thread(self, key: ThreadKey) -> ThreadModel:
        self.touched = key
        if key not in self.threads:
            self.threads[key] = ThreadModel(key, self._next())
        return self.threads[key]

    def _next(self) -> int:
        self.count += 1
        return self.count

    def _refused(self, batch: Batch, head: int) -> None:
        with pytest.raises(Conflict) as caught:
            self.store.commit(batch)
        conflict = caught.value
        assert (conflict.tenant, conflict.thread) == (batch.key.tenant, batch.key.thread)
        assert conflict.head == head

    def _check_chain(self, thread: ThreadModel, seq: int) -> None:
        writer = thread.writer
        chain = self.store.read(writer.key, seq)
        assert chain is not None
        assert chain.entries == chain_of(writer.entries, seq)
        assert state_of(chain.entries) == writer.states[seq]
        results = sorted(chain.results, key=lambda result: result.task)
        kept = sorted(thread.results.items()) if seq == thread.head else []
        assert results == [result for _, result in kept]

    def _check_history(self, thread: ThreadModel, limit: int | None, before: int | None) -> None:
        expected = [
            msgspec.structs.replace(entry, payload=b"")
            for seq, entry in sorted(thread.writer.entries.items(), reverse=True)
            if before is None or seq < before
        ]
        found = self.store.history(thread.writer.key, limit=limit, before=before)
        assert list(found) == expected[:limit]

    def _check_entries(self, thread: ThreadModel, limit: int | None, after: int) -> None:
        kept = sorted(thread.writer.entries.items())
        expected = [entry for seq, entry in kept if seq > after]
        found = self.store.entries(thread.writer.key, after=after, limit=limit)
        assert list(found) == expected[:limit]

    def _check_runs(self, thread: ThreadModel, limit: int | None) -> None:
        key = thread.writer.key
        assert list(self.store.runs(key, limit=limit)) == thread.newest_runs()[:limit]
        for run_id, run in thread.runs.items():
            assert self.store.run(key, run_id) == run
            assert self.store.failure(key, run_id) == thread.failures.get(run_id)

    def _check_threads(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> None:
        listed = [self.threads[key] for key in sorted(self.threads) if key.tenant == tenant]
        expected = [
            info
            for info in (thread.info for thread in listed if thread.info is not None)
            if (after is None or info.key.thread > after)
            and (status is None or info.status == status)
        ]
        found = self.store.threads(tenant, status=status, limit=limit, after=after)
        assert list(found) == expected[:limit]


def _tags(store: Store) -> Tags:
    assert store.tags is not None
    return store.tags


def store_machine(
    open_store: Callable[[], Store], reopen: Callable[[Store], Store]
) -> type[StoreMachine]:
    """The machine for one store. ``reopen`` is as in ``StoreContract``; run its ``TestCase``."""

    class Machine(StoreMachine):
        hooks = (open_store, reopen)

    return Machine
