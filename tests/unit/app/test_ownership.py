"""Owners: when a process is known to drive a run, known to be gone, and when nothing is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec.structs
import pytest

from milecastle import RunInProgress, Store, ThreadKey
from milecastle.app.runs.ownership import Driving, current_owner, find_owner
from milecastle.codec.deltas import LogCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position
from milecastle.records import Owner, RunRecord
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock
from milecastle.testing.entries import a_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SAY_OWNER = (
    "import msgspec; from milecastle.app.runs.ownership import current_owner;"
    "print(msgspec.json.encode(current_owner()).decode(), flush=True); input()"
)


def record(owner: Owner | None) -> RunRecord:
    return msgspec.structs.replace(a_run(ThreadKey("default", "t")), status="running", owner=owner)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Owner]]:
    """Another process that is alive, and how it names itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAY_OWNER], stdin=-1, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, msgspec.json.decode(process.stdout.readline(), type=Owner)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_process_that_is_alive_is_alive_until_it_is_killed(
    other: tuple[subprocess.Popen[str], Owner],
) -> None:
    """Also while nobody has waited for it: a zombie does nothing any more.

    Broken on purpose: the state of a zombie ignored; ``os.kill(pid, 0)`` finds one alive.
    """
    process, owner = other
    assert (owner.pid, owner.boot_id) == (process.pid, current_owner().boot_id)
    assert find_owner(record(owner)).state == "alive"
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    found = find_owner(record(owner))
    assert (found.state, "is gone" in found.text) == ("gone", True)
    process.wait()
    assert find_owner(record(owner)).state == "gone"


def test_another_process_with_the_same_pid_is_not_the_owner(
    other: tuple[subprocess.Popen[str], Owner],
) -> None:
    """Broken on purpose: the start time not compared."""
    reused = msgspec.structs.replace(other[1], started="1")
    assert find_owner(record(reused)).state == "gone"


@pytest.mark.parametrize(
    "changed", [{"boot_id": "other"}, {"boot_id": ""}, {"boot_id": "other", "host": "elsewhere"}]
)
def test_nothing_is_known_of_a_process_of_another_boot_or_namespace(
    changed: dict[str, str], other: tuple[subprocess.Popen[str], Owner]
) -> None:
    """Whether it is alive here or not. Broken on purpose: only host names compared."""
    for pid in (other[1].pid, 2**22 + 1):
        owner = msgspec.structs.replace(other[1], pid=pid, **changed)
        assert find_owner(record(owner)).state == "unknown"


def test_nothing_is_known_of_a_run_without_an_owner() -> None:
    """A record of an older version, or of a store that does not store owners."""
    assert find_owner(record(None)).state == "unknown"


def test_boot_id_names_the_pid_namespace() -> None:
    """Containers of one host share its boot id. Broken on purpose: the namespace left out."""
    assert str(Path("/proc/self/ns/pid").readlink()) in current_owner().boot_id


def test_run_of_this_process_that_nobody_drives_is_gone() -> None:
    """Broken on purpose: the owner compared by pid alone, and so alive as long as we are."""
    found = find_owner(record(current_owner()))
    assert (found.state, "no longer drives it" in found.text) == ("gone", True)


def test_child_that_was_forked_is_another_owner() -> None:
    """Broken on purpose: the owner cached without looking at the pid."""
    mine = current_owner()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, msgspec.json.encode(current_owner()))
        os._exit(0)
    os.waitpid(child, 0)
    found = msgspec.json.decode(os.read(reader, 10_000), type=Owner)
    os.close(reader)
    os.close(writer)
    assert (found.pid, found.boot_id) == (child, mine.boot_id)
    assert mine == current_owner()


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**64])
def test_odd_process_id_in_a_record_is_not_an_error(pid: int) -> None:
    """A record may say anything. Broken on purpose: ``OverflowError`` not caught."""
    owner = msgspec.structs.replace(current_owner(), pid=pid)
    assert find_owner(record(owner)).state != "alive"


def a_journal() -> Journal:
    return Journal(
        record=record(current_owner()),
        codec=LogCodec(ValueCodec(TypeRegistry.for_annotations(()))),
        clock=ManualClock(),
        position=Position(values={}),
        head=0,
    )


def drive(store: Store, *, take_over: bool = False) -> None:
    with Driving(a_journal(), store, take_over):
        pass


def test_thread_is_driven_once_in_this_process_until_its_driver_ends() -> None:
    """Also if nothing was committed. Broken on purpose: the place not released at the end."""
    store = MemoryStore()
    with Driving(a_journal(), store, take_over=False):
        with pytest.raises(RunInProgress):
            drive(store)
        drive(MemoryStore())
        drive(store, take_over=True)
    drive(store)


def test_run_that_ended_does_not_hold_its_thread_while_its_driver_leaves() -> None:
    """Broken on purpose: the status of the other run not looked at in ``Driving``."""
    store, journal = MemoryStore(), a_journal()
    with Driving(journal, store, take_over=False):
        journal.turn("failed")
        drive(store)
