"""Writers and sweeps of large values and files are killed: nothing that is named is lost.

Garbage goes: objects, and chunks of files, that no entry names. ``MILECASTLE_OBJECT_KILLS`` is the
number of kills.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from milecastle.errors import Corrupted
from milecastle.stores.offloading import OffloadingStore, sweep
from milecastle.stores.offloading.objects import root_of
from milecastle.stores.offloading.payloads import named_files, references
from tests.process.object_kills import (
    GRACE,
    HONEST,
    SLOW,
    TENANT,
    WRITERS,
    Place,
    Sweeping,
    all_keys,
    an_app,
    check,
    in_bucket,
    in_folder,
    opened,
    started,
    sweep_again,
    wait_for,
    write,
)
from tests.process.seaweedfs import bucket_in, needs_seaweedfs

KILLS = int(os.environ.get("MILECASTLE_OBJECT_KILLS", "16"))
SWEEP = None
ROLES = [*range(WRITERS), SWEEP]
RATES = [0.05 if role == SLOW else 1.0 for role in ROLES]


def kill_everybody(
    place: Place, kills: int, how: Sweeping = HONEST, *, hasty: bool = False
) -> Counter[str]:
    """Kill writers and a sweep at random moments; what was read in between."""
    chosen = random.Random(kills)
    store, read = opened(place), Counter[str]()
    app = an_app(store)

    def begin(role: int | None) -> BaseProcess:
        if role is SWEEP:
            return started(sweep_again, place, how)
        return started(write, place, role, chosen.getrandbits(30), hasty)

    running = {role: begin(role) for role in ROLES}
    try:
        for _ in range(kills):
            (role,) = chosen.choices(ROLES, RATES)
            wait_for(place, running[role])
            time.sleep(chosen.random() * 0.5)
            running[role].kill()
            running[role].join()
            read += check(app, store)
            running[role] = begin(role)
    finally:
        for process in running.values():
            process.kill()
            process.join()
        store.close()
    return read


def named(store: OffloadingStore) -> tuple[set[str], set[str]]:
    """The names of all objects, and the digests of all files, that entries name."""
    payloads = [entry.payload for key in all_keys() for entry in store.inner.entries(key)]
    objects = {found.name for payload in payloads for found in references(payload)}
    return objects, {digest for payload in payloads for digest in named_files(payload)}


def listed(store: OffloadingStore, folder: str) -> set[str]:
    """What is below a folder of the tenant: the names of objects, the digests of files."""
    below = f"{root_of(TENANT)}{folder}/"
    return {one.path.removeprefix(below).split("/")[0] for one in store.objects.folder.list(below)}


def sweep_all(store: OffloadingStore) -> None:
    for _ in range(3):
        time.sleep(GRACE + 1.2)  # times of a bucket may be whole seconds
        sweep(store, TENANT, grace=GRACE)


def prove(place: Place, kills: int) -> None:
    began = time.monotonic()
    read = kill_everybody(place, kills)
    print(f"\n{kills} kills in {time.monotonic() - began:.0f} s: {dict(read)}")
    assert read["entries"] > kills
    assert min(read["files"], read["read"]) > kills / 4
    store = opened(place)
    app = an_app(store)
    check(app, store)
    sweep_all(store)
    assert (listed(store, "objects"), listed(store, "files")) == named(store)
    assert listed(store, "condemned") == listed(store, "clock") == set()
    check(app, store)
    for key in all_keys():
        store.delete(key)
    sweep_all(store)
    left = [one.path for one in store.objects.folder.list("")]
    assert [path.rpartition("/")[2] for path in left] == ["store"]  # to which they belonged
    store.close()


def test_kills_around_puts_and_sweeps_lose_nothing(tmp_path: Path) -> None:
    """Fails if the entry is committed before its objects, or a sweep removes what is named."""
    prove(in_folder(tmp_path), KILLS)
    on_disk = [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]
    assert [path.name for path in on_disk] == ["store"]


@needs_seaweedfs
def test_kills_lose_nothing_in_s3(tmp_path: Path) -> None:
    with bucket_in(tmp_path) as url:
        prove(in_bucket(tmp_path, url), KILLS)


def test_control_sweep_without_grace_loses(tmp_path: Path) -> None:
    """The same harness finds the loss of a sweep that does not wait."""
    with pytest.raises(Corrupted, match=r"is missing|not in the object storage"):
        kill_everybody(in_folder(tmp_path), 500, Sweeping(grace=0.0))


def test_control_sweep_that_does_not_know_files_loses(tmp_path: Path) -> None:
    """The same harness finds the loss of a sweep that reads only which objects are named."""
    with pytest.raises(Corrupted, match="not in the object storage"):
        kill_everybody(in_folder(tmp_path), 500, Sweeping(is_blind=True))


def test_control_entry_before_its_chunks_loses(tmp_path: Path) -> None:
    """The same harness finds entries whose writers put the chunks after the commit."""
    with pytest.raises(Corrupted, match="not in the object storage"):
        kill_everybody(in_folder(tmp_path), 500, hasty=True)
