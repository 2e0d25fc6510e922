"""S: stores. One small interface, its operations, and what two writers get."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec.structs
import pytest

from milecastle import (
    END,
    START,
    App,
    Checkpoint,
    CheckpointStore,
    Conflict,
    ExecutionError,
    InvalidRequest,
    Result,
    ResumeRefused,
    StateGraph,
    Store,
    StoreError,
    ThreadKey,
    Unavailable,
    UnserializableState,
    append,
    open_store,
)
from milecastle.app.runs.calls import Call
from milecastle.codec.deltas import LogCodec
from milecastle.drivers import blocking
from milecastle.drivers.host import HostServices
from milecastle.engine.effects import Commit
from milecastle.engine.reserved_channels import RESERVED
from milecastle.errors import CodecError
from milecastle.model.manifest import Manifest
from milecastle.model.task import RunTask
from milecastle.ports.store import Batch, Chain, Opened
from milecastle.stores.memory import MemoryStore
from milecastle.testing import StoreContract, WrappedStore, race_in_tasks, race_in_threads
from tests.acceptance.running import CountingStore, Runner, SlowStore, Wrap, call_node, crash_after
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


def note(state: Trip, name: str) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [name]}


def line(store: Any, wrap: Wrap = lambda function: function, **options: Any) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in ("a", "b", "c"):
        graph.add_node(name, wrap(note))
    graph.add_edges(START, "a", "b", "c", END)
    return graph.compile(store=store, **options)


# -- S1 ------------------------------------------------------------------------------------


class TestTheMemoryStore(StoreContract):
    """The whole contract; a third party's test file is a class like this one."""

    def open_store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store

    @pytest.mark.requirement("S1", api="testing.StoreContract")
    def test_the_contract_is_run_here(self) -> None:
        """The contract is one class; every store's own tests derive from it."""
        clauses = [name for name in dir(StoreContract) if name.startswith("test_")]
        assert len(clauses) > 20
        assert all(getattr(type(self), name) is getattr(StoreContract, name) for name in clauses)


@pytest.mark.requirement("S1", api="Store")
def test_an_app_runs_on_anything_that_has_the_methods_of_a_store(run: Runner, wrap: Wrap) -> None:
    """A store needs no base class and no registration."""

    class Mine:
        """Keeps everything in another store, method by method."""

        def __init__(self) -> None:
            self._inner = MemoryStore()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    app = line(Mine(), wrap)
    assert run.invoke(app, {"n": 0}, "t").state == {"n": 3, "log": ["a", "b", "c"]}
    assert run.state(app, "t").status == "completed"


@pytest.mark.requirement("S1", api="Store.blocking")
def test_a_store_that_may_wait_is_never_called_on_the_event_loop(wrap: Wrap) -> None:
    """Under the async driver its calls run in other threads."""
    called: dict[str, set[bool]] = {}

    class Watched(SlowStore):
        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            if name in {"commit", "read", "locate", "history", "run", "delete", "manifest"}:

                def watched(*args: Any, **named: Any) -> Any:
                    on_loop = threading.current_thread() is threading.main_thread()
                    called.setdefault(name, set()).add(on_loop)
                    return found(*args, **named)

                return watched
            return found

    app = line(Watched(), wrap, interrupt_before=["b"])

    async def everything() -> None:
        await app.ainvoke({"n": 0}, "t")
        made = await app.aupdate_state("t", {"n": 5})
        await app.astate("t", made.id)
        await app.afork("t", 2)
        await app.adiff("t", 1, 2)
        assert [known.seq async for known in app.ahistory("t")]
        await app.aresume("t")
        async for _ in app.astream({"n": 1}, "t"):
            pass

    asyncio.run(everything())
    assert set(called) >= {"commit", "read", "locate", "history", "run"}
    assert set().union(*called.values()) == {False}


# -- S2 ------------------------------------------------------------------------------------


