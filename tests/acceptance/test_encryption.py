"""Encryption, through the public face, on every store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec.structs
import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    CheckpointStore,
    Context,
    ExecutionError,
    ExecutionOptions,
    Keyring,
    Retention,
    Send,
    StateGraph,
    Store,
    ThreadKey,
    append,
    interrupt,
    open_store,
)
from milecastle.errors import EncryptionError, KeyNotFound, NoKeyring, PlaintextRefused
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import crash_everywhere
from tests.acceptance.running import Runner
from tests.every_store import EVERY_KIND, Stores

MARKER = "amber-room-4711"
OLD, NEW = b"o" * 32, b"n" * 32
KEY = ThreadKey("default", "t")
MANY = ExecutionOptions(max_steps=1100)


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


def ring(keys: Store, **given: bytes) -> Keyring:
    return Keyring(given or {"old": OLD}, store=keys)


def trip(store: Any, keyring: Keyring | None, *, steps: int = 3, **options: Any) -> App[Trip]:
    """Walks until ``n`` is a multiple of ``steps``, then rests."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    @graph.node
    def walk(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [f"{MARKER} {state['n']}"]}

    @graph.node
    def rest(state: Trip) -> dict[str, Any]:
        return {"log": ["at rest"]}

    graph.add_edge(START, "walk")
    graph.add_edge("walk", "rest", when=lambda state: state["n"] % steps == 0)
    graph.add_edge("walk", "walk")
    graph.add_edge("rest", END)
    return graph.compile(store=store, encryption=keyring, **options)


def walked(steps: int, start: int = 0) -> list[str]:
    return [f"{MARKER} {number}" for number in range(start, start + steps)]


def forged(store: Store, target: ThreadKey, source: ThreadKey, **change: Any) -> None:
    """Write the head of a thread into another as a snapshot that begins it."""
    chain = store.read(source)
    record = store.runs(source)[0]
    assert chain is not None
    fields = {"seq": 1, "base_seq": 1, "roll_seq": 1, **change}
    entry = msgspec.structs.replace(chain.entries[-1], **fields)
    run = msgspec.structs.replace(record, key=target)
    store.commit(Batch(key=target, head=0, entries=(entry,), runs=(run,)))


