"""S: stores that outlive a process: their files, their durability, retention and copies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
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
    ExecutionOptions,
    MaxStepsExceeded,
    Retention,
    StateGraph,
    StoreError,
    ThreadKey,
    append,
    copy_threads,
    interrupt,
    open_store,
)
from milecastle.app.clock import SystemClock
from milecastle.errors import Corrupted
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import ManualClock, with_store
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


def asking(store: Any) -> App[Trip]:
    """A graph that asks if ``n`` is 1."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    @graph.node
    def ask(state: Trip) -> dict[str, Any]:
        said = interrupt("approve?", answer=bool) if state["n"] == 1 else True
        return {"log": [str(said)]}

    graph.add_edges(START, "ask", END)
    return graph.compile(store=store)


def damage(store: Any, key: ThreadKey) -> None:
    """Change bytes in the middle of what a store holds of a thread."""
    if isinstance(store, JsonlStore):
        path = store.path_of(key)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return
    with closing(sqlite3.connect(store.path)) as database:
        database.execute(
            "UPDATE entries SET payload = zeroblob(20) WHERE id = ("
            "SELECT max(e.id) FROM entries AS e, threads AS t "
            "WHERE t.thread = ? AND e.id >> 32 = t.id)",
            (key.thread,),
        )
        database.commit()


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


def read_by_jq(path: Path, query: str) -> list[Any]:
    """What jq finds in every line of a file; without jq, the same by the standard library."""
    if shutil.which("jq"):
        found = subprocess.run(["jq", "-c", query, str(path)], capture_output=True, check=True)
        return [json.loads(line) for line in found.stdout.splitlines()]
    assert query == CHECKPOINTS
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    records = [[line, *line.get("also", ())] for line in lines if line.get("checkpoint")]
    return [
        [one["seq"], one["created_at"], one["checkpoint"]["id"]]
        for several in records
        for one in several
    ]


CHECKPOINTS = "select(.checkpoint) | ., (.also // [])[] | [.seq, .created_at, .checkpoint.id]"


@pytest.mark.requirement("S4", api="open_store")
def test_thread_is_one_file_of_lines_that_jq_reads(tmp_path: Path) -> None:
    """Each record is a line with `seq`, `created_at` and `checkpoint`, for every thread its file.

    Seen to fail with another name for `created_at`, and with all threads in one file.
    """
    app = walked(f"file://{tmp_path}", 3)
    walked(f"file://{tmp_path}", 2, "other")
    folder = tmp_path / "threads" / "default"
    assert sorted(path.name for path in folder.iterdir()) == ["other.jsonl", "t.jsonl"]
    told = read_by_jq(folder / "t.jsonl", CHECKPOINTS)
    history = list(app.history("t"))[::-1]
    assert [(seq, id) for seq, _, id in told] == [(known.seq, known.id) for known in history]
    moments = [datetime.fromisoformat(moment) for _, moment, _ in told]
    assert moments == [known.timestamp for known in history]
    lines = (folder / "t.jsonl").read_text().splitlines()
    held = [line for line in map(json.loads, lines) if "checkpoint" in line]
    assert [line["seq"] for line in held] == [known.seq for known in history]
    assert held[0]["checkpoint"]["state"] == {"n": 0, "log": []}


@pytest.mark.requirement("S4", api="open_store")
def test_file_of_a_thread_is_only_appended_to(tmp_path: Path) -> None:
    """Whatever happens to a thread, what was written stays where it was, in the same file.

    Seen to fail when a commit puts a new file in the place of the old one.
    """
    app = walked(f"file://{tmp_path}", 2)
    path = tmp_path / "threads" / "default" / "t.jsonl"

    def change_nothing() -> None:
        app.state("t")
        list(app.history("t"))

    def fail() -> None:
        options = ExecutionOptions(max_steps=1)
        with pytest.raises(MaxStepsExceeded):
            app.invoke({"n": 2}, "t", discard=True, options=options)

    for grows, act in (
        (False, change_nothing),
        (True, lambda: app.update_state("t", {"n": 5})),
        (True, lambda: app.update_state("t", {"n": 6}, at=1)),
        (True, fail),
        (True, lambda: app.resume("t")),
    ):
        before, inode = path.read_bytes(), path.stat().st_ino
        act()
        assert path.stat().st_ino == inode
        assert path.read_bytes().startswith(before)
        assert (len(path.read_bytes()) > len(before)) is grows


