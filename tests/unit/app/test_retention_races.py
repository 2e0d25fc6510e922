"""Retention beside writers: what was acknowledged stays, readable, whatever was decided before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from milecastle import CheckpointStore, Keyring, Retention, Store, ThreadKey, Unavailable
from milecastle.app.upkeep.removing import delete_thread
from milecastle.codec.envelope import PayloadPlace
from milecastle.errors import KeyNotFound
from milecastle.model.checkpoint import Entry
from milecastle.model.run import RunRecord
from milecastle.ports.store import Batch
from milecastle.records import RetentionReport
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock, WrappedStore
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("acme", "t")
CHILD = ThreadKey("acme", "t\x1f2.1\x1fsub")
KEYS = "milecastle.keys"
NOW = 1_700_000_000_000_000

Move = Callable[[], object]


class Between(WrappedStore):
    """Somebody acts right before the thread is deleted, or right after; once each."""

    before: Move | None = None
    after: Move | None = None

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        if key == KEY and (move := self.before):
            self.before = None
            move()
        found = super().delete(key, head=head, head_id=head_id)
        if key == KEY and (move := self.after):
            self.after = None
            move()
        return found


class Place:
    """A thread that ended long ago, a writer of it, and a sweep that can be interrupted."""

    def __init__(self, store: Store, ring: Keyring | None) -> None:
        self.store = Between(store)
        self.clock = ManualClock(NOW)
        self.writer = CheckpointStore(store, encryption=ring, clock=self.clock)
        self.keeper = CheckpointStore(self.store, encryption=ring, clock=self.clock)
        self.writer.put(KEY, {"old": 1})
        self.clock.advance(60)

    def sweep(self) -> RetentionReport:
        return self.keeper.apply_retention("acme", Retention(older_than=timedelta(seconds=30)))

    def write(self, key: ThreadKey = KEY) -> None:
        self.writer.__put__(key, {"new": "acknowledged"})

    def read(self, key: ThreadKey = KEY) -> object:
        found = self.writer.get_latest(key)
        return found.state if found else None


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


@pytest.fixture
def keys(stores: Stores) -> Store:
    return stores.open("sqlite", "keys")


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def ring(request: pytest.FixtureRequest, keys: Store) -> Keyring | None:
    return a_ring(keys) if request.param else None


def a_ring(keys: Store) -> Keyring:
    return Keyring({"main": b"k" * 32}, store=keys)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_is_written_after_the_look_stays_and_is_read(
    stores: Stores, kind: str, ring: Keyring | None
) -> None:
    place = Place(stores.open(kind), ring)
    place.store.before = place.write
    report = place.sweep()
    assert (report.deleted, report.busy) == ((), ("t",))
    assert place.read() == {"new": "acknowledged"}
    assert place.sweep().busy == ()
    assert place.read() == {"new": "acknowledged"}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_thread_created_again_after_the_deletion_is_read(
    stores: Stores, kind: str, ring: Keyring | None
) -> None:
    place = Place(stores.open(kind), ring)
    place.store.after = place.write
    assert place.sweep().deleted == ("t",)
    assert place.read() == {"new": "acknowledged"}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_is_written_between_the_looks_at_head_and_runs_stays(
    stores: Stores, kind: str, ring: Keyring | None
) -> None:
    place = Place(stores.open(kind), ring)
    clock = ManualClock(NOW - 1)  # a clock that is behind: by its times alone the thread is over
    late = CheckpointStore(place.writer.store, encryption=ring, clock=clock)

    class Looks(Between):
        def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
            found = self._store.runs(key, limit=limit)
            late.put(KEY, {"late": True})
            return found

    place.keeper.store = Looks(place.writer.store)
    report = place.sweep()
    assert (report.deleted, report.busy) == ((), ("t",))
    assert place.read() == {"late": True}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_thread_that_goes_takes_its_key_and_its_subgraphs(
    stores: Stores, kind: str, ring: Keyring | None, keys: Store
) -> None:
    place = Place(stores.open(kind), ring)
    place.write(CHILD)
    assert place.sweep().deleted == ("t",)
    assert (place.read(), place.read(CHILD)) == (None, None)
    assert list(keys.threads(KEYS)) == []


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_subgraphs_stay_if_the_thread_is_written_to_while_they_are_listed(
    stores: Stores, kind: str, ring: Keyring | None
) -> None:
    """Fails if the thread's head is not compared before its children are deleted."""
    place = Place(stores.open(kind), ring)
    place.write(CHILD)

    class Listing(Between):
        def head(self, key: ThreadKey) -> Entry | None:
            if key == CHILD:
                place.write()
            return super().head(key)

    place.keeper.store = Listing(place.writer.store)
    assert place.sweep().busy == ("t",)
    assert place.read(CHILD) == {"new": "acknowledged"}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_subgraphs_stay_if_the_deletion_of_the_thread_is_refused(
    stores: Stores, kind: str, ring: Keyring | None
) -> None:
    """Fails if the children are deleted before the thread, whose deletion may be refused."""
    place = Place(stores.open(kind), ring)
    place.write(CHILD)
    place.store.before = place.write
    assert place.sweep().busy == ("t",)
    assert place.read(CHILD) == {"new": "acknowledged"}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_subgraphs_that_an_interrupted_deletion_left_go_with_the_next(
    stores: Stores, kind: str
) -> None:
    """Seen to fail on the old order, in which the children went before the thread."""
    place = Place(stores.open(kind), None)
    place.write(CHILD)

    def die() -> None:
        raise KeyboardInterrupt

    place.store.after = die
    with pytest.raises(KeyboardInterrupt):
        place.sweep()
    assert (place.read(), place.read(CHILD)) == (None, {"new": "acknowledged"})
    assert delete_thread(place.writer.store, KEY, None, take_over=False) is False
    assert place.read(CHILD) is None


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_subgraphs_of_a_thread_that_begins_again_stay(
    stores: Stores, kind: str, ring: Keyring | None
) -> None:
    place = Place(stores.open(kind), ring)
    place.writer.__put__(CHILD, {"old": 1})
    other = ThreadKey("acme", "t\x1f9.1\x1fsub")

    def begin_again() -> None:
        for key in (KEY, CHILD, other):
            place.write(key)

    place.store.after = begin_again
    assert place.sweep().deleted == ("t",)
    assert [place.read(key) for key in (KEY, CHILD, other)] == [{"new": "acknowledged"}] * 3


