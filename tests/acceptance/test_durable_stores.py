"""S: stores that outlive a process: their files, their durability, retention and copies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Conflict,
    Corrupted,
    ExecutionOptions,
    Retention,
    StateGraph,
    StoreError,
    ThreadKey,
    append,
    copy_threads,
    open_store,
)
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import HARD_IDS
from tests.every_store import EVERY_KIND, EVERY_PAIR, Stores
from tests.postgres_cluster import SKIPPED, needs_postgres, new_schema, the_cluster

KEY = ThreadKey("default", "t")
DAY = timedelta(days=1)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]


def loop(store: Any, steps: int, **options: Any) -> App[Trip]:
    """A graph that comes back to its node until ``n`` is a multiple of ``steps``."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    @graph.node
    def walk(state: Trip) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [f"step {state['n']}"]}

    graph.add_edge(START, "walk")
    graph.add_edge("walk", END, when=lambda state: state["n"] % steps == 0)
    graph.add_edge("walk", "walk")
    return graph.compile(store=store, **options)


def walked(store: Any, steps: int, thread: str = "t", **options: Any) -> App[Trip]:
    """The same, once it went all the way."""
    app = loop(store, steps, **options)
    app.invoke({"n": 0}, thread, options=ExecutionOptions(max_steps=steps))
    return app


def states_of(app: App[Trip], thread: str = "t") -> dict[int, Any]:
    return {known.seq: app.state(thread, known.seq).state for known in app.history(thread)}


# -- C3 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C3", api="open_store")
def test_a_package_that_is_installed_adds_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an entry point in the group `milecastle.stores`; nothing is registered by hand."""
    known = tmp_path / "cellar-1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: cellar\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text("[milecastle.stores]\ncellar = cellar:open_cellar\n")
    (tmp_path / "cellar.py").write_text(
        "from milecastle.stores.memory import MemoryStore\n"
        "def open_cellar(url):\n"
        "    return MemoryStore()\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    app = walked("cellar://deep", 3)
    assert app.state("t").state["n"] == 3


# -- S4 ------------------------------------------------------------------------------------


@pytest.mark.requirement("S4", api="open_store")
def test_a_thread_is_a_file_of_json_lines(tmp_path: Path) -> None:
    """Each checkpoint is a line `{seq, created_at, checkpoint}`, and lines are only appended."""
    app = walked(f"file://{tmp_path}", 2)
    (path,) = tmp_path.rglob("*.jsonl")
    assert path == tmp_path / "threads" / "default" / "t.jsonl"
    before = path.read_bytes()
    records = [json.loads(line) for line in before.splitlines()]
    found = [record for record in records if "checkpoint" in record]
    assert [record["seq"] for record in found] == [1, 2, 3]
    assert all(record["created_at"].endswith("Z") for record in found)
    assert found[0]["checkpoint"]["state"]["n"] == 0
    app.update_state("t", {"n": 5})
    after = path.read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before)


@pytest.mark.requirement("S4", api="open_store")
def test_no_two_threads_share_a_file(tmp_path: Path) -> None:
    """Names are cleaned; where that changed one, a hash is added, and the raw id is verified."""
    direct = open_store(f"file://{tmp_path}")
    for name in HARD_IDS:
        direct.put(ThreadKey("default", name), {"name": name})
    names = [path.name for path in tmp_path.rglob("*.jsonl")]
    assert len({name.casefold() for name in names}) == len(HARD_IDS)
    assert not any(set(name) & set('\\/:*?"<>|') for name in names)
    assert not any(name.startswith((".", " ")) for name in names)
    for name in HARD_IDS:
        latest = direct.get_latest(ThreadKey("default", name))
        assert latest is not None
        assert latest.state == {"name": name}
    store = direct.store
    assert isinstance(store, JsonlStore)
    one, other = (store.path_of(ThreadKey("default", name)) for name in ("a/b", "a_b"))
    assert one.name.startswith("a_b-")
    one.write_bytes(other.read_bytes())
    with pytest.raises(Corrupted, match="belongs to another thread"):
        JsonlStore(tmp_path).read(ThreadKey("default", "a/b"))


# -- S6 ------------------------------------------------------------------------------------


@pytest.mark.requirement("S6", api="Corrupted.place")
def test_a_torn_last_line_is_told_apart_from_damage(tmp_path: Path) -> None:
    """Both are `Corrupted`, with file, line and byte; repair keeps a copy and whole records."""
    walked(f"file://{tmp_path}", 3)
    store = JsonlStore(tmp_path)
    path = store.path_of(KEY)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    torn = data[: -len(lines[-1]) // 2]
    path.write_bytes(torn)
    with pytest.raises(Corrupted, match="torn") as caught:
        store.read(KEY)
    start = len(data) - len(lines[-1])
    assert caught.value.place == f"{path}, line {len(lines)}, byte {start}"
    copy = store.repair(KEY)
    assert copy is not None
    assert copy.read_bytes() == torn
    assert path.read_bytes() == data[:start]
    assert [entry.seq for entry in JsonlStore(tmp_path).history(KEY)] == [3, 2, 1]


@pytest.mark.requirement("S6", api="Corrupted")
def test_a_flipped_bit_is_damage_that_nothing_hides(tmp_path: Path) -> None:
    """It is found wherever it is, and repair changes nothing."""
    walked(f"file://{tmp_path}", 3)
    path = JsonlStore(tmp_path).path_of(KEY)
    data = path.read_bytes()
    for place in range(0, len(data), 61):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        path.write_bytes(flipped)
        store = JsonlStore(tmp_path)
        with pytest.raises(Corrupted, match="damaged") as caught:
            store.read(KEY)
        assert f"line {data[:place].count(10) + 1}, byte" in caught.value.place
        with pytest.raises(Corrupted):
            store.repair(KEY)
        assert path.read_bytes() == flipped
        store.close()


# -- S7 ------------------------------------------------------------------------------------

DIE = """
import os, signal, sys
from milecastle import ThreadKey, open_store
direct = open_store(sys.argv[1])
for n in range(5):
    direct.put(ThreadKey("default", "t"), {"n": n})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9")