@pytest.mark.requirement("S2", api="CheckpointStore.put")
def test_put_appends_and_get_latest_reads_it_back() -> None:
    """The names of the public operations are those of the requirement."""
    store = open_store("memory://")
    assert store.get_latest(KEY) is None
    first = store.put(KEY, {"n": 1, "tags": {"x"}}, next=["b"], nodes=["a"])
    assert (first.seq, first.parent_id, first.step) == (1, None, 1)
    assert (first.nodes, first.next, first.source) == (("a",), ("b",), "update")
    second = store.put(KEY, {"n": 2}, step=7)
    assert (second.seq, second.parent_id, second.step) == (2, first.id, 7)
    latest = store.get_latest(KEY)
    assert latest == second
    assert latest is not None
    assert latest.state == {"n": 2}
    assert latest.metadata["milecastle"]


@pytest.mark.requirement("S2", api="CheckpointStore.get_by_id")
def test_get_by_id_finds_only_checkpoints_of_the_given_thread() -> None:
    """What was put is what comes back; elsewhere it is not there."""
    store = open_store("memory")
    made = [store.put(KEY, {"n": number}) for number in range(3)]
    for checkpoint in made:
        assert store.get_by_id(KEY, checkpoint.id) == checkpoint
    assert store.get_by_id(ThreadKey("default", "other"), made[0].id) is None
    assert store.get_by_id(ThreadKey("other", "t"), made[0].id) is None
    assert store.get_by_id(KEY, "nothing") is None


@pytest.mark.requirement("S2", api="CheckpointStore.list_history")
def test_list_history_is_newest_first_and_limited() -> None:
    """Metadata only."""
    store = open_store("memory://")
    for number in range(4):
        store.put(KEY, {"n": number})
    assert [known.seq for known in store.list_history(KEY)] == [4, 3, 2, 1]
    assert [known.seq for known in store.list_history(KEY, limit=2)] == [4, 3]
    assert not any(isinstance(known, Checkpoint) for known in store.list_history(KEY))


@pytest.mark.requirement("S2", api="CheckpointStore.update_state")
def test_update_state_branches_off_its_parent() -> None:
    """The new checkpoint inherits what runs next; an unknown parent is refused."""
    store = open_store("memory://")
    first = store.put(KEY, {"n": 1}, next=["b"])
    store.put(KEY, {"n": 2}, next=["c"])
    made = store.get_by_id(KEY, store.update_state(KEY, first.id, new_state={"n": 10}))
    assert made is not None
    assert (made.seq, made.parent_id, made.next, made.state) == (3, first.id, ("b",), {"n": 10})
    assert store.get_latest(KEY) == made
    for parent in ("nothing", ""):
        with pytest.raises(InvalidRequest, match="no checkpoint"):
            store.update_state(KEY, parent, new_state={"n": 0})
    with pytest.raises(InvalidRequest):
        store.update_state(ThreadKey("default", "other"), first.id, new_state={"n": 0})


@pytest.mark.requirement("S2", api="CheckpointStore.list_threads")
def test_threads_are_listed_by_tenant_status_and_page() -> None:
    """By thread id, from above ``after``, at most ``limit``."""
    store = open_store("memory://")
    for name in ("b", "a", "c"):
        store.put(ThreadKey("acme", name), {}, next=["x"] if name == "b" else [])
    store.put(ThreadKey("other", "z"), {})

    def names(**named: Any) -> list[str]:
        return [info.key.thread for info in store.list_threads("acme", **named)]

    assert names() == ["a", "b", "c"]
    assert names(limit=2) == ["a", "b"]
    assert names(after="a") == ["b", "c"]
    assert names(status="interrupted") == ["b"]
    assert names(status="completed", limit=1) == ["a"]