@pytest.mark.parametrize("kind", EVERY_KIND)
class TestEveryStore:
    def test_run_waits_continues_and_is_read(self, run: Runner, stores: Stores, kind: str) -> None:
        store, keys = stores.open(kind), stores.open(kind, "keys")
        waiting = trip(store, ring(keys), interrupt_before=["rest"])
        assert run.invoke(waiting, {"n": 0, "log": []}, "t").status == "interrupted"
        assert run.invoke(waiting, {"n": 0, "log": []}, "t").status == "interrupted"

        app = trip(store, ring(keys), interrupt_before=["rest"])  # as another process would
        assert run.resume(app, "t").status == "completed"
        assert run.state(app, "t").state == {"n": 3, "log": [*walked(3), "at rest"]}
        assert run.state(app, "t", 2).state == {"n": 1, "log": walked(1)}
        assert run.history(app, "t")[0].step == 4
        assert [change.path for change in run.diff(app, "t", 2, 3)]

    def test_updates_and_forks(self, run: Runner, stores: Stores, kind: str) -> None:
        store, keyring = stores.open(kind), ring(stores.open(kind, "keys"))
        app = trip(store, keyring)
        run.invoke(app, {"n": 0, "log": []}, "t")
        run.update_state(app, "t", {"log": ["by hand"]}, 3)
        assert run.state(app, "t").state == {"n": 2, "log": [*walked(2), "by hand"]}
        run.fork(app, "t", 2, "other")
        run.fork(app, "t", 2)
        assert run.resume(app, "t").state == {"n": 3, "log": [*walked(3), "at rest"]}
        keyring.erase(KEY)
        assert run.resume(app, "other").state == {"n": 3, "log": [*walked(3), "at rest"]}
        with pytest.raises(KeyNotFound):
            run.state(app, "t")

    def test_a_long_thread_is_pruned(self, stores: Stores, kind: str) -> None:
        store, keyring = stores.open(kind), ring(stores.open(kind, "keys"))
        steps = 2 * (store.rollup_after or 0) + 40
        app = trip(store, keyring, steps=steps)
        app.invoke({"n": 0, "log": []}, "t", options=MANY)
        looked_at = {known.seq for known in app.history("t", 45)} | set(range(1, steps, 29))
        before = {seq: app.state("t", seq).state for seq in looked_at}
        checkpoints = CheckpointStore(store, encryption=keyring)
        dropped = checkpoints.prune(KEY, keep_last=40)
        assert (dropped > 0) is (kind != "memory")  # which writes no rollups to cut at
        left = looked_at & {known.seq for known in app.history("t")}
        assert len(left) >= 40
        assert {seq: app.state("t", seq).state for seq in left} == {
            seq: before[seq] for seq in left
        }
        report = checkpoints.apply_retention("default", Retention(keep_last=1))
        assert report.threads == 1
        assert app.state("t").state == {"n": steps, "log": [*walked(steps), "at rest"]}

    @pytest.mark.parametrize("other", ["memory", "jsonl", "sqlite"])
    def test_a_copy_reads_the_same_and_goes_with_the_key(
        self, stores: Stores, kind: str, other: str
    ) -> None:
        source, target = stores.open(kind), stores.open(other, "copy")
        keyring = ring(stores.open("memory", "keys"))
        app = trip(source, keyring, interrupt_before=["rest"])
        app.invoke({"n": 0, "log": []}, "t")
        here, there = (CheckpointStore(one, encryption=keyring) for one in (source, target))
        here.copy_to(there, "default")
        here.delete_thread(KEY)  # moved: deleting here takes nothing from the copy
        copied = trip(target, keyring, interrupt_before=["rest"])
        assert copied.resume("t").state == {"n": 3, "log": [*walked(3), "at rest"]}

        assert here.erase("default", ["t", "never"]).erased == ("t",)
        for seq in range(1, 6):
            with pytest.raises(KeyNotFound, match="erased"):
                copied.state("t", seq)
        with pytest.raises(KeyNotFound):
            there.get_latest(KEY)

    def test_results_of_finished_tasks_are_stored(self, stores: Stores, kind: str) -> None:
        store, keyring = stores.open(kind), ring(stores.open(kind, "keys"))
        app, ran = branching(store, keyring)
        with pytest.raises(ExecutionError):
            app.invoke({"log": []}, "t")
        chain = store.read(KEY)
        assert chain is not None
        assert [result.task.rpartition(":")[2] for result in chain.results] == ["a"]
        assert MARKER.encode() not in chain.results[0].payload
        with pytest.raises(ExecutionError):
            app.resume("t")
        assert ran == ["a", "b", "b"]

    def test_plaintext_is_refused(self, run: Runner, stores: Stores, kind: str) -> None:
        store, keys = stores.open(kind), stores.open(kind, "keys")
        plain = trip(store, None, interrupt_before=["rest"])
        run.invoke(plain, {"n": 0, "log": []}, "t")
        app = trip(store, ring(keys), interrupt_before=["rest"])
        with pytest.raises(PlaintextRefused):
            run.state(app, "t")
        with pytest.raises(PlaintextRefused):
            run.resume(app, "t")
        with pytest.raises(PlaintextRefused):
            run.invoke(app, {"n": 0, "log": []}, "t")
        with pytest.raises(PlaintextRefused):
            CheckpointStore(store, encryption=ring(keys)).get_latest(KEY)

    def test_reader_without_a_keyring_gets_an_error(
        self, run: Runner, stores: Stores, kind: str
    ) -> None:
        store = stores.open(kind)
        app = trip(store, ring(stores.open(kind, "keys")), interrupt_before=["rest"])
        run.invoke(app, {"n": 0, "log": []}, "t")
        plain = trip(store, None, interrupt_before=["rest"])
        with pytest.raises(NoKeyring):
            run.state(plain, "t")
        with pytest.raises(NoKeyring):
            run.resume(plain, "t")
        with pytest.raises(NoKeyring):
            CheckpointStore(store).get_latest(KEY)
        assert len(run.history(plain, "t")) == 5

    @pytest.mark.parametrize("thread", [ThreadKey("default", "u"), ThreadKey("other", "t")])
    def test_a_row_of_another_thread_does_not_open(
        self, stores: Stores, kind: str, thread: ThreadKey
    ) -> None:
        store = stores.open(kind)
        checkpoints = CheckpointStore(store, encryption=ring(stores.open(kind, "keys")))
        checkpoints.put(KEY, {"word": MARKER})
        checkpoints.put(thread, {"word": "mine"})
        store.delete(thread)
        forged(store, thread, KEY)
        with pytest.raises(EncryptionError):
            checkpoints.get_latest(thread)

    def test_a_row_of_another_place_does_not_open(self, stores: Stores, kind: str) -> None:
        store = stores.open(kind)
        checkpoints = CheckpointStore(store, encryption=ring(stores.open(kind, "keys")))
        checkpoints.put(KEY, {"word": "one"})
        checkpoints.put(KEY, {"word": "two"})
        chain, record = store.read(KEY), store.runs(KEY)[0]
        assert chain is not None
        moved = msgspec.structs.replace(chain.entries[-1], seq=3, base_seq=3, roll_seq=3, id="x")
        store.commit(Batch(key=KEY, head=2, entries=(moved,), runs=(record,)))
        with pytest.raises(EncryptionError, match="seq 3 of thread 't' cannot be decrypted"):
            checkpoints.get_latest(KEY)

    def test_a_new_key_takes_over_and_the_old_one_goes(self, stores: Stores, kind: str) -> None:
        store, keys = stores.open(kind), stores.open(kind, "keys")
        trip(store, ring(keys), interrupt_before=["rest"]).invoke({"n": 0, "log": []}, "t")
        with pytest.raises(KeyNotFound, match="'old'"):
            trip(store, ring(keys, new=NEW)).state("t")
        both = ring(keys, new=NEW, old=OLD)
        assert trip(store, both).state("t").state["n"] == 3
        assert both.rotate() == 1
        app = trip(store, ring(keys, new=NEW), interrupt_before=["rest"])
        assert app.resume("t").status == "completed"


