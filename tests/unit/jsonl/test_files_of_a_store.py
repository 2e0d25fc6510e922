"""What lies in the folder of a file store, and who may put something there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

from milecastle import END, START, StateGraph
from milecastle.codec.envelope import seal
from milecastle.disk import files
from milecastle.errors import Conflict, Corrupted, FormatTooNew, InvalidRequest, Unavailable
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore, listing
from milecastle.stores.jsonl.lines import ROOT_CHECK, frame
from milecastle.stores.opening import find_store
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import Writer, a_failure, a_key, a_run, an_entry, make_id

BARE = (
    b'{"id":"1","parent_id":null,"step":1,"source":"step","nodes":[],"next":[],"run_id":"1",'
    b'"fingerprint":"1","kind":"snapshot","base_seq":1,"roll_seq":1}'
)


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(tmp_path / "workspace")


def lines_of(store: JsonlStore, key: ThreadKey) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.path_of(key).read_bytes().splitlines()]


def run_file(store: JsonlStore, number: int, name: str = "run.json") -> Path:
    return store.root / "runs" / make_id(number) / name


def test_each_thread_has_a_file_in_the_folder_of_its_tenant(store: JsonlStore) -> None:
    Writer(ThreadKey("acme", "demo")).begin(store)
    assert [path.relative_to(store.root) for path in store.root.rglob("*.jsonl")] == [
        Path("threads/acme/demo.jsonl")
    ]


def test_each_line_is_json_with_seq_time_and_checkpoint(store: JsonlStore) -> None:
    payload = seal(msgspec.msgpack.encode([0, "topic", "walls"]))
    store.commit(Batch(key=a_key(), head=0, entries=(an_entry(1, payload=payload),)))
    header, line = lines_of(store, a_key())
    assert (header["milecastle"], header["tenant"], header["thread"]) == (1, "tenant", "thread")
    assert (line["seq"], line["created_at"]) == (1, "2023-11-14T22:13:20.000001Z")
    assert line["checkpoint"]["state"] == {"topic": "walls"}
    assert line["checkpoint"]["kind"] == "snapshot"


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_reads_the_lines(store: JsonlStore) -> None:
    writer = Writer().begin(store, 3)
    command = ["jq", "-r", "select(.checkpoint) | .seq", str(store.path_of(writer.key))]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "2", "3"]


def test_a_manifest_is_written_once_and_readable(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    for manifest in (b'{"nodes": []}', b"another"):
        store.commit(writer.batch(runs=(writer.run,), manifest=("f", manifest)))
    found = [line["manifests"] for line in lines_of(store, writer.key) if "manifests" in line]
    assert found == [{"f": {"nodes": []}}]
    assert store.manifest(writer.key, "f") == b'{"nodes": []}'


def test_nothing_is_made_by_reading(store: JsonlStore) -> None:
    assert store.read(a_key()) is None
    assert store.threads("tenant") == []
    assert store.delete(a_key()) is False
    assert store.repair_thread(a_key()) is None
    assert not store.root.exists()


def test_empty_file_is_not_a_thread_yet(store: JsonlStore) -> None:
    path = store.path_of(a_key())
    path.parent.mkdir(parents=True)
    path.touch()
    assert store.read(a_key()) is None
    assert store.threads("tenant") == []
    writer = Writer().begin(store, 2)
    assert len(list(store.history(writer.key))) == 2


def test_the_file_of_another_thread_is_refused(store: JsonlStore) -> None:
    Writer(a_key("one")).begin(store)
    shutil.copy(store.path_of(a_key("one")), store.path_of(a_key("two")))
    for call in (store.read, store.delete, store.repair_thread, store.verify_thread):
        with pytest.raises(Corrupted, match="belongs to another thread"):
            call(a_key("two"))
    with pytest.raises(Corrupted, match="belongs to another thread"):
        Writer(a_key("two")).begin(store)


def test_a_copy_made_by_hand_is_not_listed(store: JsonlStore) -> None:
    writer = Writer(a_key("one")).begin(store)
    path = store.path_of(writer.key)
    shutil.copy(path, path.with_name("one copy.jsonl"))
    assert [info.key for info in store.threads("tenant")] == [writer.key]


def test_a_newer_format_is_refused(store: JsonlStore) -> None:
    path = store.path_of(a_key())
    path.parent.mkdir(parents=True)
    path.write_bytes(frame(b'{"milecastle":2,"who":"knows"}', ROOT_CHECK)[0])
    with pytest.raises(FormatTooNew) as caught:
        store.read(a_key())
    assert caught.value.found == 2
    with pytest.raises(FormatTooNew):
        store.threads("tenant")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"head":0,"surprise":1}', "surprise"),
        (b'{"head":"0","runs":[]}', r"\$\.head"),
        (b'{"head":3}', "head 0"),
        (b'{"head":0,"also":[{"seq":1}]}', r"\$\.also"),
        (b'{"checkpoint":' + BARE + b"}", "seq 1 belongs"),
        (b'{"seq":2,"created_at":1,"checkpoint":' + BARE + b"}", "seq 1 belongs"),
        (b'{"seq":1,"created_at":1,"checkpoint":{}}', r"\$\.checkpoint"),
    ],
)
def test_decoding_is_strict(store: JsonlStore, body: bytes, why: str) -> None:
    path = store.path_of(a_key())
    path.parent.mkdir(parents=True)
    header = b'{"milecastle":1,"tenant":"tenant","thread":"thread","log":"1"}'
    first, check = frame(header, ROOT_CHECK)
    path.write_bytes(first + frame(body, check)[0])
    with pytest.raises(Corrupted, match=why) as caught:
        store.read(a_key())
    assert f"{path}, line 2, byte {len(first)}" in caught.value.place


@pytest.mark.parametrize("part", ["threads", "threads/tenant", "threads/tenant/thread.jsonl"])
def test_a_symbolic_link_is_not_followed(store: JsonlStore, part: str) -> None:
    elsewhere = JsonlStore(store.root.parent / "elsewhere")
    Writer().begin(elsewhere)
    before = elsewhere.path_of(a_key()).read_bytes()
    (store.root / part).parent.mkdir(parents=True)
    (store.root / part).symlink_to(elsewhere.root / part)
    for call in (store.read, store.delete, store.repair_thread):
        with pytest.raises(Unavailable):
            call(a_key())
    with pytest.raises(Unavailable):
        store.threads("tenant")
    with pytest.raises(Unavailable):
        store.commit(Batch(key=a_key(), head=1, entries=(an_entry(2),)))
    assert elsewhere.path_of(a_key()).read_bytes() == before


def test_a_link_in_place_of_a_temporary_file_is_not_written_through(store: JsonlStore) -> None:
    writer = Writer().begin(store, 3)
    writer.append(store, SNAPSHOT)
    victim = store.root / "victim"
    victim.write_text("mine", "utf-8")
    path = store.path_of(writer.key)
    path.with_name(f".{path.name}.tmp").symlink_to(victim)
    writer.prune(store, 4)
    assert victim.read_text("utf-8") == "mine"


@pytest.mark.parametrize("most", [4, 1, 0])
def test_a_bounded_number_of_files_is_open(tmp_path: Path, most: int) -> None:
    """Fails if a log stays open too many, and if none may be open."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("cannot count open files here")
    store = JsonlStore(tmp_path, open_files=most)
    before = len(list(folder.iterdir()))
    writers = [Writer(a_key(f"t{number}"), number).begin(store) for number in range(1, 41)]
    assert len(list(folder.iterdir())) <= before + max(1, most)
    for writer in writers:
        writer.append(store)
        assert len(list(store.history(writer.key))) == 2
    store.close()
    assert len(list(folder.iterdir())) <= before


