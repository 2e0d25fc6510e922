"""The sweep: removes objects nobody names, by mark and sweep with a grace period.

Rules:

- Ages are differences between two object storage times, so no other clock decides anything.
- Marks are read after listing the candidates for removal.
- An object nobody names is *condemned* first: its pointer is removed, so no writer uses
  it from then on, and a note with a time is put beside it. It is removed by a sweep coming a
  grace period later and again finds nobody who names it. An object named again is released.
- A sweep may stop anywhere, and several may run at once: names are never used again, so whatever
  is done late is done to something nobody can begin to use.
- An entry names a file by its digest: as long as one does, none of its generations is removed.
- An object with a name no writer gives is a *stray*: it is counted and left alone.
- A pin is removed after the grace period if its thread names nothing. Among several old pins the
  one with the smallest name stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from milecastle.errors import CodecError, Corrupted, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.stores.offloading.files import unit_of
from milecastle.stores.offloading.folder import Stored
from milecastle.stores.offloading.objects import GRACE, name_at, root_of
from milecastle.stores.offloading.payloads import named_files, references
from milecastle.stores.offloading.store import OffloadingStore, payloads_of

DAY = 86_400.0


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep's object counts, and the removed bytes.

    ``named`` objects are in use, ``waiting`` ones are not, but too young to be judged;
    ``condemned`` ones are removed by a later sweep. ``strays`` are among them, but have names that
    no writer gives: they are not ours, and stay.
    """

    named: int
    waiting: int
    condemned: int
    removed: int
    removed_bytes: int
    strays: int = 0


def sweep(
    store: OffloadingStore, tenant: str, *, grace: float = DAY, dry_run: bool = False
) -> SweepReport:
    """Remove a tenant's objects that no entry has named for two grace periods.

    With ``dry_run`` nothing changes, and the report lists the actions.

    Raises:
        InvalidRequest: the grace period is shorter than writers need.
        StoreError: the objects belong to another store.
        Corrupted: an entry, or a thread's pin, cannot be read: then nothing is removed.
    """
    shortest = GRACE * store.objects.patience
    if grace < shortest:
        raise InvalidRequest(
            f"the grace period of a sweep must be at least {shortest:g} seconds: writers may rely "
            "on an object for that long before they commit the entry that names it"
        )
    store.ownership.check(tenant, take=not dry_run)
    return _Sweep(store, tenant, grace, dry_run).run()


class _Sweep:
    def __init__(self, store: OffloadingStore, tenant: str, grace: float, dry_run: bool) -> None:
        self._store = store.inner
        self._archive = store.archive
        self._objects = store.objects
        self._folder = store.objects.folder
        self._tenant = tenant
        self._root = root_of(tenant)
        self._grace = grace
        self._dry_run = dry_run
        self._now = 0.0

    def run(self) -> SweepReport:
        self._now = self._folder.now(f"{self._root}clock/{os.urandom(8).hex()}")
        stored, strays = self._list()
        condemned = {_name(one): one for one in self._folder.list(f"{self._root}condemned/")}
        named = self._mark()
        counts = {"named": 0, "waiting": 0, "condemned": 0, "removed": 0, "removed_bytes": 0}
        for name, parts in stored.items():
            is_named = name in named or name.partition(".")[0] in named
            done = self._judge(name, parts, condemned.get(name), is_named)
            counts[done] += 1
            counts["removed_bytes"] += sum(one.size for one in parts) if done == "removed" else 0
        if not self._dry_run:
            self._tidy(stored, condemned)
        return SweepReport(**counts, strays=strays)

    def _list(self) -> tuple[dict[str, list[Stored]], int]:
        stored: dict[str, list[Stored]] = {}
        strays = 0
        for kind, name_of in (("objects", name_at), ("files", unit_of)):
            for one in self._folder.list(f"{self._root}{kind}/"):
                name = name_of(one.path)
                if name is None:
                    strays += 1
                else:
                    stored.setdefault(name, []).append(one)
        return stored, strays

    def _mark(self) -> set[str]:
        pins: dict[ThreadKey, list[Stored]] = {}
        for key, pin in self._objects.pinned(self._tenant):
            pins.setdefault(key, []).append(pin)
        named: set[str] = set()
        for key, found in pins.items():
            of_thread = self._named_by(key)
            named |= of_thread
            if not self._dry_run:
                self._unpin(found, keep=bool(of_thread))
        return named

    def _named_by(self, key: ThreadKey) -> set[str]:
        """Names in a thread; read again if it changed so that what it had named is gone."""
        while True:
            oldest = self._archive.oldest(key)
            try:
                return set(self._read_names(key))
            except Corrupted:
                if self._archive.oldest(key) == oldest:
                    raise

    def _read_names(self, key: ThreadKey) -> Iterator[str]:
        for place, payload in payloads_of(self._store, key):
            try:
                yield from (reference.name for reference in references(payload))
                yield from named_files(payload)
                yield from self._archive.names(key, payload)
            except CodecError as error:
                where = f"thread '{key.thread}', {place}"
                raise Corrupted(error.message, place=where) from None

    def _unpin(self, pins: list[Stored], *, keep: bool) -> None:
        kept = min(pin.path for pin in pins) if keep else None
        for pin in pins:
            if pin.path != kept and self._is_old(pin):
                self._folder.remove(pin.path)

    def _judge(self, name: str, parts: list[Stored], note: Stored | None, is_named: bool) -> str:
        if is_named:
            if note is not None and not self._dry_run:
                self._folder.remove(note.path)
            return "named"
        if note is None and not all(map(self._is_old, parts)):
            return "waiting"
        if note is None or not self._is_old(note):
            if note is None and not self._dry_run:
                self._condemn(name)
            return "condemned"
        if not self._dry_run:
            for one in sorted(parts, reverse=True):  # the index of a file first
                self._folder.remove(one.path)
            self._folder.remove(note.path)
        return "removed"

    def _condemn(self, name: str) -> None:
        digest, _, generation = name.partition(".")
        pointer = f"{self._root}current/{digest}"
        if self._folder.read(pointer) == generation.encode():
            self._folder.remove(pointer)
        self._folder.create(f"{self._root}condemned/{name}", b"")

    def _tidy(self, stored: dict[str, list[Stored]], condemned: dict[str, Stored]) -> None:
        digests = {name.partition(".")[0] for name in stored}
        left = [note for name, note in condemned.items() if name not in stored]
        left += [
            pointer
            for pointer in self._folder.list(f"{self._root}current/")
            if _name(pointer) not in digests
        ]
        left += self._folder.list(f"{self._root}clock/")
        for one in left:
            if self._is_old(one):
                self._folder.remove(one.path)
        self._folder.remove_staged(self._root, self._now - self._grace)

    def _is_old(self, one: Stored) -> bool:
        return self._now - one.modified > self._grace


def _name(one: Stored) -> str:
    return one.path.rpartition("/")[2]
