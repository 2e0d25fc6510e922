"""Clauses on tenants and ids: tenants never see each other's threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec.structs

from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks, everything_of
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import HARD_IDS, Writer, a_failure, a_key, a_result, an_entry


def calls_with(store: Store, key: Any, writer: Writer) -> dict[str, Callable[[], object]]:
    run_id, batch = writer.run.run_id, msgspec.structs.replace(writer.batch(), key=key)
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: store.commit(batch),
        "read": lambda: store.read(key),
        "open": lambda: store.open(key),
        "head": lambda: store.head(key),
        "results": lambda: store.results(key),
        "read_state": lambda: store.read_state(key),
        "count_results": lambda: store.count_results(key, "task"),
        "locate": lambda: store.locate(key, writer.entries[1].id),
        "history": lambda: store.history(key),
        "entries": lambda: store.entries(key),
        "runs": lambda: store.runs(key),
        "run": lambda: store.run(key, run_id),
        "find_run": lambda: store.find_run(key, "digest"),
        "failure": lambda: store.failure(key, run_id),
        "manifest": lambda: store.manifest(key, writer.run.fingerprint),
        "delete": lambda: store.delete(key),
        "prune": lambda: store.prune(key, head=writer.head, cut=1, rewritten=()),
        "put_back": lambda: store.put_back(
            key, head=writer.head, oldest=an_entry(1), entries=(an_entry(1),)
        ),
    }
    commit_many = store.commit_many
    if commit_many is not None:
        calls["commit_many"] = lambda: commit_many([batch])
    transact = store.transact
    if transact is not None:
        calls["transact"] = lambda: transact(key, lambda _: batch)
    return calls


def _is_taken(call: Callable[[], object]) -> bool:
    try:
        call()
    except TypeError:
        return False
    return True


class TenantClauses(ContractHooks):
    """Rule 5."""

    def test_a_thread_of_the_same_name_belongs_to_each_tenant(self, store: Store) -> None:
        # Rule 5: both are written and read apart.
        ours, theirs = self._two_tenants(store)
        assert ours.head == 2
        assert theirs.head == 3
        check_reads(store, ours)
        check_reads(store, theirs)

    def test_nothing_of_another_tenant_is_found(self, store: Store) -> None:
        # Rule 5: neither checkpoints, nor runs, nor failures, nor results, nor manifests.
        ours, theirs = self._two_tenants(store)
        assert store.locate(ours.key, theirs.entries[1].id) is None
        assert store.run(ours.key, theirs.run.run_id) is None
        assert store.failure(ours.key, theirs.run.run_id) is None
        assert store.failure(theirs.key, theirs.run.run_id) is not None
        assert store.manifest(ours.key, "b" * 32) is None
        assert store.manifest(theirs.key, "b" * 32) == b"theirs"
        assert list(store.runs(ours.key)) == [ours.run]
        chain = store.read(ours.key)
        assert chain is not None
        assert chain.results == ()

    def test_a_manifest_of_another_tenant_is_not_in_the_way(self, store: Store) -> None:
        # Rule 5: who stored first under a fingerprint decides for his own tenant only.
        ours, theirs = self._two_tenants(store)
        store.commit(ours.batch(manifest=("b" * 32, b"ours")))
        assert store.manifest(ours.key, "b" * 32) == b"ours"
        assert store.manifest(theirs.key, "b" * 32) == b"theirs"

    def test_threads_are_listed_for_one_tenant(self, store: Store) -> None:
        # Rule 5: a tenant whose name begins alike is another one.
        for number, tenant in enumerate(("t", "T", "t1", "t/", "%", "_", "t "), 1):
            for thread in ("a", "b"):
                Writer(ThreadKey(tenant, thread), number).begin(store)
            assert [info.key for info in store.threads(tenant)] == [
                ThreadKey(tenant, "a"),
                ThreadKey(tenant, "b"),
            ]
        assert len(store.threads("t")) == 2
        assert list(store.threads("nobody")) == []

    def test_deleting_touches_no_other_tenant(self, store: Store) -> None:
        # Rules 5 and 10: though the thread has the same name.
        ours, theirs = self._two_tenants(store)
        before = everything_of(store, theirs.key)
        store.delete(ours.key)
        assert everything_of(store, theirs.key) == before
        assert store.manifest(theirs.key, "b" * 32) == b"theirs"

    def test_pruning_touches_no_other_tenant(self, store: Store) -> None:
        # Rules 5 and 11: though the thread has the same name.
        ours, theirs = self._two_tenants(store)
        ours.append(store, SNAPSHOT)
        before = everything_of(store, theirs.key)
        ours.prune(store, 2)
        assert everything_of(store, theirs.key) == before

    def test_ids_that_look_alike_are_different_threads(self, store: Store) -> None:
        # Rule 5: case, normal form, separators, reserved names, white space, length.
        self._check_apart(store, [ThreadKey("tenant", thread) for thread in HARD_IDS])

    def test_ids_that_look_alike_are_different_tenants(self, store: Store) -> None:
        # Rule 5: the same for tenants.
        self._check_apart(store, [ThreadKey(tenant, "thread") for tenant in HARD_IDS])

    def test_tenant_and_thread_do_not_run_together(self, store: Store) -> None:
        # Rule 5: where one ends and the other begins is never guessed.
        keys: list[ThreadKey] = []
        for mark in ("/", ":", "_", "\\", "\x1f", "\n", "%", "."):
            keys += [ThreadKey(f"a{mark}b", "c"), ThreadKey("a", f"b{mark}c")]
        self._check_apart(store, [*keys, ThreadKey("ab", "c"), ThreadKey("a", "bc")])

    def test_a_key_of_another_type_is_refused_by_every_call(self, store: Store) -> None:
        # Rule 5: with ``TypeError``, when the call is made; what is there stays as it is.
        ours = Writer(a_key(), 1).begin(store, 2)
        before = everything_of(store, ours.key)
        keys: list[Any] = ["thread", (ours.key.tenant, ours.key.thread), None, b"thread"]
        taken = [
            f"{name} of {type(key).__name__}"
            for key in keys
            for name, call in calls_with(store, key, ours).items()
            if _is_taken(call)
        ]
        tenants: list[Any] = [None, 7, b"tenant"]
        taken += [repr(each) for each in tenants if _is_taken(partial(store.threads, each))]
        assert taken == []
        assert everything_of(store, ours.key) == before
        assert [info.key for info in store.threads(ours.key.tenant)] == [ours.key]

    def _check_apart(self, store: Store, keys: list[ThreadKey]) -> None:
        writers = [Writer(key, number) for number, key in enumerate(keys, 1)]
        for writer in writers:
            assert store.read(writer.key) is None, f"{writer.key!r} was there already"
            writer.begin(store, 2)
        with self.reopened(store) as again:
            for writer in writers:
                assert list(again.runs(writer.key)) == [writer.run], f"{writer.key!r}"
                check_reads(again, writer)
            for tenant in {key.tenant for key in keys}:
                listed = [info.key for info in again.threads(tenant)]
                assert listed == sorted(key for key in keys if key.tenant == tenant)
            for index, writer in enumerate(writers):
                assert again.delete(writer.key) is True, f"{writer.key!r}"
                assert again.read(writer.key) is None
                for other in writers[index + 1 : index + 2]:
                    check_reads(again, other)

    def _two_tenants(self, store: Store) -> tuple[Writer, Writer]:
        ours = Writer(a_key("shared", "ours"), 1).begin(store, 2)
        theirs = Writer(a_key("shared", "theirs"), 2).begin(store, 3)
        failed = msgspec.structs.replace(theirs.run, status="failed")
        store.commit(
            theirs.batch(
                results=(a_result(3),),
                runs=(failed,),
                failure=a_failure(failed.run_id),
                manifest=("b" * 32, b"theirs"),
            )
        )
        return ours, theirs