def test_list_is_read_from_the_end_of_a_log(store: JsonlStore) -> None:
    """Fails if the commits before the last line of the thread are read: one of them is damaged."""
    writer = Writer().begin(store)
    store.commit(writer.batch(manifest=("fingerprint", b"{}")))
    store.commit(writer.batch(thread=ThreadInfo.of(writer.run)))
    writer.append(store)
    path = store.path_of(writer.key)
    path.write_bytes(path.read_bytes().replace(b'{"fingerprint":{}}', b'{"fingerprinT":{}}'))
    again = JsonlStore(store.root)
    with pytest.raises(Corrupted):
        again.verify_thread(writer.key)
    assert [info.key for info in again.threads("tenant")] == [writer.key]


def test_list_that_is_refused_a_log_leaves_it_closed(tmp_path: Path) -> None:
    """Fails if a file stays open that another writer held for too long."""
    store = JsonlStore(tmp_path, lock_timeout=0.05)
    writer = Writer().begin(store)
    with closing(JsonlStore(tmp_path)) as other, vars(other)["_pool"].writing(writer.key):
        before = files_open()
        with pytest.raises(Unavailable, match="locked"):
            store.threads("tenant")
        assert files_open() == before
    assert len(store.threads("tenant")) == 1


def test_list_holds_no_lock_that_a_child_inherited(store: JsonlStore) -> None:
    """Fails if the lock of a listed log ends only with its last descriptor."""
    writer = Writer().begin(store)
    with listing._Opened(store.path_of(writer.key), 1) as fd:  # pyright: ignore[reportPrivateUsage]
        assert fd is not None
        inherited = os.dup(fd)
    try:
        writer.append(JsonlStore(store.root, lock_timeout=0.05))
    finally:
        os.close(inherited)


