"""The axis of a timeline: long idle stretches are folded."""

from __future__ import annotations

import pytest

from milecastle.views.axis import TimeAxis, clock_axis, folded_axis

SECOND = 1_000_000
HOUR = 3600 * SECOND


def _bands(axis: TimeAxis) -> list[tuple[int, int]]:
    return [(one.start // SECOND, one.stop // SECOND) for one in axis.pieces if one.is_band]


def test_an_hour_between_two_seconds_of_work_is_a_band() -> None:
    axis = folded_axis([(0, SECOND), (HOUR, HOUR + SECOND)], 0, HOUR + SECOND)
    assert _bands(axis) == [(1, 3600)]
    assert axis.x(0) == 0
    assert axis.x(SECOND) == pytest.approx(44)
    assert axis.x(HOUR) == pytest.approx(56)
    assert axis.x(HOUR + SECOND) == pytest.approx(100)


def test_a_stretch_below_5_seconds_or_a_tenth_of_the_work_is_not_folded() -> None:
    """Fails if only one of the two bounds holds."""
    short = folded_axis([(0, SECOND), (5 * SECOND, 6 * SECOND)], 0, 6 * SECOND)
    little = folded_axis([(0, 100 * SECOND), (109 * SECOND, 200 * SECOND)], 0, 200 * SECOND)
    assert _bands(short) == _bands(little) == []
    assert _bands(folded_axis([(0, 50 * SECOND), (56 * SECOND, 57 * SECOND)], 0, 57 * SECOND))


def test_at_most_six_bands_and_the_nearest_are_joined() -> None:
    """Fails if the longest bands are chosen: what lies between two of them decides."""
    works = [10 * SECOND] * 8
    works[3] = SECOND
    spans: list[tuple[int, int]] = []
    at = 0
    for work in works:
        spans.append((at, at + work))
        at += work + HOUR
    axis = folded_axis(spans, 0, spans[-1][1])
    assert len(_bands(axis)) == 6
    joined = max(_bands(axis), key=lambda band: band[1] - band[0])
    assert joined[0] * SECOND == spans[2][1]
    assert joined[1] * SECOND == spans[4][0]


def test_pieces_fill_the_width_and_places_grow_with_time() -> None:
    for spans in ([], [(0, 0)], [(HOUR, 2 * HOUR)], [(0, 5), (3, 9), (HOUR, HOUR)]):
        for last in (HOUR, 5 * HOUR):
            axis = folded_axis(spans, 0, last)
            assert sum(one.width for one in axis.pieces) == pytest.approx(100)
            places = [axis.x(last * part // 100) for part in range(101)]
            assert places == sorted(places)
            assert (places[0], places[-1]) == pytest.approx((0, 100))


def test_a_thread_that_only_waits_is_one_band() -> None:
    axis = folded_axis([], 0, HOUR)
    assert [(one.is_band, one.width) for one in axis.pieces] == [(True, 100.0)]


def test_a_moment_has_an_axis() -> None:
    assert folded_axis([], 7, 7).x(7) == clock_axis(7, 7).x(7) == 0.0


def test_the_clock_axis_is_proportional() -> None:
    assert clock_axis(0, 200).x(50) == 25.0


def test_the_rest_of_the_width_is_shared_by_length() -> None:
    """Fails if hours of waiting take the room of the work."""
    axis = folded_axis([(0, 10 * SECOND), (HOUR, HOUR + 30 * SECOND)], 0, 2 * HOUR)
    assert [one.is_band for one in axis.pieces] == [False, True, False, True]
    assert [round(one.width) for one in axis.pieces] == [19, 12, 57, 12]
