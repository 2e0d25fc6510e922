"""Nothing stays of a deleted thread but its tombstone, and no other thread is touched.

Deletions that are killed at every step: `tests/process/test_jsonl_deletions.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milecastle.disk import files
from milecastle.errors import Conflict, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.jsonl.repair import copies_of
from milecastle.testing.entries import Writer, a_failure, a_key, a_run, make_id

STAMP = "20260101T000000000000Z"


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(tmp_path / "workspace", lock_timeout=0.05)


def tear(store: JsonlStore, key: ThreadKey) -> Path:
    """Cut the last line in half and repair the log; the copy that was saved."""
    path = store.path_of(key)
    data = path.read_bytes()
    path.write_bytes(data[: (data[:-1].rfind(b"\n") + 1 + len(data)) // 2])
    copy = store.repair_thread(key)
    assert copy is not None
    return copy


def repaired(store: JsonlStore, key: ThreadKey | None = None, number: int = 1) -> Writer:
    """A thread of 3 entries whose log was repaired; the cut line had its own run."""
    writer = Writer(key, number).begin(store, 3)
    store.commit(writer.batch(runs=(a_run(writer.key, number + 1),)))
    tear(store, writer.key)
    return writer


def left_of(store: JsonlStore) -> list[str]:
    """Every file of the store, as a path in it."""
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*.*"))


def write_run_by_hand(folder: Path, key: ThreadKey) -> None:
    folder.mkdir(parents=True)
    owner = {"tenant": key.tenant, "thread": key.thread}
    (folder / "run.json").write_text(json.dumps(owner), "utf-8")


def test_copies_of_a_repair_go_with_their_thread(store: JsonlStore) -> None:
    writer = repaired(store)
    assert len(copies_of(store.path_of(writer.key))) == 1
    assert len(list((store.root / "runs").iterdir())) == 2
    assert store.delete(writer.key) is True
    assert left_of(store) == ["threads/tenant/thread.jsonl"]
    assert list((store.root / "runs").iterdir()) == []


def test_a_copy_that_was_never_finished_goes_too(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    path = store.path_of(writer.key)
    path.with_name(f".{path.name}.torn-{STAMP}.tmp").write_text("states", "utf-8")
    store.delete(writer.key)
    assert left_of(store) == ["threads/tenant/thread.jsonl"]


def test_what_a_pruning_did_not_finish_goes_too(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    path = store.path_of(writer.key)
    path.with_name(f".{path.name}.tmp").write_text("states", "utf-8")
    store.delete(writer.key)
    assert left_of(store) == ["threads/tenant/thread.jsonl"]


def test_the_copy_of_a_thread_that_never_began_goes(store: JsonlStore) -> None:
    path = store.path_of(a_key())
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"length":90,"milecastle":1,"tenant":"ten')
    assert store.repair_thread(a_key()) is not None
    assert store.delete(a_key()) is False
    assert left_of(store) == ["threads/tenant/thread.jsonl"]


def test_copies_go_though_the_log_was_removed_by_hand(store: JsonlStore) -> None:
    writer = repaired(store)
    store.path_of(writer.key).unlink()
    assert store.delete(writer.key) is False
    assert left_of(store) == []


@pytest.mark.parametrize(
    "name",
    ["thread.1", "thread.jsonl", "thread.jsonl.torn-1", f"thread.jsonl.torn-{STAMP}", "Thread"],
)
def test_copies_of_threads_whose_names_begin_alike_stay(store: JsonlStore, name: str) -> None:
    repaired(store, a_key(name), 11)
    before = left_of(store)
    writer = repaired(store)
    store.delete(writer.key)
    assert left_of(store) == sorted([*before, "threads/tenant/thread.jsonl"])


def test_files_that_only_look_like_copies_stay(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    path = store.path_of(writer.key)
    for end in (".torn-", ".torn-1", f".torn-{STAMP}.gz", f".torn-{STAMP}.jsonl", ".bak"):
        path.with_name(path.name + end).touch()
    store.delete(writer.key)
    assert len(left_of(store)) == 6


def test_a_link_in_place_of_a_copy_is_not_followed(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    victim = store.root.parent / "victim"
    victim.write_text("mine", "utf-8")
    path = store.path_of(writer.key)
    path.with_name(f"{path.name}.torn-{STAMP}").symlink_to(victim)
    store.delete(writer.key)
    assert left_of(store) == ["threads/tenant/thread.jsonl"]
    assert victim.read_text("utf-8") == "mine"


def test_a_link_in_place_of_a_run_is_not_followed(store: JsonlStore) -> None:
    writer = repaired(store)
    elsewhere = store.root.parent / "elsewhere"
    write_run_by_hand(elsewhere, writer.key)
    (store.root / "runs" / "link").symlink_to(elsewhere)
    store.delete(writer.key)
    assert [path.name for path in (store.root / "runs").iterdir()] == ["link"]
    assert (elsewhere / "run.json").exists()


@pytest.mark.parametrize("name", ["runs", f"runs/{make_id(1)}"])
def test_a_link_in_the_way_of_runs_refuses_the_deletion(store: JsonlStore, name: str) -> None:
    writer = Writer().begin(store)
    place, elsewhere = store.root / name, store.root.parent / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    with pytest.raises(Unavailable, match="links are not followed"):
        store.delete(writer.key)
    assert store.read(writer.key) is not None
    assert list(elsewhere.rglob("run.json"))


def test_a_file_run_in_the_same_folder_stays(store: JsonlStore) -> None:
    writer = repaired(store)
    folder = store.root / "runs" / "file-run"
    write_run_by_hand(folder, writer.key)
    (folder / "nodes.json").write_text("{}", "utf-8")
    store.delete(writer.key)
    assert sorted(path.name for path in folder.iterdir()) == ["nodes.json", "run.json"]


def test_a_deletion_that_is_refused_removes_nothing(store: JsonlStore) -> None:
    writer = repaired(store)
    before = left_of(store)
    with pytest.raises(Conflict):
        store.delete(writer.key, head=writer.head - 1)
    assert left_of(store) == before
    assert store.delete(writer.key, head=writer.head) is True


def test_a_late_writer_is_refused_after_copies_went(store: JsonlStore) -> None:
    writer = repaired(store)
    JsonlStore(store.root).delete(writer.key)
    with pytest.raises(Conflict):
        writer.append(store)


def test_a_run_that_was_written_beside_another_goes(store: JsonlStore) -> None:
    keys = [a_key(tenant=tenant) for tenant in ("ours", "theirs")]
    for key in keys:
        Writer(key).begin(store)
    assert len(list((store.root / "runs").iterdir())) == 2
    for key in keys:
        store.delete(key)
    assert list((store.root / "runs").iterdir()) == []


def test_a_failure_without_a_record_goes(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    store.commit(writer.batch(failure=a_failure(make_id(7))))
    store.delete(writer.key)
    assert list((store.root / "runs").iterdir()) == []


def test_a_failure_without_a_record_keeps_its_folder_from_others(store: JsonlStore) -> None:
    ours, theirs = (Writer(a_key(tenant=tenant)) for tenant in ("ours", "theirs"))
    store.commit(ours.batch(ours.plan(), failure=a_failure(make_id(1))))
    theirs.begin(store)
    store.delete(theirs.key)
    (left,) = (store.root / "runs").rglob("*.json")
    assert json.loads(left.read_bytes())["tenant"] == "ours"


def test_runs_that_an_earlier_deletion_left_go_the_second_time(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    store.delete(writer.key)
    write_run_by_hand(store.root / "runs" / "left", writer.key)
    assert store.delete(writer.key) is False
    assert list((store.root / "runs").iterdir()) == []


def test_what_the_disk_did_not_remove_goes_the_next_time(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = repaired(store)

    def refuse(*given: Any, **named: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        with pytest.raises(Unavailable):
            store.delete(writer.key)
    assert store.read(writer.key) is not None
    assert store.delete(writer.key) is True
    assert left_of(store) == ["threads/tenant/thread.jsonl"]
    assert list((store.root / "runs").iterdir()) == []


def test_the_tombstone_comes_when_the_rest_is_gone_for_good(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = repaired(store)
    path = store.path_of(writer.key)
    seen: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        call = getattr(files, name)

        def instead(place: Path, *given: Any, **named: Any) -> Any:
            seen.append(f"{name} {place.name}")
            runs = len(list((store.root / "runs").iterdir()))
            seen.append(f"{runs} runs, {len(copies_of(path))} copies")
            return call(place, *given, **named)

        return instead

    for name in ("put", "sync_folder"):
        monkeypatch.setattr(files, name, noting(name))
    store.delete(writer.key)
    assert [*zip(seen[::2], seen[1::2], strict=True)] == [
        ("sync_folder runs", "0 runs, 1 copies"),
        ("sync_folder tenant", "0 runs, 0 copies"),
        ("put thread.jsonl", "0 runs, 0 copies"),
        ("sync_folder tenant", "0 runs, 0 copies"),
    ]


def test_runs_are_not_written_again_while_another_process_deletes(store: JsonlStore) -> None:
    writer = Writer().begin(store)
    log = JsonlStore(store.root)._pool.find(writer.key)  # pyright: ignore[reportPrivateUsage]
    assert log.take()
    with pytest.raises(Unavailable, match="locked the thread's file"):
        store.write_runs(writer.key)
    log.give_back()
    assert store.write_runs(writer.key) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_during_a_deletion_holds_no_lock(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer().begin(store)
    children: list[int] = []
    sync_folder = files.sync_folder

    def fork_meanwhile(folder: Path) -> None:
        children.append(os.fork())
        if not children[-1]:
            signal.alarm(60)
            signal.pause()
        sync_folder(folder)

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_folder", fork_meanwhile)
        store.delete(writer.key)
    try:
        Writer(number=2).begin(store)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert children