def files_open() -> int:
    """How many files this process has open, where that can be seen."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_verification_reads_again_what_was_read_before(store: JsonlStore) -> None:
    """Fails if the lines that have no entry are taken from memory."""
    writer = Writer().begin(store)
    store.commit(writer.batch(runs=(a_run(writer.key, 2, metadata={"host": "h"}),)))
    assert store.verify_thread(writer.key) == 3
    path = store.path_of(writer.key)
    path.write_bytes(path.read_bytes().replace(b'"host":"h"', b'"host":"i"'))
    with pytest.raises(Corrupted):
        store.verify_thread(writer.key)


def test_repair_looks_at_every_thread(store: JsonlStore) -> None:
    """Fails if it ends at a thread that has nothing to repair, or tells that it has."""
    for number, name in enumerate(("a", "b", "c")):
        Writer(a_key(name), number).begin(store)
    torn = store.path_of(a_key("b"))
    torn.write_bytes(torn.read_bytes() + b"{")
    repaired = {line.thread: line.file for line in store.repair("tenant")}
    assert repaired == {"a": None, "b": str(torn), "c": None}
    assert [inspected.findings for inspected in store.verify("tenant")] == [()] * 3


def test_another_store_sees_what_is_appended_pruned_and_deleted(store: JsonlStore) -> None:
    other = JsonlStore(store.root)
    writer = Writer().begin(store, 3)
    writer.append(store, SNAPSHOT)
    assert everything_of(other, writer.key) == everything_of(store, writer.key)
    writer.prune(store, 4)
    assert [entry.seq for entry in other.history(writer.key)] == [4]
    writer.append(other)
    assert [entry.seq for entry in store.history(writer.key)] == [5, 4]
    assert other.delete(writer.key) is True
    assert store.read(writer.key) is None
    Writer(writer.key, 2).begin(store)
    assert [entry.seq for entry in other.history(writer.key)] == [1]


def test_a_writer_whose_file_was_replaced_writes_to_the_new_one(store: JsonlStore) -> None:
    other = JsonlStore(store.root)
    writer = Writer().begin(store, 2)
    writer.append(other, SNAPSHOT)
    writer.prune(store, 3)
    writer.append(other)
    assert [entry.seq for entry in JsonlStore(store.root).history(writer.key)] == [4, 3]
    store.delete(writer.key)
    with pytest.raises(Conflict):
        writer.append(other)


def test_pruning_keeps_everything_but_entries(store: JsonlStore) -> None:
    writer = Writer().begin(store, 2)
    for manifest in (b'{"a":1}', b"not json", b'{"a":\n1}'):
        fingerprint = f"fingerprint of {manifest!r}"
        store.commit(writer.batch(manifest=(fingerprint, manifest)))
    writer.append(store, SNAPSHOT)
    writer.prune(store, 3)
    again = JsonlStore(store.root)
    for manifest in (b'{"a":1}', b"not json", b'{"a":\n1}'):
        assert again.manifest(writer.key, f"fingerprint of {manifest!r}") == manifest
    assert again.verify_thread(writer.key) == len(lines_of(store, writer.key))
    assert [info.key for info in again.threads("tenant")] == [writer.key]


def test_file_that_was_removed_by_hand_is_not_a_thread(store: JsonlStore) -> None:
    writer = Writer().begin(store, 2)
    store.path_of(writer.key).unlink()
    with pytest.raises(Conflict) as caught:
        writer.append(store)
    assert caught.value.head == 0
    assert store.read(writer.key) is None
    Writer(writer.key, 2).begin(store, 3)
    assert len(list(JsonlStore(store.root).history(writer.key))) == 3


def test_file_that_was_put_back_in_place_is_read_again(store: JsonlStore) -> None:
    writer = Writer().begin(store, 3)
    path = store.path_of(writer.key)
    twin = JsonlStore(store.root.parent / "twin")
    Writer(writer.key).begin(twin, 3)
    path.write_bytes(twin.path_of(writer.key).read_bytes())
    writer.append(store)
    assert JsonlStore(store.root).verify_thread(writer.key) == 5


def test_what_a_forked_child_keeps_is_the_poison(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a log of which nobody knows what is on disk is written to, or repaired."""
    poisoned = Writer(a_key("poisoned")).begin(store)
    writer = Writer(a_key("sound"), 2).begin(store)

    def refuse(fd: int) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", refuse)
        with pytest.raises(Unavailable):
            poisoned.append(store)
    vars(store)["_pool"].after_fork(in_child=True)
    with pytest.raises(Unavailable, match="reopen the store"):
        poisoned.append(store)
    with pytest.raises(Unavailable, match="reopen the store"):
        store.repair_thread(poisoned.key)
    writer.append(store)


