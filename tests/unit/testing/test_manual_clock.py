"""A clock that tests can foretell."""

from __future__ import annotations

from uuid import UUID

from milecastle.testing import ManualClock


def test_time_moves_only_when_advanced() -> None:
    clock = ManualClock(start=1_000)
    assert (clock.now(), clock.now()) == (1_000, 1_000)
    clock.advance(0.5)
    assert clock.now() == 501_000
    clock.advance(-0.25)
    assert clock.now() == 251_000


def test_ids_are_uuids_of_version_7_with_the_time_in_front() -> None:
    clock = ManualClock(start=1_700_000_000_123_000)
    made = UUID(clock.new_id())
    assert made.version == 7
    assert made.int >> 80 == 1_700_000_000_123


def test_two_clocks_of_one_series_make_the_same_ids() -> None:
    one, other = ManualClock(series=4), ManualClock(series=4)
    made = [one.new_id() for _ in range(50)]
    assert made == [other.new_id() for _ in range(50)]
    assert made == sorted(set(made))


def test_clocks_of_two_series_never_make_the_same_id() -> None:
    one, other = ManualClock(series=1), ManualClock(series=2)
    assert not {one.new_id() for _ in range(50)} & {other.new_id() for _ in range(50)}
