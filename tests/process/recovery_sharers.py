"""One of several processes that fill one cache: ``... recovery_sharers FOLDER NUMBER ROUNDS``.

Each stores and restores the same tasks in its own root; one of them evicts repeatedly.
Prints how many restored files were right, gone and wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from milecastle.builds import Workspace, evict
from milecastle.builds.cache import harvest
from milecastle.builds.paths import hash_bytes
from milecastle.builds.records import FORMAT, CacheEntry
from milecastle.errors import Corrupted

TASKS = 20


def content(task: int) -> bytes:
    return b"%d " % task * 20_000


def keep(workspace: Workspace, task: int) -> str:
    path = workspace.root / "f"
    path.write_bytes(content(task))
    key = hash_bytes(b"task %d" % task)
    entry = CacheEntry(
        format=FORMAT,
        node="n",
        task_hash=key,
        artifacts=(harvest(workspace.places, "f", "n"),),
        update=b"\xc0",
        created_at=1,
    )
    with workspace.cache.sharing():
        workspace.cache.store(workspace.places, entry)
    return key


def main(folder: str, number: str, rounds: str) -> None:
    root = Path(folder, number)
    root.mkdir()
    workspace = Workspace(Path(folder, "ws"), root=root)
    found = {"right": 0, "gone": 0, "wrong": 0}
    for step in range(int(rounds)):
        task = (step * 7 + int(number)) % TASKS
        key = keep(workspace, task)
        (root / "f").unlink()
        try:
            entry = workspace.cache.load(key)
            if entry is not None:
                workspace.cache.restore(workspace.places, entry.artifacts[0], "n")
        except Corrupted as error:
            found["wrong"] += "missing" not in str(error)
        if not (root / "f").exists():
            found["gone"] += 1  # evicted in between, as no run needed it
        else:
            right = (root / "f").read_bytes() == content(task)
            found["right" if right else "wrong"] += 1
        if number == "0" and step % 5 == 4:
            evict(workspace, 100_000)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