def test_deleting_leaves_a_tombstone(store: JsonlStore) -> None:
    writer = Writer().begin(store, 3)
    store.delete(writer.key)
    (header,) = lines_of(store, writer.key)
    assert header["generation"] == 2
    assert header["deleted_at"].endswith("Z")
    assert store.threads("tenant") == []


def test_a_history_ends_when_its_thread_is_deleted(store: JsonlStore) -> None:
    writer = Writer().begin(store, 300)
    listed = store.history(writer.key)
    seen = [next(listed).seq]
    store.delete(writer.key)
    Writer(writer.key, 2).begin(store, 200)
    seen += [entry.seq for entry in listed]
    assert seen == list(range(300, 300 - len(seen), -1))
    assert len(seen) < 300


def test_a_run_is_a_folder(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    found = json.loads(run_file(store, 1).read_bytes())
    assert (found["tenant"], found["thread"], found["status"]) == ("tenant", "thread", "running")
    assert found["previous_run_id"] is None
    failed = msgspec.structs.replace(writer.run, status="failed", ended_at=5)
    store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
    assert json.loads(run_file(store, 1).read_bytes())["status"] == "failed"
    failure = json.loads(run_file(store, 1, "failure.json").read_bytes())
    assert (failure["failure_class"], failure["error_type"]) == ("execution", "ValueError")


def test_runs_of_the_same_id_do_not_meet(store: JsonlStore) -> None:
    for tenant in ("ours", "theirs"):
        Writer(a_key(tenant=tenant)).begin(store)
    found = [json.loads(path.read_bytes()) for path in (store.root / "runs").glob("*/run.json")]
    assert sorted(run["tenant"] for run in found) == ["ours", "theirs"]
    store.delete(a_key(tenant="theirs"))
    (left,) = (store.root / "runs").iterdir()
    assert json.loads((left / "run.json").read_bytes())["tenant"] == "ours"


def test_files_of_runs_are_created_again_from_the_log(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    failed = a_run(writer.key, 2, status="failed")
    store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
    before = {path: path.read_bytes() for path in store.root.glob("runs/*/*")}
    assert len(before) == 3
    shutil.rmtree(store.root / "runs")
    assert store.write_runs(writer.key) == 2
    assert {path: path.read_bytes() for path in store.root.glob("runs/*/*")} == before


def test_a_folder_that_cannot_be_written_undoes_no_commit(store: JsonlStore) -> None:
    store.root.mkdir()
    (store.root / "runs").write_text("in the way", "utf-8")
    writer = Writer().begin(store)
    assert list(store.runs(writer.key)) == [writer.run]


def test_text_with_lone_surrogates_is_refused(store: JsonlStore) -> None:
    with pytest.raises(InvalidRequest, match="surrogates"):
        store.commit(Batch(key=a_key(), head=0, entries=(an_entry(1, note="\ud800"),)))
    assert store.read(a_key()) is None


def test_a_forked_child_does_not_share_a_lock(store: JsonlStore) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    writer = Writer().begin(store)
    code = (
        "import os, sys\n"
        "from milecastle.stores.jsonl import JsonlStore\n"
        "from milecastle.testing.entries import a_key\n"
        "store = JsonlStore(sys.argv[1], lock_timeout=0.05)\n"
        "log = store._pool.find(a_key()); log.take()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    from milecastle.testing.entries import Writer\n"
        "    try: store.delete(a_key())\n"
        "    except Exception as error: os._exit(7 if 'locked' in str(error) else 8)\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    assert outcome.returncode == 7
    assert store.read(writer.key) is not None


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("file:///var/lib/x", "/var/lib/x"),
        ("file://rel/dir", str(Path("rel/dir").absolute())),
        ("file:///with%20space", "/with space"),
    ],
)
def test_a_url_names_the_folder(url: str, place: str) -> None:
    store = find_store(url)
    assert isinstance(store, JsonlStore)
    assert str(store.root) == place


@pytest.mark.parametrize("url", ["file", "file://", "file:///x?sync=off"])
def test_a_url_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="has no folder"):
        find_store(url)


class Draft(TypedDict):
    count: int


def test_app_continues_from_the_files(tmp_path: Path) -> None:
    graph = StateGraph(Draft)

    @graph.node
    def count(state: Draft) -> dict[str, int]:
        return {"count": state["count"] + 1}

    graph.add_edges(START, count.__name__, END)
    graph_url = f"file://{tmp_path.as_posix()}"
    graph.compile(store=graph_url, interrupt_before=["count"]).invoke({"count": 1}, thread="demo")
    result = graph.compile(store=graph_url).resume("demo")
    assert result.state == {"count": 2}
    lines = lines_of(JsonlStore(tmp_path), ThreadKey("default", "demo"))
    assert lines[-1]["checkpoint"]["updates"] == [["set", "count", 2]]
