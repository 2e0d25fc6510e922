"""Writers and sweeps of large values are killed: nothing that is named is lost, garbage goes.

``MILECASTLE_OBJECT_KILLS`` is the number of kills.
"""

from __future__ import annotations

import os
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from milecastle.errors import Corrupted
from milecastle.stores.offloading import OffloadingStore, sweep
from milecastle.stores.offloading.objects import root_of
from milecastle.stores.offloading.payloads import references
from tests.process.object_kills import (
    GRACE,
    TENANT,
    WRITERS,
    check,
    keys_of,
    opened,
    started,
    sweep_again,
    write,
)

KILLS = int(os.environ.get("MILECASTLE_OBJECT_KILLS", "24"))


def kill_everybody(folder: Path, kills: int, grace: float, *, cheats: bool = False) -> int:
    """Kill writers and a sweep at random moments; how many entries were read in between."""
    chosen = random.Random(kills)
    store, read = opened(folder), 0
    roles = [*range(WRITERS), None]

    def begin(role: int | None) -> BaseProcess:
        if role is None:
            return started(sweep_again, folder, grace, cheats)
        return started(write, folder, role, chosen.getrandbits(30))

    running = {role: begin(role) for role in roles}
    try:
        for _ in range(kills):
            time.sleep(chosen.random() * 0.3)
            role = chosen.choice(roles)
            running[role].kill()
            running[role].join()
            read += check(store)
            running[role] = begin(role)
    finally:
        for process in running.values():
            process.kill()
            process.join()
        store.close()
    return read


def named(store: OffloadingStore) -> set[str]:
    return {
        reference.name
        for writer in range(WRITERS)
        for key in keys_of(writer)
        for entry in store.inner.entries(key)
        for reference in references(entry.payload)
    }


def listed(store: OffloadingStore, folder: str) -> set[str]:
    found = store.objects.folder.list(f"{root_of(TENANT)}{folder}/")
    return {one.path.rpartition("/")[2] for one in found}


@pytest.mark.no_cover
def test_kills_around_puts_and_sweeps_lose_nothing(tmp_path: Path) -> None:
    """Fails if the entry is committed before its objects, or a sweep removes what is named."""
    read = kill_everybody(tmp_path, KILLS, GRACE)
    assert read > KILLS
    store = opened(tmp_path)
    check(store)
    for _ in range(3):
        time.sleep(GRACE + 0.2)
        sweep(store, TENANT, grace=GRACE)
    assert listed(store, "objects") == named(store)
    assert listed(store, "condemned") == listed(store, "clock") == set()
    assert check(store) >= 0
    for writer in range(WRITERS):
        for key in keys_of(writer):
            store.delete(key)
    for _ in range(3):
        time.sleep(GRACE + 0.2)
        sweep(store, TENANT, grace=GRACE)
    left = [one.path for one in store.objects.folder.list("")]
    assert [path.rpartition("/")[2] for path in left] == ["store"]  # to which they belonged
    store.close()


@pytest.mark.no_cover
def test_control_sweep_without_grace_loses(tmp_path: Path) -> None:
    """The same harness finds the loss of a sweep that does not wait."""
    with pytest.raises(Corrupted, match="is missing"):
        kill_everybody(tmp_path, 500, 0.0, cheats=True)
