"""A writer to the store without a key cannot change a state unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec.structs
import pytest

from milecastle import END, START, App, CheckpointStore, Conflict, Keyring, StateGraph, append
from milecastle.errors import Corrupted, EncryptionError
from milecastle.model.checkpoint import DELTA, ROLLUP, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Chain, Opened, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")
STEPS = 9
NOTICED = (EncryptionError, Corrupted)


class Account(TypedDict):
    balance: int
    log: Annotated[list[str], append]


class Rolled(WrappedStore):
    """Rolls up after two deltas, so that a short log has every kind of entry."""

    @property
    def rollup_after(self) -> int | None:
        return 2


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=EVERY_KIND)
def store(request: pytest.FixtureRequest, stores: Stores) -> Store:
    return Rolled(stores.open(request.param))


@pytest.fixture
def ring() -> Keyring:
    return Keyring({"main": b"k" * 32}, store=MemoryStore())


def spending(store: Any, ring: Keyring | None, start: int = 100) -> App[Account]:
    """A thread that waits after nine steps, each of which changes the balance."""

    def spend(state: Account) -> dict[str, Any]:
        return {"balance": state["balance"] - 1, "log": ["spent"]}

    graph: StateGraph[Account] = StateGraph(Account)
    names = [f"spend{number}" for number in range(STEPS)]
    for name in names:
        graph.add_node(name, spend)
    graph.add_node("pay", spend)
    graph.add_edges(START, *names, "pay", END)
    app = graph.compile(store=store, encryption=ring, interrupt_before=["pay"])
    app.invoke({"balance": start, "log": []}, "t")
    return app


class Forger:
    """Puts other entries in the place of those of the thread, as a database lets anybody do."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.entries = list(store.entries(KEY))
        self.runs = tuple(store.runs(KEY))

    def write(self, entries: list[Entry]) -> None:
        self._store.delete(KEY)
        batch = Batch(key=KEY, head=0, entries=tuple(entries), runs=self.runs)
        self._store.commit(batch)

    def is_noticed(self, app: App[Account], entries: list[Entry]) -> bool:
        """Whether other entries are refused: by the store, or by the reader."""
        try:
            self.write(entries)
        except Conflict:
            return True
        with pytest.raises(NOTICED):
            app.resume("t")
        with pytest.raises(NOTICED):
            app.state("t")
        return True


def with_change(entries: list[Entry], at: int, **change: Any) -> list[Entry]:
    changed = msgspec.structs.replace(entries[at], **change)
    return [*entries[:at], changed, *entries[at + 1 :]]


def test_the_log_has_every_kind_of_entry(store: Store, ring: Keyring) -> None:
    spending(store, ring)
    assert [entry.kind for entry in store.entries(KEY)].count(ROLLUP) >= 2


LINKS: dict[str, Callable[[Entry], dict[str, Any]]] = {
    "roll_seq": lambda entry: {"roll_seq": entry.seq - 1},
    "base_seq": lambda entry: {"base_seq": entry.base_seq + 1},
    "parent": lambda entry: {"parent_id": "another"},
    "no parent": lambda entry: {"parent_id": None},
}


@pytest.mark.parametrize("link", LINKS)
def test_changed_link_of_any_entry_of_the_chain_is_noticed(
    store: Store, ring: Keyring, link: str
) -> None:
    """Fails when base_seq, roll_seq or the parent is not authenticated."""
    app = spending(store, ring)
    chain = store.read(KEY)
    assert chain is not None
    forger = Forger(store)
    for entry in chain.entries:
        change = LINKS[link](entry)
        if all(getattr(entry, name) == value for name, value in change.items()):
            continue
        assert forger.is_noticed(app, with_change(forger.entries, entry.seq - 1, **change))
    forger.write(forger.entries)
    assert app.state("t").state["balance"] == 100 - STEPS


class Lossy(WrappedStore):
    """Leaves one entry of a chain out."""

    left_out = 0

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        chain = super().read(key, seq)
        return chain and self._without(chain)

    def open(self, key: ThreadKey) -> Opened | None:
        found = super().open(key)
        return found and Opened(self._without(found.chain), found.record)

    def _without(self, chain: Chain) -> Chain:
        kept = tuple(entry for entry in chain.entries if entry.seq != self.left_out)
        return Chain(kept, chain.results)


