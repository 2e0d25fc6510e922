"""Times are read by people and come back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle.stores.jsonl.shapes import to_microseconds, to_moment


@given(st.integers(-(2**63), 2**63))
def test_a_time_comes_back(microseconds: int) -> None:
    assert to_microseconds(to_moment(microseconds)) == microseconds


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
        (2**62, 2**62),
    ],
)
def test_a_time_is_written_for_people(microseconds: int, text: str | int) -> None:
    assert to_moment(microseconds) == text


@pytest.mark.parametrize("text", ["", "yesterday", "2023-11-14T22:13:20"])
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any
        to_microseconds(text)
