"""Processes are killed around archiving, restoring, pruning, erasing and sweeping.

No checkpoint is lost, unreadable or another one, and no object is left that is not named.
``MILECASTLE_ARCHIVE_KILLS`` is the number of kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from milecastle.errors import Corrupted
from milecastle.model.keys import ThreadKey
from milecastle.stores.offloading import sweep
from milecastle.stores.offloading.objects import root_of
from milecastle.stores.offloading.payloads import references
from tests.process import archive_kills
from tests.process.archive_kills import KINDS, Reader
from tests.process.object_kills import GRACE, TENANT, Place, in_bucket, in_folder, started, wait_for
from tests.process.seaweedfs import bucket_in, needs_seaweedfs

KILLS = int(os.environ.get("MILECASTLE_ARCHIVE_KILLS", "12"))
THREADS = 4
"""So many are read after each kill, and all at the end."""


def kill_everybody(place: Place, kills: int, *, is_hasty: bool = False) -> Reader:
    """Kill one process after the other at random moments, and read in between."""
    chosen = random.Random(kills)
    reader = Reader(place)
    roles: dict[str, Callable[[], BaseProcess]] = {
        "write 0": lambda: started(archive_kills.write, place, 0, chosen.getrandbits(30)),
        "write 1": lambda: started(archive_kills.write, place, 1, chosen.getrandbits(30)),
        "archive": lambda: started(archive_kills.archive, place, is_hasty),
        "restore": lambda: started(archive_kills.restore, place, chosen.getrandbits(30)),
        "prune": lambda: started(archive_kills.prune, place, chosen.getrandbits(30)),
        "erase": lambda: started(archive_kills.erase, place, chosen.getrandbits(30)),
        "sweep": lambda: started(archive_kills.sweep, place),
    }
    rates = [1.0, 1.0, 4.0, 2.0, 1.0, 1.0, 1.0]
    running = {role: begin() for role, begin in roles.items()}
    try:
        for _ in range(kills):
            (role,) = chosen.choices([*roles], rates)
            wait_for(place, running[role])
            time.sleep(chosen.random() * 0.5)
            running[role].kill()
            running[role].join()
            reader.check(chosen, THREADS)
            running[role] = roles[role]()
    finally:
        for process in running.values():
            process.kill()
            process.join()
    reader.check(chosen)
    return reader


def objects_of(reader: Reader) -> tuple[set[str], set[str]]:
    """The objects that are stored, and those that entries name."""
    store = reader.store
    keys = [ThreadKey(TENANT, name) for name in reader.threads.names(*KINDS)]
    payloads = [(key, entry.payload) for key in keys for entry in store.inner.entries(key)]
    named = {found.name for _, payload in payloads for found in references(payload)}
    named.update(name for key, payload in payloads for name in store.archive.names(key, payload))
    below = f"{root_of(TENANT)}objects/"
    return {one.path.removeprefix(below) for one in store.objects.folder.list(below)}, named


def sweep_all(reader: Reader) -> None:
    for _ in range(3):
        time.sleep(GRACE + 1.2)  # times of a bucket may be whole seconds
        sweep(reader.store, TENANT, grace=GRACE)


def prove(place: Place, kills: int) -> None:
    began = time.monotonic()
    reader = kill_everybody(place, kills)
    print(f"\n{kills} kills in {time.monotonic() - began:.0f} s: {dict(reader.read)}")
    assert min(reader.read["archived"], reader.read["states"]) > kills
    for name in reader.threads.names("pruned", "gone"):
        reader.threads.app(name).delete(name, take_over=True)
    sweep_all(reader)
    stored, named = objects_of(reader)
    assert stored == named
    reader.check_kept()
    reader.store.close()


def test_kills_around_archiving_lose_nothing(tmp_path: Path) -> None:
    """Fails if rows go before their segment is stored, or a sweep removes what segments name."""
    prove(in_folder(tmp_path), KILLS)


@needs_seaweedfs
@pytest.mark.slow
def test_kills_around_archiving_lose_nothing_in_s3(tmp_path: Path) -> None:
    with bucket_in(tmp_path) as url:
        prove(in_bucket(tmp_path, url), KILLS)


@pytest.mark.control
def test_control_rows_that_go_before_their_segment_are_found(tmp_path: Path) -> None:
    """The same harness finds the loss of an archiver that stores segments afterwards."""
    with pytest.raises(Corrupted, match="it is missing"):
        kill_everybody(in_folder(tmp_path), 300, is_hasty=True)