@pytest.mark.requirement("S2", api="CheckpointStore.delete_thread")
def test_a_thread_is_deleted_whole() -> None:
    """Its checkpoints and its records; another thread stays."""
    store = open_store("memory://")
    store.put(KEY, {"n": 1})
    store.put(ThreadKey("default", "other"), {"n": 2})
    assert store.delete_thread(KEY) is True
    assert store.delete_thread(KEY) is False
    assert store.get_latest(KEY) is None
    assert [info.key.thread for info in store.list_threads("default")] == ["other"]
    assert store.put(KEY, {"n": 3}).seq == 1


@pytest.mark.requirement("S2", api="CheckpointStore.prune")
@pytest.mark.parametrize("keep", [1, 3, 9])
def test_pruning_keeps_the_newest_and_changes_no_state(run: Runner, keep: int) -> None:
    """What stays reads as before, and the thread continues."""
    inner = MemoryStore()
    app = line(inner, interrupt_before=["c"])
    store = CheckpointStore(inner)
    run.invoke(app, {"n": 0}, "t")
    for number in range(4):
        store.put(KEY, {"n": number, "log": ["x"]}, next=["c"])
    before = {known.seq: store.get_by_id(KEY, known.id) for known in store.list_history(KEY)}
    assert store.prune(KEY, keep_last=keep) == max(0, len(before) - keep)
    kept = {known.seq: store.get_by_id(KEY, known.id) for known in store.list_history(KEY)}
    assert kept == {seq: before[seq] for seq in [*before][:keep]}
    assert store.put(KEY, {"n": 9}).seq == len(before) + 1
    with pytest.raises(InvalidRequest, match="keep_last"):
        store.prune(KEY, keep_last=0)
    assert store.prune(ThreadKey("default", "nobody"), keep_last=1) == 0