NAMES = {
    "plain-name_1.x": "plain-name_1.x",
    **{f"a{char}b": "a_b-#" for char in '\\/:*?"<>|'},
    "..x..": "x-#",
    " \tx \n": "x-#",
    ". . ": "thread-#",
    "...": "thread-#",
    "Upper": "Upper-#",
    "upper": "upper",
    "\u00e9": "\u00e9-#",
    "con": "_con-#",
}


@pytest.mark.requirement("S4", api="open_store")
@pytest.mark.parametrize("name", NAMES)
def test_file_is_named_after_its_thread(tmp_path: Path, name: str) -> None:
    """Forbidden characters become `_`, ends are trimmed, and a hash marks what was changed.

    Seen to fail with a forbidden character left out of the rule, without the trimming, with another
    word for an empty name, without the hash, and with capitals that count as plain.
    """
    open_store(f"file://{tmp_path}").put(ThreadKey("default", name), {"n": 1})
    [path] = (tmp_path / "threads" / "default").iterdir()
    expected = re.escape(NAMES[name]).replace(r"\#", "[0-9a-f]{20}").replace("#", "[0-9a-f]{20}")
    assert re.fullmatch(expected + r"\.jsonl", path.name), path.name
    first = json.loads(path.read_bytes().splitlines()[0])
    assert (first["tenant"], first["thread"]) == ("default", name)


@pytest.mark.requirement("S4", api="open_store")
def test_no_two_threads_share_a_file_on_any_disk(tmp_path: Path) -> None:
    """Not where capitals, accents or endings are not told apart, and not for ids that look hashed.

    Seen to fail when an id that looks hashed is taken as it is.
    """
    direct = open_store(f"file://{tmp_path}")
    store = direct.store
    assert isinstance(store, JsonlStore)
    hashed = store.path_of(ThreadKey("default", "a/b")).name.removesuffix(".jsonl")
    ids = [*dict.fromkeys([*HARD_IDS, *NAMES, "a_b", "A_B", hashed, "e\u0301", "x" * 300])]
    for name in ids:
        direct.put(ThreadKey("default", name), {"name": name})
    found = [path.name for path in (tmp_path / "threads" / "default").iterdir()]
    assert len({unicodedata.normalize("NFKC", name).casefold() for name in found}) == len(ids)
    assert max(len(name.encode()) for name in found) <= 255
    for name in ids:
        latest = direct.get_latest(ThreadKey("default", name))
        assert latest is not None
        assert latest.state == {"name": name}


@pytest.mark.requirement("S4", api="open_store")
def test_file_of_another_thread_is_never_taken_for_ones_own(tmp_path: Path) -> None:
    """The raw id in the file is verified by every call that opens it.

    Seen to fail when the first line is not compared with the thread that was asked for.
    """
    direct = open_store(f"file://{tmp_path}")
    mine, other = ThreadKey("default", "mine"), ThreadKey("default", "other")
    for key in (mine, other):
        direct.put(key, {"name": key.thread})
    store = direct.store
    assert isinstance(store, JsonlStore)
    store.path_of(mine).write_bytes(store.path_of(other).read_bytes())
    fresh = open_store(f"file://{tmp_path}")
    calls: list[Callable[[], object]] = [
        lambda: fresh.get_latest(mine),
        lambda: list(fresh.list_history(mine)),
        lambda: fresh.put(mine, {"name": "again"}),
        lambda: fresh.store.runs(mine),
        lambda: fresh.delete_thread(mine),
    ]
    for call in calls:
        with pytest.raises(Corrupted, match="belongs to another thread"):
            call()
    latest = fresh.get_latest(other)
    assert latest is not None
    assert latest.state == {"name": "other"}


# -- S6 ------------------------------------------------------------------------------------