def test_entry_that_is_missing_from_a_chain_is_noticed(store: Store, ring: Keyring) -> None:
    """Fails when a rollup does not authenticate the one before it."""
    lossy = Lossy(store)
    app = spending(lossy, ring)
    for entry in store.entries(KEY)[:-1]:
        lossy.left_out = entry.seq
        chain, whole = lossy.read(KEY), store.read(KEY)
        if chain == whole:
            continue
        with pytest.raises(NOTICED):
            app.state("t")
    lossy.left_out = 0
    assert app.state("t").state["balance"] == 100 - STEPS


def test_delta_that_is_missing_is_noticed_without_encryption_too(store: Store) -> None:
    """Fails when restore does not count the entries after the last rollup."""
    lossy = Lossy(store)
    app = spending(lossy, None)
    head = store.entries(KEY)[-1]
    missing = [entry.seq for entry in store.entries(KEY) if head.roll_seq <= entry.seq < head.seq]
    assert missing
    for lossy.left_out in missing:
        with pytest.raises(Corrupted, match="entry"):
            app.state("t")


@pytest.mark.parametrize("leave", ["delete_thread", "delete"])
def test_entry_of_an_earlier_thread_of_the_name_does_not_open(
    store: Store, ring: Keyring, leave: str
) -> None:
    """Fails when the life is not authenticated."""
    spending(store, ring, 1_000_000)
    earlier = Forger(store)
    if leave == "delete":
        store.delete(KEY)
    else:
        CheckpointStore(store, encryption=ring).delete_thread(KEY)
    app = spending(store, ring)
    chain, forger = store.read(KEY), Forger(store)
    assert chain is not None
    forger.runs += earlier.runs
    for entry in chain.entries:
        at = entry.seq - 1
        old, entries = earlier.entries[at], forger.entries
        assert forger.is_noticed(app, with_change(entries, at, payload=old.payload))
        assert forger.is_noticed(app, [*entries[:at], old, *entries[at + 1 :]])


def test_task_result_of_an_earlier_thread_of_the_name_does_not_open(ring: Keyring) -> None:
    """Fails when the life of a task result is not authenticated."""
    store = MemoryStore()

    def two_tasks(fails: bool) -> App[Account]:
        def done(state: Account) -> dict[str, Any]:
            return {"log": ["done"]}

        def fail(state: Account) -> dict[str, Any]:
            if fails:
                raise ValueError("no")
            return {}

        graph: StateGraph[Account] = StateGraph(Account)
        for name, node in (("done", done), ("fail", fail)):
            graph.add_node(name, node)
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        return graph.compile(store=store, encryption=ring)

    def fail_once() -> Chain:
        with pytest.raises(Exception, match="fail"):
            two_tasks(fails=True).invoke({"balance": 0, "log": []}, "t")
        chain = store.read(KEY)
        assert chain is not None
        assert chain.results
        return chain

    earlier = fail_once()
    store.delete(KEY)
    now = fail_once()
    head = now.entries[-1].seq
    store.commit(Batch(key=KEY, head=head, results=earlier.results))
    with pytest.raises(EncryptionError):
        two_tasks(fails=False).resume("t")


def test_pruned_thread_reads_as_before_and_is_still_guarded(store: Store, ring: Keyring) -> None:
    """Fails when pruning seals a snapshot for another place than it has."""
    app = spending(store, ring)
    before = {known.seq: app.state("t", known.seq).state for known in app.history("t")}
    for keep_last in range(STEPS, 0, -1):
        CheckpointStore(store, encryption=ring).prune(KEY, keep_last=keep_last)
        left = [known.seq for known in app.history("t")]
        assert {seq: app.state("t", seq).state for seq in left} == {
            seq: before[seq] for seq in left
        }
    chain = store.read(KEY)
    assert chain is not None
    assert [entry for entry in chain.entries if entry.kind == DELTA]
    assert app.resume("t")["balance"] == 100 - STEPS - 1


def test_store_without_encryption_lets_a_state_be_changed() -> None:
    """The control: the same change of a payload goes unnoticed without a key."""
    store = Rolled(MemoryStore())
    spending(store, None, 1_000_000)
    earlier = list(store.entries(KEY))
    store.delete(KEY)
    app = spending(store, None)
    forger = Forger(store)
    forger.write(with_change(forger.entries, 0, payload=earlier[0].payload))
    assert app.state("t", 1).state["balance"] == 1_000_000