@pytest.mark.requirement("S2", api="CheckpointStore")
def test_a_store_used_directly_and_an_app_share_one_log(run: Runner, wrap: Wrap) -> None:
    """What one writes the other reads, and the app continues from it."""
    inner = MemoryStore()
    app = line(inner, wrap, interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    store = CheckpointStore(inner)
    head = store.get_latest(KEY)
    assert head is not None
    assert head.state == {"n": 1, "log": ["a"]}
    store.update_state(KEY, head.id, new_state={"n": 40, "log": []})
    assert run.resume(app, "t").state == {"n": 42, "log": ["b", "c"]}


@dataclass
class Point:
    x: int


@pytest.mark.requirement("S8", api="CheckpointStore.put")
def test_state_that_would_not_come_back_is_refused_when_it_is_put() -> None:
    """A key that is not a str was acknowledged, and then the thread could not be read any more.

    Broken on purpose: ``_checked`` as ``dict``.
    """
    store = CheckpointStore(MemoryStore())
    kept = store.put(KEY, {"n": 1})
    refused: list[Any] = [{1: 2}, {"n": 1, None: 2}, {b"n": 1}, {("n",): 1}, [("n", 1)], "n", None]
    refused += [{name: [1]} for name in RESERVED]
    for state in refused:
        with pytest.raises(InvalidRequest, match="state"):
            store.put(KEY, state)
        with pytest.raises(InvalidRequest, match="state"):
            store.put(ThreadKey("default", "new"), state)
        with pytest.raises(InvalidRequest, match="state"):
            store.update_state(KEY, kept.id, new_state=state)
    assert store.get_latest(KEY) == kept
    assert [info.key for info in store.list_threads("default")] == [KEY]


@pytest.mark.requirement("S2", api="open_store")
def test_types_that_are_named_are_stored_and_others_are_refused() -> None:
    """The registry is closed: a type that was not named is an error with its path."""
    store = open_store("memory://", types=[Point])
    store.put(KEY, {"at": Point(1)})
    latest = store.get_latest(KEY)
    assert latest is not None
    assert latest.state == {"at": Point(1)}
    with pytest.raises(UnserializableState, match=r"\$\.at\[0\]"):
        open_store("memory://").put(KEY, {"at": [Point(1)]})


@pytest.mark.requirement("S2", api="CheckpointStore.close")
def test_a_closed_store_says_so() -> None:
    """Every later call raises ``Unavailable``."""
    store = open_store("memory://")
    store.put(KEY, {})
    store.close()
    with pytest.raises(Unavailable):
        store.get_latest(KEY)
    with pytest.raises(InvalidRequest, match="no store is registered"):
        open_store("nowhere://")


# -- S3 ------------------------------------------------------------------------------------


@pytest.mark.requirement("S3", api="MemoryStore")
def test_the_memory_store_is_safe_between_threads() -> None:
    """Writers that race from OS threads: one wins each seq, nothing is lost."""
    store = MemoryStore()
    assert race_in_threads(store, KEY, races=300).problems(store) == []


@pytest.mark.requirement("S3", api="MemoryStore")
def test_the_memory_store_is_safe_between_tasks() -> None:
    """Writers that race from tasks of one loop: one wins each seq, nothing is lost."""
    store = MemoryStore()
    assert asyncio.run(race_in_tasks(store, KEY, races=300)).problems(store) == []


@pytest.mark.requirement("S3", api="MemoryStore")
def test_reading_while_others_write_sees_whole_checkpoints(run: Runner) -> None:
    """Readers in other threads never see half a commit."""
    store = MemoryStore()
    app = line(store)
    wrong: list[Any] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seqs = [known.seq for known in app.history("t")]
            if seqs != [*range(len(seqs), 0, -1)]:
                wrong.append(seqs)

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(30):
        run.invoke(app, {"n": 0}, "t")
    done.set()
    reader.join()
    assert wrong == []


# -- S5 ------------------------------------------------------------------------------------


@pytest.mark.requirement("S5", api="App.history")
def test_history_is_listed_without_decoding_any_state(
    run: Runner, wrap: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No payload is opened, and none is even handed out."""
    inner = MemoryStore()
    app = line(inner, wrap)
    run.invoke(app, {"n": 0}, "t")
    assert {entry.payload for entry in inner.history(KEY)} == {b""}

    def forbidden(*args: Any) -> Any:
        raise AssertionError("a state was decoded")

    monkeypatch.setattr(LogCodec, "rebuild", forbidden)
    monkeypatch.setattr(LogCodec, "unseal_entry", forbidden)
    assert [known.seq for known in run.history(app, "t")] == [4, 3, 2, 1]
    assert [known.seq for known in CheckpointStore(inner).list_history(KEY)] == [4, 3, 2, 1]
    with pytest.raises(AssertionError):
        app.state("t")


@pytest.mark.requirement("S5", api="App.history")
def test_history_is_streamed() -> None:
    """The first checkpoints are there before the last ones were asked for."""
    asked: list[int] = []

    class Lazy(CountingStore):
        def history(self, key: ThreadKey, **named: Any) -> Any:
            for entry in super().history(key, **named):
                asked.append(entry.seq)
                yield entry

    app = line(Lazy())
    app.invoke({"n": 0}, "t")
    listed = iter(app.history("t"))
    assert next(listed).seq == 4
    assert asked == [4]


# -- S8 ------------------------------------------------------------------------------------


class Tampering(WrappedStore):
    """Hands out chains whose last payload was changed."""

    def __init__(self, change: Any) -> None:
        super().__init__(MemoryStore())
        self._change = change

    def open(self, key: ThreadKey) -> Opened | None:
        found = super().open(key)
        return found and found._replace(chain=self._changed(found.chain))

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        chain = super().read(key, seq)
        return chain and self._changed(chain)

    def _changed(self, chain: Chain) -> Chain:
        last = chain.entries[-1]
        changed = msgspec.structs.replace(last, payload=self._change(last.payload))
        return Chain((*chain.entries[:-1], changed), chain.results)


@pytest.mark.requirement("S8", api="CodecError")
@pytest.mark.parametrize("place", [0, 1, 5, -1])
def test_a_flipped_bit_in_a_stored_state_is_an_error(run: Runner, place: int) -> None:
    """Damage is never guessed away."""

    def flip(payload: bytes) -> bytes:
        damaged = bytearray(payload)
        damaged[place] ^= 1
        return bytes(damaged)

    app = line(Tampering(flip))
    run.invoke(app, {"n": 0}, "t")
    with pytest.raises((CodecError, StoreError)):
        run.state(app, "t")


def paged(shape: type[Any], store: MemoryStore) -> App[Any]:
    made = type("Paged", (), {"__annotations__": {"n": int, "page": shape}})
    graph: StateGraph[Any] = StateGraph(dataclass(made))
    graph.add_node("a", idle)
    graph.add_edges(START, "a", END)
    return graph.compile(store=store)


def idle(state: Any) -> None: ...


def page(**fields: type[Any]) -> type[Any]:
    """A dataclass named ``Page`` with these fields."""
    made: type[Any] = dataclass(type("Page", (), {"__annotations__": fields}))
    made.__module__, made.__qualname__ = __name__, "Page"
    return made


@pytest.mark.requirement("S8", api="CodecError")
@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"title": str}, id="unknown field"),
        pytest.param({"title": str, "number": int, "more": int}, id="missing field"),
    ],
)
def test_a_type_that_changed_under_its_name_is_an_error_with_its_path(
    run: Runner, later: dict[str, type[Any]]
) -> None:
    """An unknown field and a missing field are not guessed at."""
    store = MemoryStore()
    earlier = page(title=str, number=int)
    run.invoke(paged(earlier, store), {"n": 1, "page": earlier("x", 1)}, "t")
    app = paged(page(**later), store)
    with pytest.raises(CodecError, match=r"the value at \$\.page cannot be read"):
        run.state(app, "t")


@pytest.mark.requirement("S8", api="CodecError")
def test_a_type_that_is_not_declared_is_an_error_with_its_path() -> None:
    """Nothing is imported by name."""
    inner = MemoryStore()
    CheckpointStore(inner, types=[Point]).put(KEY, {"n": 1, "docs": [{"at": Point(1)}]})
    with pytest.raises(CodecError, match=r"\$\.docs\[0\]\[key 0\].*'Point' is neither declared"):
        CheckpointStore(inner).get_latest(KEY)


WRONG_STATES: list[tuple[dict[str, Any], str]] = [
    ({"n": "one", "log": []}, r"\$\.n is str, but it is declared as int"),
    ({"n": None, "log": []}, r"\$\.n is NoneType, but it is declared as int"),
    ({"n": 1, "log": [], "zzz": 2}, r"\$\.zzz is not a key of the state"),
    ({"n": 1, "log": [], "__sends__": ["a", {}]}, "'__sends__' is a name that a state cannot have"),
    ({"n": 1, "log": [], "__times__": b""}, "'__times__' is a name that a state cannot have"),
    ({"n": 1, "log": [], "__config__": 1}, "'__config__' is a name that a state cannot have"),
]


@pytest.mark.requirement("S8", api="CheckpointStore.update_state")
@pytest.mark.parametrize(("state", "says"), WRONG_STATES)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_state_that_the_graph_does_not_declare_is_refused_when_written(
    kind: str, state: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """By ``update_state`` and ``put`` on every store; the thread stays as it was.

    Tried: no ``_refuse_misfits``; the state was written and given to the next node.
    """
    stores = Stores(tmp_path)
    try:
        store = stores.open(kind)
        app = line(store)
        app.invoke({"n": 0}, "t")
        direct = CheckpointStore(store)
        before = direct.get_latest(KEY)
        assert before is not None
        with pytest.raises(InvalidRequest, match=says):
            direct.update_state(KEY, before.id, new_state=state)
        with pytest.raises(InvalidRequest, match=says):
            direct.put(KEY, state)
        assert direct.get_latest(KEY) == before
        assert direct.update_state(KEY, before.id, new_state={"n": 7, "log": ["by hand"]})
        assert app.state("t").state["n"] == 7
    finally:
        stores.close()


@pytest.mark.requirement("S8", api="App.resume")
@pytest.mark.parametrize(("state", "says"), WRONG_STATES[:3])
def test_stored_state_that_does_not_fit_is_an_error_when_it_is_run(
    run: Runner, state: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its path, and no node runs. Tried: no ``_fitting``; the node got the state as it was."""
    store = MemoryStore()
    app = line(store, interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    direct = CheckpointStore(store)
    head = direct.get_latest(KEY)
    assert head is not None
    with monkeypatch.context() as patch:  # as a store that was written by an older version
        patch.setattr(CheckpointStore, "_refuse_misfits", lambda *_: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        direct.update_state(KEY, head.id, new_state=state)
    written = len(list(app.history("t")))
    with pytest.raises(ResumeRefused, match=says):
        run.resume(app, "t")
    assert len(list(app.history("t"))) == written
    assert app.state("t").state["n"] == state["n"]


@pytest.mark.requirement("S8", api="Manifest")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"nodes":[],"edges":[],"channels":[],"more":1}', "more"),
        (b'{"nodes":[],"edges":[]}', "channels"),
        (b'{"nodes":[{"name":1}],"edges":[],"channels":[]}', r"\$\.nodes\[0\]\.name"),
        (b"not json", "cannot be decoded"),
        (b"\xff", "cannot be decoded"),
    ],
)
def test_a_manifest_is_read_strictly(data: bytes, says: str) -> None:
    """An unknown field, a missing field and a wrong type are errors with their path."""
    with pytest.raises(CodecError, match=says):
        Manifest.from_bytes(data)


# -- S9 ------------------------------------------------------------------------------------


class Racing(CountingStore):
    """Lets somebody else go first, once, right before the commit with a given number."""

    def __init__(self, at: int, other: Any = None) -> None:
        super().__init__()
        self.at = at
        self.other = other

    def commit(self, batch: Batch) -> None:
        if len(self.batches) + 1 == self.at and self.other:
            other, self.other = self.other, None
            other()
        super().commit(batch)


@pytest.mark.requirement("S9", api="Conflict")
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_of_two_runs_on_one_thread_one_wins_and_the_other_stops(
    run: Runner, wrap: Wrap, at: int
) -> None:
    """The loser gets ``Conflict``, writes nothing more, and nothing is lost."""
    store = Racing(at)
    app = line(store, wrap)
    ran: list[Any] = []

    def other() -> None:
        def take() -> None:
            ran.append(line(store).invoke({"n": 0}, "t", take_over=True))

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    store.other = other
    with pytest.raises(Conflict) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.thread, caught.value.expected) == ("t", at)
    assert caught.value.head >= at
    assert ran[0].state == {"n": 3, "log": ["a", "b", "c"]}
    assert run.state(app, "t").state == {"n": 3, "log": ["a", "b", "c"]}
    assert run.state(app, "t").run_id == ran[0].run_id
    seqs = [known.seq for known in run.history(app, "t")]
    assert seqs == [*range(len(seqs), 0, -1)]
    statuses = [record.status for record in store.runs(KEY)]
    assert statuses == (["completed"] if at == 1 else ["completed", "superseded"])