def branching(store: Store, keyring: Keyring | None) -> tuple[App[Any], list[str]]:
    """Two tasks in one step, of which the second fails once the first one is done."""

    class Log(TypedDict):
        log: Annotated[list[str], append]

    ran: list[str] = []
    graph: StateGraph[Log] = StateGraph(Log)

    @graph.node
    def a(state: Log) -> dict[str, Any]:
        ran.append("a")
        return {"log": [MARKER]}

    @graph.node
    def b(state: Log) -> dict[str, Any]:
        ran.append("b")
        raise ValueError("no")

    for name in ("a", "b"):
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(store=store, encryption=keyring), ran


def test_a_task_result_does_not_open_as_that_of_another_task(stores: Stores) -> None:
    store, keyring = stores.open("memory"), ring(stores.open("memory", "keys"))
    app, _ = branching(store, keyring)
    with pytest.raises(ExecutionError):
        app.invoke({"log": []}, "t")
    chain = store.read(KEY)
    assert chain is not None
    moved = msgspec.structs.replace(chain.results[0], task="b")
    store.commit(Batch(key=KEY, head=chain.entries[-1].seq, results=(moved,)))
    with pytest.raises(EncryptionError, match="cannot be decrypted"):
        app.resume("t")


def test_a_run_that_may_not_be_preserved_leaves_no_key() -> None:
    keys = MemoryStore()
    config = CheckpointConfig(store=MemoryStore(), preserve=False)
    app = trip(None, ring(keys), checkpoint=config)
    assert app.invoke({"n": 0, "log": []}, "t").status == "completed"
    assert not keys.threads("milecastle.keys")


def test_a_store_that_was_opened_with_a_keyring_brings_it_along() -> None:
    opened = open_store("memory://", encryption=ring(MemoryStore()))
    app = trip(opened, None)
    app.invoke({"n": 0, "log": []}, "t")
    with pytest.raises(NoKeyring):
        trip(opened.store, None).state("t")
    found = opened.get_latest(KEY)
    assert found is not None
    assert found.state["n"] == 3


def test_erased_thread_may_be_created_again() -> None:
    store = open_store("memory://", encryption=ring(MemoryStore()))
    store.put(KEY, {"n": 1})
    store.erase("default", ["t"])
    store.put(KEY, {"n": 2})
    found = store.get_latest(KEY)
    assert found is not None
    assert found.state == {"n": 2}


def test_writer_of_a_thread_whose_key_is_deleted_is_refused() -> None:
    keyring = ring(MemoryStore())
    store = open_store("memory://", encryption=keyring)
    first = store.put(KEY, {"n": 1})
    keyring.erase(KEY)
    with pytest.raises(KeyNotFound):
        store.put(KEY, {"n": 2})
    with pytest.raises(KeyNotFound):
        store.update_state(KEY, first.id, new_state={"n": 2})
    with pytest.raises(KeyNotFound):
        trip(store, None).update_state("t", {"n": 3})
    assert not keyring.erase(KEY)


class Count(TypedDict):
    n: int