def test_a_thread_that_somebody_else_deleted_first_is_neither_deleted_nor_busy() -> None:
    place = Place(MemoryStore(), None)
    place.store.before = lambda: place.writer.delete_thread(KEY)
    report = place.sweep()
    assert (report.deleted, report.busy) == ((), ())


def test_two_sweeps_and_a_thread_that_begins_between_them_do_no_harm(keys: Store) -> None:
    ring = a_ring(keys)
    place = Place(MemoryStore(), ring)
    other = CheckpointStore(place.writer.store, encryption=ring)

    def overtake() -> None:
        swept = other.apply_retention("acme", Retention(older_than=timedelta(0)))
        assert swept.deleted == ("t",)
        place.write()
        place.write()

    place.store.before = overtake
    assert place.sweep().deleted == ()
    assert place.read() == {"new": "acknowledged"}


def test_while_it_is_unknown_whether_the_thread_went_its_key_stays(keys: Store) -> None:
    class Doubtful(Between):
        def delete(
            self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
        ) -> bool:
            raise Unavailable("no answer")

    place = Place(MemoryStore(), a_ring(keys))
    place.keeper.store = Doubtful(place.writer.store)
    with pytest.raises(Unavailable):
        place.sweep()
    assert place.read() == {"old": 1}


def test_a_key_that_a_dead_sweep_left_goes_with_an_erasure(keys: Store) -> None:
    class Died(Exception):
        pass

    def die() -> None:
        raise Died

    place = Place(MemoryStore(), a_ring(keys))
    place.store.after = die
    with pytest.raises(Died):
        place.sweep()
    assert (place.read(), len(keys.threads(KEYS))) == (None, 1)
    assert place.writer.erase("acme", ["t"]).erased == ("t",)
    assert list(keys.threads(KEYS)) == []


def test_a_key_that_a_dead_sweep_left_goes_with_the_next_thread_of_the_name(keys: Store) -> None:
    place = Place(MemoryStore(), a_ring(keys))
    place.writer.delete_thread(KEY)
    place.write()
    place.clock.advance(60)
    assert place.sweep().deleted == ("t",)
    assert list(keys.threads(KEYS)) == []


def test_a_rotation_in_between_does_not_keep_a_key_that_goes(keys: Store) -> None:
    ring = a_ring(keys)
    place = Place(MemoryStore(), ring)
    newer = Keyring({"new": b"n" * 32, "main": b"k" * 32}, store=keys)
    place.store.after = lambda: newer.rotate()
    assert place.sweep().deleted == ("t",)
    assert list(keys.threads(KEYS)) == []


class Moving(WrappedStore):
    """A store of keys in which somebody moves right before a write or a deletion; once."""

    move: Move | None = None

    def commit(self, batch: Batch) -> None:
        self._moved()
        super().commit(batch)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        self._moved()
        return super().delete(key, head=head, head_id=head_id)

    def _moved(self) -> None:
        if move := self.move:
            self.move = None
            move()


def test_a_thread_that_begins_while_its_key_goes_has_a_key_that_stays(keys: Store) -> None:
    moving, ring = Moving(keys), a_ring(keys)
    place = Place(MemoryStore(), a_ring(moving))
    place.writer = CheckpointStore(place.writer.store, encryption=ring, clock=place.clock)
    place.store.after = lambda: setattr(moving, "move", place.write)
    assert place.sweep().deleted == ("t",)
    assert place.read() == {"new": "acknowledged"}


def test_key_that_is_deleted_while_a_thread_begins_is_created_again(keys: Store) -> None:
    moving, ring = Moving(keys), a_ring(keys)
    old = ring.sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
    erase = ring.eraser(KEY)
    moving.move = erase
    sealed = a_ring(moving).sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
    assert ring.sealer(KEY).unseal(sealed, PayloadPlace(1)) == b"body"
    with pytest.raises(KeyNotFound):
        ring.sealer(KEY).unseal(old, PayloadPlace(1))
    assert erase() is False


def test_a_rotation_while_a_thread_begins_does_not_hide_that_it_began(keys: Store) -> None:
    moving, ring = Moving(keys), a_ring(keys)
    ring.sealer(KEY, new=True)
    erase = ring.eraser(KEY)
    both = {"new": b"n" * 32, "main": b"k" * 32}
    moving.move = Keyring(both, store=keys).rotate
    sealed = Keyring(both, store=moving).sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
    assert erase() is False
    assert Keyring(both, store=keys).sealer(KEY).unseal(sealed, PayloadPlace(1)) == b"body"


def test_a_subgraph_that_begins_writes_nothing_to_the_keys(keys: Store) -> None:
    ring = a_ring(keys)
    ring.sealer(KEY, new=True)
    (info,) = keys.threads(KEYS)
    ring.sealer(CHILD, new=True)
    assert len(list(keys.history(info.key))) == 1
    assert ring.eraser(CHILD)() is False
    assert ring.eraser(KEY)() is True