@pytest.mark.requirement("S9", api="Conflict")
def test_a_run_that_was_taken_over_while_it_lived_is_fenced_out(run: Runner) -> None:
    """Its next write conflicts, and the history shows the takeover."""
    store = CountingStore()
    app = line(store)
    planned = app.runner.begin(Call(input={"n": 0}, thread="t"))
    assert not isinstance(planned, Result)
    effects = planned.effects(HostServices(planned))
    outcome: Any = None
    while len(store.batches) < 2:
        effect = effects.send(outcome)
        outcome = None
        if isinstance(effect, Commit):
            store.commit(effect.batch)
        elif isinstance(effect, RunTask):
            outcome = call_node(planned, effect)
    winner = run.resume(app, "t")
    sources = [entry.source for entry in store.written]
    assert sources == ["input", "step", "takeover", "step", "step"]
    with pytest.raises(Conflict):
        list(blocking.drive(lambda services: effects, planned))
    assert [entry.source for entry in store.written] == sources
    assert [record.status for record in store.runs(KEY)] == ["completed", "superseded"]
    assert run.state(app, "t").state == winner.state


@pytest.mark.requirement("S9", api="Conflict")
def test_two_resumes_of_one_interrupted_thread_do_not_both_continue(
    run: Runner, wrap: Wrap
) -> None:
    """Both may run the node; one commits it."""
    store = Racing(4)
    app = line(store, wrap, interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")

    def other() -> None:
        thread = threading.Thread(target=lambda: line(store).resume("t"))
        thread.start()
        thread.join()

    store.other = other
    with pytest.raises(Conflict):
        run.resume(app, "t")
    assert run.state(app, "t").state == {"n": 3, "log": ["a", "b", "c"]}


@pytest.mark.requirement("S9", api="Conflict")
def test_an_update_from_outside_stops_a_running_run(run: Runner) -> None:
    """The first append wins; the run does not overwrite it."""
    store = Racing(3)
    app = line(store)
    store.other = lambda: Threadless(app).update()
    with pytest.raises(Conflict):
        run.invoke(app, {"n": 0}, "t")
    assert run.state(app, "t").state["n"] == 100
    assert run.resume(app, "t").state["n"] == 102


class Threadless:
    """Updates a thread from another OS thread, so that no lock is taken twice."""

    def __init__(self, app: App[Trip]) -> None:
        self._app = app

    def update(self) -> None:
        thread = threading.Thread(target=lambda: self._app.update_state("t", {"n": 100}))
        thread.start()
        thread.join()


@pytest.mark.requirement("S9", api="Conflict")
def test_a_sibling_s_result_is_held_to_the_same_fence(run: Runner, wrap: Wrap) -> None:
    """A superseded run cannot even leave a result behind."""
    store = Racing(2)
    graph: StateGraph[Trip] = StateGraph(Trip)

    def branch(state: Trip, name: str) -> dict[str, Any]:
        if name == "b":
            raise ValueError("on purpose")
        return {"log": [name]}

    for name in ("a", "b"):
        graph.add_node(name, wrap(branch))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=store)
    store.other = lambda: Threadless(app).update()
    with pytest.raises(Conflict):
        run.invoke(app, {"n": 0}, "t")
    chain = store.read(KEY)
    assert chain is not None
    assert chain.results == ()
    with pytest.raises(ExecutionError):
        run.resume(app, "t")


