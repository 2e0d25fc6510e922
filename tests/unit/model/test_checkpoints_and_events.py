"""Checkpoints and events as data."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from milecastle import Event
from milecastle.errors import Place, Problem
from milecastle.model.checkpoint import CheckpointMetadata, to_datetime
from milecastle.testing.entries import a_key, an_entry


def test_stored_times_are_exact_to_the_microsecond() -> None:
    assert to_datetime(1_700_000_000_123_457) == datetime(
        2023, 11, 14, 22, 13, 20, 123_457, tzinfo=UTC
    )


def test_what_is_still_to_be_routed_is_shown_as_next() -> None:
    key = a_key()
    assert CheckpointMetadata.of(key, an_entry(1, next=(), route=("a",))).next == ("a",)
    assert CheckpointMetadata.of(key, an_entry(1, next=("b",))).next == ("b",)


def test_an_event_is_read_like_a_mapping() -> None:
    event = Event(type="edge_evaluate", run_id="run", node="a", data={"target": "b"})
    assert (event["type"], event["node"], event["target"]) == ("edge_evaluate", "a", "b")
    assert dict(event)["target"] == "b"
    with pytest.raises(KeyError):
        event["nothing"]


def test_a_problem_reads_as_one_line() -> None:
    assert str(Problem("MC1", "wrong", Place("f.py", 3), "right")) == "f.py:3: MC1 wrong (right)"
    assert str(Problem("MC1", "wrong")) == "MC1 wrong"