@pytest.mark.requirement("S6", api="Corrupted.place")
def test_torn_last_line_is_distinguished_from_damage(tmp_path: Path) -> None:
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
    copy = store.repair_thread(KEY)
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
            store.repair_thread(KEY)
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
def test_sqlite_waits_for_the_disk_by_default(tmp_path: Path) -> None:
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
def test_run_of_a_thread_that_was_erased_and_created_again_is_refused(
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
def test_last_checkpoints_stay(kind: str, stores: Stores) -> None:
    """Those that stay read as before, and the thread continues."""
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


@pytest.mark.requirement("S10", api="Retention.older_than")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_clock_that_is_wrong_costs_no_thread_that_waits(kind: str, stores: Stores) -> None:
    """Two hosts, 50 ms apart, 40 days ago: the one that is behind left a question.

    Mutation tried: ``_is_over`` in ``app/upkeep/retention.py`` takes the run that
    started last, as it did.
    """
    store = stores.open(kind)
    long_ago = SystemClock().now() - 40 * DAY // timedelta(microseconds=1)
    ahead = with_store(asking(store), store, clock=ManualClock(long_ago + 50_000, series=1))
    behind = with_store(asking(store), store, clock=ManualClock(long_ago, series=2))
    ahead.invoke({"n": 0}, "t")
    waiting = behind.invoke({"n": 1}, "t")
    assert [entry.question for entry in waiting.interrupts] == ["approve?"]
    direct = CheckpointStore(store)
    [info] = direct.list_threads("default", status="interrupted")
    assert (info.run_id, info.questions) == (waiting.run_id, 1)
    assert direct.apply_retention("default", Retention(older_than=30 * DAY)).deleted == ()
    assert behind.resume("t", True).status == "completed"
    assert direct.apply_retention("default", Retention(older_than=30 * DAY)).deleted == ("t",)


@pytest.mark.requirement("S10", "T3", api="Retention.older_than")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("back", ["fork", "update_state"])
def test_a_thread_that_was_taken_back_to_before_its_end_stays(
    kind: str, back: str, stores: Stores
) -> None:
    """It has something left to run, in every list, though its only run completed.

    Mutation tried: the line of the index not written for ``fork`` and ``update_state``, as it was.
    """
    store = stores.open(kind)
    app = walked(store, 3)
    if back == "fork":
        app.fork("t", at=2)
    else:
        app.update_state("t", {"n": 1}, at=2)
    direct = CheckpointStore(store)
    assert app.state("t").status == "interrupted"
    assert [info.status for info in direct.list_threads("default")] == ["interrupted"]
    assert direct.apply_retention("default", Retention(older_than=timedelta(0))).deleted == ()
    app.resume("t")
    assert [info.status for info in direct.list_threads("default")] == ["completed"]
    assert direct.apply_retention("default", Retention(older_than=timedelta(0))).deleted == ("t",)


@pytest.mark.requirement("S10", api="RetentionReport.unreadable")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_damaged_thread_does_not_stop_the_others(kind: str, stores: Stores) -> None:
    """It stays, and is reported with its error; the rest of the tenant is pruned.

    Mutation tried: ``visit`` in ``app/upkeep/retention.py`` without its ``except``, as it was.
    """
    store = stores.open(kind)
    for name in ("a-bad", "b", "c"):
        walked(store, 160, name)
    damage(store, ThreadKey("default", "a-bad"))
    direct = CheckpointStore(store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a list warns of a damaged file
        report = direct.apply_retention("default", Retention(keep_last=5))
    assert (report.threads, report.pruned) == (3, 2)
    assert {name: type(error) for name, error in report.unreadable.items()} == {"a-bad": Corrupted}
    for name in ("b", "c"):
        left = list(direct.list_history(ThreadKey("default", name)))
        assert len(left) < 161


@pytest.mark.requirement("S10", api="Retention.threads")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_retention_is_given_by_thread(kind: str, stores: Stores) -> None:
    """Only the threads that are named are looked at.

    Mutation tried: ``_keys`` in ``app/upkeep/retention.py`` ignores ``threads``.
    """
    store = stores.open(kind)
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
    """Every checkpoint, run and failure is the same, and a run continues in the copy."""
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