@pytest.mark.requirement("S9", api="CheckpointStore.put")
def test_a_put_that_expects_another_head_is_refused() -> None:
    """Also when the head moves between reading and writing."""
    store = open_store("memory://")
    store.put(KEY, {"n": 1}, head=0)
    for head in (0, 2):
        with pytest.raises(Conflict) as caught:
            store.put(KEY, {"n": 2}, head=head)
        assert (caught.value.expected, caught.value.head) == (head + 1, 1)
    racing = Racing(2)
    direct = CheckpointStore(racing)
    direct.put(KEY, {"n": 1})
    racing.other = lambda: CheckpointStore(racing).put(KEY, {"n": 2})
    with pytest.raises(Conflict):
        direct.put(KEY, {"n": 3}, head=1)
    latest = direct.get_latest(KEY)
    assert latest is not None
    assert (latest.seq, latest.state) == (2, {"n": 2})


@pytest.mark.requirement("S9", api="App.invoke")
def test_a_crashed_run_leaves_nothing_in_the_way(run: Runner) -> None:
    """There is no lock: the next call takes over at once."""
    store = CountingStore()
    crash_after(line(store), {"n": 0}, "t", commits=3)
    assert run.resume(line(store), "t").state == {"n": 3, "log": ["a", "b", "c"]}
