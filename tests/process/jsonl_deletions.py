"""Kills who deletes a thread of a file store before each thing that he does to the disk.

Run as ``python -m tests.process.jsonl_deletions FOLDER [cheat]``; prints JSON. The thread has
failures, a run whose id another tenant uses too, and a log that was repaired, with a copy, a copy
that was never finished and the folder of a run that the cut line had. Around it are threads whose
names begin alike. After each kill the thread is deleted again: then nothing may be left but
the tombstone, and nothing else may have changed. ``cheat`` puts the tombstone up first: the
control.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec

from milecastle.codec.envelope import seal
from milecastle.errors import Conflict
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.jsonl.writing import drop_all
from milecastle.testing.entries import Writer, a_failure, a_key, a_run, an_entry, make_id

KEY = a_key("t")
SECRET = "nobody else's business"
DONE, KILLED = 0, 9
EFFECTS = ("fdatasync", "fsync", "ftruncate", "rename", "replace", "rmdir", "unlink", "write")

Tree = dict[str, bytes | None]


def tree_of(root: Path) -> Tree:
    """Every file with its bytes, and every folder."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def tear(store: JsonlStore, key: ThreadKey) -> Path:
    """Cut the last line in half and repair the log; the copy that was saved."""
    path = store.path_of(key)
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    path.write_bytes(data[: (last + len(data)) // 2])
    copy = store.repair_thread(key)
    assert copy is not None
    return copy


def build_others(store: JsonlStore) -> None:
    """Threads whose names begin alike, each with a copy, and a file run of the same name."""
    names = ("t.1", "t.jsonl", "t.jsonl.torn-1", "t.jsonl.torn-20260101T000000000000Z", "T")
    for number, name in enumerate(names, 11):
        writer = Writer(a_key(name), number).begin(store, 3)
        tear(store, writer.key)
    Writer(a_key("t", "another tenant"), 2).begin(store)
    folder = store.root / "runs" / "file-run"
    folder.mkdir()
    (folder / "nodes.json").write_text("{}", "utf-8")
    owner = {"tenant": KEY.tenant, "thread": KEY.thread}
    (folder / "run.json").write_text(json.dumps(owner), "utf-8")


def build(store: JsonlStore) -> int:
    """The thread that is to be deleted; its head."""
    payload = seal(msgspec.msgpack.encode([0, "secret", SECRET]))
    for number in (1, 2, 3, 4):
        run = a_run(KEY, number, status="failed", metadata={"why": SECRET})
        failure = a_failure(run.run_id, message=SECRET)
        entry = an_entry(number, payload=payload, run_id=run.run_id)
        batch = Batch(key=KEY, head=number - 1, entries=(entry,), runs=(run,), failure=failure)
        store.commit(batch)
    copy = tear(store, KEY)
    shutil.copy(copy, copy.with_name(f".{copy.name}.tmp"))
    for number in (1, 4):
        folder = store.root / "runs" / make_id(number)
        (folder / ".failure.json.tmp").write_text(SECRET, "utf-8")
    return 3


def count_down(left: int) -> None:
    """Die before the effect of this number; the first is 1."""

    def counting(effect: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(KILLED)
            return effect(*given, **named)

        return instead

    for name in EFFECTS:
        if hasattr(os, name):
            setattr(os, name, counting(getattr(os, name)))


def delete_badly(store: JsonlStore) -> bool:
    """The tombstone first, and then everything else."""
    with store._pool.writing(KEY) as log:  # pyright: ignore[reportPrivateUsage]
        header, count = log.index.header, log.index.count
        if header is None or count == 1:
            return False
        drop_all(log, header, now=time_ns() // 1000)
        log.refresh()
        store._sweep(log)  # pyright: ignore[reportPrivateUsage]
        return True


def delete(store: JsonlStore, cheat: bool) -> bool:
    """Delete the thread."""
    return delete_badly(store) if cheat else store.delete(KEY)


def die_deleting(root: Path, step: int, cheat: bool) -> bool:
    """Delete in another process, which is killed before an effect; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store = JsonlStore(root)
            count_down(step)
            code = DONE if delete(store, cheat) else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (DONE, KILLED), code
    return code == KILLED


def is_refused(store: JsonlStore, head: int) -> bool:
    """Whether a writer that still has the old head is refused."""
    try:
        store.commit(Batch(key=KEY, head=head, entries=(an_entry(head + 1),)))
    except Conflict:
        return True
    return False


def check(root: Path, head: int, others: Tree, cheat: bool, found: dict[str, int]) -> None:
    """Delete again and compare what is there with what may be."""
    store = JsonlStore(root)
    chain = store.read(KEY)
    was_there = chain is not None
    found["undone"] += was_there
    found["wrong"] += chain is not None and chain.entries[-1].seq != head
    found["wrong"] += delete(store, cheat) != was_there
    left = tree_of(root)
    tombstone = left.pop(str(store.path_of(KEY).relative_to(root)))
    found["left"] += tombstone is None or SECRET.encode() in tombstone or bool(left.keys() - others)
    found["harmed"] += any(left.get(path, b"") != data for path, data in others.items())
    found["wrong"] += store.delete(KEY) or not is_refused(store, head)
    store.close()


def main(folder: Path, cheat: bool) -> dict[str, int]:
    """Kill before every effect, and count what is left, harmed or answered wrong."""
    found = {"steps": 0, "undone": 0, "left": 0, "harmed": 0, "wrong": 0}
    store = JsonlStore(folder / "whole")
    build_others(store)
    others = tree_of(store.root)
    head = build(store)
    store.close()
    killed = True
    while killed:
        root = folder / f"step {found['steps']}"
        shutil.copytree(store.root, root)
        killed = die_deleting(root, found["steps"] + 1, cheat)
        check(root, head, others, cheat, found)
        found["steps"] += killed
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), "cheat" in sys.argv)))