@pytest.mark.requirement("S7", api="CheckpointStore.put")
@pytest.mark.parametrize("kind", EVERY_KIND[1:])
def test_what_was_written_outlives_a_killed_process(kind: str, tmp_path: Path) -> None:
    """The process dies at once after its last write, without closing anything."""
    url = {
        "jsonl": lambda: f"file://{tmp_path}",
        "sqlite": lambda: f"sqlite:///{tmp_path}/t.db",
        "postgres": lambda: the_cluster().url_of(new_schema()),
    }[kind]()
    done = subprocess.run([sys.executable, "-c", DIE, url], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    direct = open_store(url)
    assert [known.seq for known in direct.list_history(KEY)] == [5, 4, 3, 2, 1]
    latest = direct.get_latest(KEY)
    direct.close()
    assert latest is not None
    assert latest.state == {"n": 4}


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="it is called otherwise here")
@pytest.mark.requirement("S7", api="open_store")
def test_a_file_is_synced_before_a_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left unsynced: what is written when the disk was last asked is all there is."""
    direct = open_store(f"file://{tmp_path}")
    path = tmp_path / "threads" / "default" / "t.jsonl"
    synced: list[int] = []
    really = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def watch(name: str) -> Any:
        def sync(fd: int) -> None:
            really[name](fd)
            if path.exists():
                synced.append(path.stat().st_size)

        return sync

    for name in really:
        monkeypatch.setattr(os, name, watch(name))
    for n in range(3):
        direct.put(KEY, {"n": n})
        assert synced[-1] == path.stat().st_size
        synced.clear()
    direct.close()


@pytest.mark.requirement("S7", api="open_store")
def test_sqlite_waits_for_the_disk_unless_told_otherwise(tmp_path: Path) -> None:
    """`synchronous` is FULL; `?synchronous=normal` is a choice."""
    for options, expected in (("", 2), ("?synchronous=normal", 1)):
        direct = open_store(f"sqlite:///{tmp_path}/t.db{options}")
        direct.put(KEY, {"n": 1})
        store = direct.store
        assert isinstance(store, SqliteStore)
        assert synchronous_of(store) == expected
        direct.close()


def synchronous_of(store: SqliteStore) -> int:
    """The setting of the connection that writes."""
    with vars(store)["_connections"].writing() as cursor:
        (found,) = cursor.execute("PRAGMA synchronous").fetchone()
    assert isinstance(found, int)
    return found


@needs_postgres
@pytest.mark.requirement("S7", api="open_store")
def test_a_postgresql_server_that_may_lose_commits_is_refused() -> None:
    """Unless that is accepted in the URL."""
    url = the_cluster().url_of(new_schema())
    careless = f"{url}&options=-c%20synchronous_commit%3Doff"
    with pytest.raises(StoreError, match="synchronous_commit is off"):
        open_store(careless)
    open_store(f"{careless}&synchronous_commit=off").close()


# -- many runs of one process --------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_runs_in_many_threads_and_on_a_loop_do_not_disturb_each_other(
    kind: str, stores: Stores
) -> None:
    """They share transactions where the store can do that; nobody notices."""
    app = loop(stores.open(kind), 20)
    options = ExecutionOptions(max_steps=20)

    async def on_a_loop() -> list[Any]:
        calls = (app.ainvoke({"n": 0}, f"run {number}", options=options) for number in range(12))
        return await asyncio.gather(*calls)

    with ThreadPoolExecutor(13) as pool:
        beside = pool.submit(asyncio.run, on_a_loop())
        threads = [
            pool.submit(app.invoke, {"n": 0}, f"thread {number}", options=options)
            for number in range(12)
        ]
        results = [each.result() for each in threads] + beside.result()
    log = [f"step {number}" for number in range(20)]
    assert all(result.state == {"n": 20, "log": log} for result in results)
    names = [f"{way} {number}" for way in ("thread", "run") for number in range(12)]
    assert all(len(states_of(app, name)) == 21 for name in names)


@pytest.mark.requirement("S9", api="CheckpointStore.erase")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_run_of_a_thread_that_was_erased_and_begun_anew_is_refused(
    kind: str, stores: Stores
) -> None:
    """Also if the new thread has come exactly as far as the old one had."""
    store = stores.open(kind)
    inside, go_on = Event(), Event()
    graph: StateGraph[Trip] = StateGraph(Trip)

    @graph.node
    def leave(state: Trip) -> dict[str, Any]:
        return {"log": [f"left with {state['n']}"]}

    @graph.node
    def wait(state: Trip) -> dict[str, Any]:
        inside.set()
        assert go_on.wait(30)
        return {"log": [f"waited with {state['n']}"]}

    graph.add_edges(START, "leave", "wait", END)
    app = graph.compile(store=store)
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(app.invoke, {"n": 1}, "t")
        assert inside.wait(30)
        CheckpointStore(store).erase("default", ["t"])
        new = graph.compile(store=store, interrupt_before=["wait"])
        new.invoke({"n": 2}, "t")
        go_on.set()
        with pytest.raises(Conflict):
            old.result()
    assert new.resume("t").state == {"n": 2, "log": ["left with 2", "waited with 2"]}


# -- S10 -----------------------------------------------------------------------------------


@pytest.mark.requirement("S10", api="CheckpointStore.apply_retention")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_last_checkpoints_are_kept(kind: str, stores: Stores) -> None:
    """Those that stay read as before, and the thread goes on."""
    store = stores.open(kind)
    app = walked(store, 160)
    before = states_of(app)
    direct = CheckpointStore(store)
    foreseen = direct.apply_retention("default", Retention(keep_last=20), dry_run=True)
    assert states_of(app) == before
    report = direct.apply_retention("default", Retention(keep_last=20))
    after = states_of(app)
    assert report.dropped == foreseen.dropped == 161 - len(after) > 0
    assert len(after) >= 20
    assert after == {seq: before[seq] for seq in after}
    app.invoke({"n": 160}, "t", options=ExecutionOptions(max_steps=160))
    assert app.state("t").state["n"] == 320


@pytest.mark.requirement("S10", api="Retention.older_than")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_threads_that_ended_long_ago_go_and_those_that_wait_stay(kind: str, stores: Stores) -> None:
    """By age; a thread that goes whole leaves nothing, and no late writer brings it back."""
    store = stores.open(kind)
    walked(store, 3, "ended")
    waiting = loop(store, 3, interrupt_before=["walk"])
    waiting.invoke({"n": 0}, "waiting")
    direct = CheckpointStore(store)
    assert direct.apply_retention("default", Retention(older_than=DAY)).deleted == ()
    late = direct.get_latest(ThreadKey("default", "ended"))
    assert late is not None
    report = direct.apply_retention("default", Retention(older_than=timedelta(0)))
    assert report.deleted == ("ended",)
    assert [info.key.thread for info in direct.list_threads("default")] == ["waiting"]
    with pytest.raises(Conflict):
        direct.put(ThreadKey("default", "ended"), {"n": 9}, head=late.seq)
    assert waiting.resume("waiting").node == "walk"


@pytest.mark.requirement("S10", api="Retention.threads")
def test_retention_is_given_by_thread() -> None:
    """Only the threads that are named are looked at."""
    store = MemoryStore()
    for name in ("a", "b"):
        walked(store, 3, name)
    direct = CheckpointStore(store)
    rule = Retention(older_than=timedelta(0), threads=("a",))
    assert direct.apply_retention("default", rule).deleted == ("a",)
    assert [info.key.thread for info in direct.list_threads("default")] == ["b"]


@pytest.mark.requirement("S10", api="CheckpointStore.apply_retention")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_retention_does_not_disturb_a_run(kind: str, stores: Stores) -> None:
    """Applied after every step of a run, it changes nothing of its outcome."""
    store = stores.open(kind)
    direct = CheckpointStore(store)
    plain = walked(MemoryStore(), 140).state("t").state
    app = loop(store, 140)
    dropped = 0
    events = app.stream({"n": 0}, "t", options=ExecutionOptions(max_steps=140))
    for number, _ in enumerate(events):
        if number % 10 == 0:
            rule = Retention(keep_last=1)
            dropped += direct.apply_retention("default", rule).dropped
            assert direct.apply_retention("default", Retention(older_than=DAY)).deleted == ()
    assert app.state("t").state == plain
    assert dropped > 0


@pytest.mark.requirement("S10", api="CheckpointStore.erase")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_erasing_a_thread_leaves_nothing_of_it(kind: str, stores: Stores) -> None:
    """Whatever its state; the report says what was there."""
    store = stores.open(kind)
    loop(store, 3, interrupt_before=["walk"]).invoke({"n": 0}, "t")
    report = CheckpointStore(store).erase("default", ["t", "nowhere"])
    assert (report.erased, report.missing) == (("t",), ("nowhere",))
    seen = everything_of(store, KEY)
    assert not any(seen.values())


# -- S11 -----------------------------------------------------------------------------------


@pytest.mark.requirement("S11", api="copy_threads")
@pytest.mark.parametrize(("one", "other"), EVERY_PAIR)
def test_a_copy_is_byte_equal_and_runs_on(one: str, other: str, stores: Stores) -> None:
    """Every checkpoint, run and failure is the same, and a run goes on in the copy."""
    source, target = stores.open(one, "source"), stores.open(other, "target")
    app = loop(source, 140, interrupt_after=["walk"])
    app.invoke({"n": 130}, "waiting")
    walked(source, 140)
    report = copy_threads(source, target, "default")
    assert (report.threads, report.checkpoints) == (2, 144)
    for thread in ("t", "waiting"):
        key = ThreadKey("default", thread)
        assert everything_of(target, key) == everything_of(source, key)
    assert states_of(loop(target, 140)) == states_of(app)
    result = loop(target, 140).resume("waiting")
    assert (result.status, result.state["n"]) == ("completed", 140)


@pytest.mark.requirement("S11", api="CheckpointStore.copy_to")
def test_a_copy_through_every_store_comes_back_the_same(stores: Stores) -> None:
    """Files, SQLite, PostgreSQL and back; each copy can be made again, and adds what is new."""
    kinds = ["jsonl", "sqlite", *([] if SKIPPED else ["postgres"]), "memory"]
    chain = [CheckpointStore(stores.open(kind)) for kind in kinds]
    app = walked(chain[0].store, 5)
    for _ in range(2):
        for source, target in pairwise(chain):
            source.copy_to(target, "default")
        first, last = (everything_of(end.store, KEY) for end in (chain[0], chain[-1]))
        assert first == last
        app.update_state("t", {"n": 7})


@pytest.mark.requirement("S11", api="copy_threads")
def test_a_copy_never_overwrites_what_is_there() -> None:
    """A thread of the same name with another history is a `Conflict`."""
    source, target = MemoryStore(), MemoryStore()
    walked(source, 5)
    walked(target, 3)
    before = everything_of(target, KEY)
    with pytest.raises(Conflict):
        copy_threads(source, target, "default")
    assert everything_of(target, KEY) == before
