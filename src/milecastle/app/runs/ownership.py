"""Owners: which process drives a run, and whether it still does.

Rules:

- Nothing is decided by comparing clocks.
- A process is known to be gone, or alive, only from inside the same boot of the same kernel and the
  same pid namespace: host names are shared by machines, boot ids by containers. Everything else is
  unknown.
- This process knows its own runs: one whose driver ended, by an exception, an interrupt or a closed
  stream, is not in progress. A forked child drives nothing.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final, Literal

import msgspec

from milecastle.engine.journal import Journal
from milecastle.errors import RunInProgress
from milecastle.model.checkpoint import to_datetime
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Owner, RunRecord, ThreadInfo
from milecastle.ports.reading import FleetReader, StoreReader
from milecastle.ports.store import Store, offers
from milecastle.support.forking import call_in_child

_Place = tuple[int, ThreadKey]

_driven: Final[dict[str, Journal]] = {}
"""The runs that this process drives now, by id."""

_places: Final[dict[_Place, Journal]] = {}
"""The newest of them for each thread, by store and key, even if it has committed nothing yet."""


class Sighting(msgspec.Struct, frozen=True):
    state: Literal["alive", "gone", "unknown"]
    text: str


def current_owner() -> Owner:
    return _owner_of(os.getpid())


def find_owner(record: RunRecord) -> Sighting:
    owner = record.owner
    if record.run_id in _driven:
        return Sighting("alive", f"this process ({os.getpid()})")
    if owner is None:
        return Sighting("unknown", "its record names no process")
    name = f"process {owner.pid} on host '{owner.host}'"
    mine = current_owner()
    if owner == mine and mine.started:
        return Sighting("gone", f"{name}, which is this process, no longer drives it")
    if not mine.boot_id or owner.boot_id != mine.boot_id:
        return Sighting("unknown", f"{name} is on another host and cannot be checked")
    return _look_at(owner, name)


def why_lost(store: StoreReader, record: RunRecord) -> str:
    if record.status != "running":
        return ""
    found = find_owner(record)
    if found.state == "alive" or (found.state == "unknown" and _live_worker(store, record.key)):
        return ""
    return found.text


def refuse_busy(store: Store, record: RunRecord, head: int) -> None:
    if record.status == "queued":
        raise _in_progress(record, head, "the queue of the workers (wait() waits for the result)")
    if record.status != "running":
        return
    found = find_owner(record)
    if found.state == "alive":
        raise _in_progress(record, head, found.text)
    if found.state == "unknown" and (worker := _live_worker(store, record.key)):
        raise _in_progress(record, head, f"worker {worker}")


def is_served(record: RunRecord, row: ThreadInfo | None) -> bool:
    if record.status == "queued":
        return True
    return row is not None and bool(row.lane) and row.due_at is not None


def _live_worker(store: StoreReader, key: ThreadKey) -> str:
    if not offers(store, FleetReader):
        return ""
    info = store.thread(key)
    if info is None or not info.worker:
        return ""
    alive = (worker.id for worker in store.workers() if not worker.is_gone)
    return info.worker if info.worker in alive else ""


class Driving:
    """Inside this context, this process drives the journal's run.

    Raises ``RunInProgress`` if it already drives the same thread, unless ``take_over``. A run with
    a commit is found in the store, or has lost the thread.
    """

    def __init__(self, journal: Journal, store: Store | None, take_over: bool) -> None:
        self._journal = journal
        self._place = id(store), journal.key
        self._take_over = take_over

    def __enter__(self) -> None:
        other = _places.setdefault(self._place, self._journal)
        if other is not self._journal:
            if not (other.known or self._take_over) and other.record.status == "running":
                raise _in_progress(other.record, other.head, f"this process ({os.getpid()})")
            _places[self._place] = self._journal
        _driven[self._journal.record.run_id] = self._journal

    def __exit__(self, *raised: object) -> None:
        if _places.get(self._place) is self._journal:
            _places.pop(self._place, None)
        _driven.pop(self._journal.record.run_id, None)


def _in_progress(record: RunRecord, head: int, who: str) -> RunInProgress:
    return RunInProgress(
        tenant=record.key.tenant,
        thread=record.key.thread,
        head=head,
        run_id=record.run_id,
        owner=record.owner or current_owner(),
        since=to_datetime(record.started_at),
        who=who,
    )


@lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    import platform

    found = _read_stat(str(pid)) or []
    boot_id = started = ""
    if found and _read_stat("self", pid):  # or /proc shows the processes of another namespace
        boot_id, started = _boot_id(), found[_STARTED]
    return Owner(host=platform.node(), boot_id=boot_id, pid=pid, started=started)


def _boot_id() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - pathlib is slow
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {namespace}"
    except OSError:
        return ""


_STATE: Final = 0
_THREADS: Final = 17
_STARTED: Final = 19
"""Fields of /proc/PID/stat, counted after the name: state, threads, start in ticks since boot."""


def _read_stat(name: str, pid: int | None = None) -> list[str] | None:
    try:
        with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            before, _, after = file.read().rpartition(")")
    except OSError:
        return None
    fields = after.split()
    if len(fields) <= _STARTED or (pid is not None and before.split(" ")[0] != str(pid)):
        return None
    return fields


def _look_at(owner: Owner, name: str) -> Sighting:
    found = _read_stat(str(owner.pid))
    if found is None:
        return _feel_for(owner, name)
    dead = found[_STATE] in "ZX" and int(found[_THREADS]) < 2
    if dead or found[_STARTED] != owner.started:
        return Sighting("gone", f"{name} is gone")
    return Sighting("alive", name)


def _feel_for(owner: Owner, name: str) -> Sighting:
    """Check a process hidden from /proc: gone, or hidden from this user (hidepid)."""
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return Sighting("gone", f"{name} is gone")
    except (OSError, OverflowError):
        pass
    return Sighting("unknown", f"{name} cannot be seen by this user")


def _forget() -> None:
    _driven.clear()
    _places.clear()


call_in_child(_forget)