def test_the_thread_of_a_subgraph_is_encrypted_and_goes_with_its_parent() -> None:
    def one(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    inner: StateGraph[Count] = StateGraph(Count)
    inner.add_node(one)
    inner.add_edges(START, "one", END)
    outer: StateGraph[Count] = StateGraph(Count)
    outer.add_node("inner", inner.compile())
    outer.add_edges(START, "inner", END)
    store, copy, keyring = MemoryStore(), MemoryStore(), ring(MemoryStore())
    assert outer.compile(store=store, encryption=keyring).invoke({"n": 0}, "t").state == {"n": 1}

    threads = [info.key for info in store.threads("default")]
    assert len(threads) == 2
    here, there = (CheckpointStore(one, encryption=keyring) for one in (store, copy))
    for key in threads:
        with pytest.raises(NoKeyring):
            CheckpointStore(store).get_latest(key)
        assert here.get_latest(key) is not None
    here.copy_to(there, "default", threads=[key.thread for key in threads])
    assert not keyring.erase(threads[1])  # the key is that of the parent, which is still there
    assert there.get_latest(threads[0]) is not None
    assert here.erase("default", ["t"]).erased == ("t",)
    assert not store.threads("default")
    for key in threads:
        with pytest.raises(KeyNotFound):
            there.get_latest(key)


def asking(store: Store, keyring: Keyring | None) -> App[Any]:
    """Asks, records something once, and fans out: whatever may be stored besides updates."""

    class Log(TypedDict):
        log: Annotated[list[str], append]

    graph: StateGraph[Log] = StateGraph(Log)

    @graph.node
    def ask(state: Log, ctx: Context) -> dict[str, Any]:
        ctx.once("call", lambda: MARKER)
        return {"log": [interrupt(f"{MARKER}?")]}

    @graph.node
    def each(state: Log) -> dict[str, Any]:
        raise ValueError("no")

    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda state: [Send("each", {"log": [MARKER]})], ["each"])
    graph.add_edge("each", END)
    return graph.compile(store=store, encryption=keyring)


@pytest.mark.parametrize("open_one", [SqliteStore, JsonlStore])
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "the control"])
def test_no_question_answer_or_recorded_value_is_in_the_files(
    tmp_path: Path, open_one: Any, encrypted: bool
) -> None:
    (tmp_path / "data").mkdir()
    store = open_one(tmp_path / "data" / "store")
    app = asking(store, ring(MemoryStore()) if encrypted else None)
    assert app.invoke({"log": []}, "t").interrupts[0].question == f"{MARKER}?"
    asked = everything_in(tmp_path / "data")
    with pytest.raises(ExecutionError):
        app.resume("t", answer=f"{MARKER}!")
    answered = everything_in(tmp_path / "data")
    store.close()
    assert (MARKER.encode() in asked) is not encrypted
    assert (f"{MARKER}!".encode() in answered) is not encrypted


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


@pytest.mark.parametrize("open_one", [SqliteStore, JsonlStore])
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "the control"])
def test_no_value_of_the_state_is_in_the_files(
    tmp_path: Path, open_one: Any, encrypted: bool
) -> None:
    (tmp_path / "data").mkdir()
    keys, store = SqliteStore(tmp_path / "keys"), open_one(tmp_path / "data" / "store")
    app = trip(store, ring(keys) if encrypted else None, steps=200, interrupt_before=["rest"])
    app.invoke({"n": 0, "log": [MARKER]}, "t", options=MANY)
    app.update_state("t", {"log": [MARKER]})
    app.fork("t", 5, "u")
    failing, _ = branching(store, ring(keys) if encrypted else None)
    with pytest.raises(ExecutionError):
        failing.invoke({"log": [MARKER]}, "v")
    checkpoints = CheckpointStore(store, encryption=ring(keys) if encrypted else None)
    checkpoints.prune(KEY, keep_last=1)
    during = everything_in(tmp_path / "data")
    store.close()
    keys.close()
    after = everything_in(tmp_path / "data")
    assert min(len(during), len(after)) > 10_000
    assert (MARKER.encode() in during or MARKER.encode() in after) is not encrypted


def test_the_digest_of_an_input_cannot_be_computed_without_the_key() -> None:
    digests: set[str] = set()
    for keyring in (ring(MemoryStore()), ring(MemoryStore()), None):
        store = MemoryStore()
        trip(store, keyring).invoke({"n": 0, "log": []}, "t")
        digests.add(store.runs(KEY)[0].input_digest)
    assert len(digests) == 3


def test_a_crash_at_every_effect_does_no_harm() -> None:
    app = trip(MemoryStore(), ring(MemoryStore()))
    given: Mapping[str, Any] = {"n": 0, "log": []}
    crash_everywhere(app, given)
