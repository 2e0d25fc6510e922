"""What limits leave to a claim. Each test was seen to fail with the line it names broken."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.errors import InvalidRequest
from milecastle.ports.limits import Limit, Meter, Rooms, charged, graph_of

LANE = "orders@3f"


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": -1}, {"rate": 0}, {"rate": 1, "period": 0.0}, {"tenant": "a\0"}],
    ids=str,
)
def test_a_limit_makes_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Limit(**wrong)


def test_every_limit_that_covers_a_thread_holds() -> None:
    """Failed with the narrowest limit alone, and with graphs that begin alike taken for one."""
    meters = [
        Meter(Limit(graph="orders", concurrency=3)),
        Meter(Limit(tenant="a", concurrency=2)),
        Meter(Limit(graph="orders", tenant="b", paused=True)),
        Meter(Limit(concurrency=9)),
    ]
    rooms = Rooms(meters, {(LANE, "a"): 1, ("other@3f", "c"): 5})
    assert rooms.enter(LANE, "a")
    assert not rooms.enter(LANE, "a")
    assert not rooms.is_open(LANE, "b")
    assert rooms.enter("orders2@3f", "b")
    assert rooms.enter(LANE, "c")
    assert not rooms.enter(LANE, "c")
    assert not rooms.enter("else", "c")


def test_a_period_begins_with_its_first_claim() -> None:
    """Failed with a period that never ends, and with one that began in the future."""
    meter = Meter(Limit(rate=2, period=1.0), 5_000_000, 2)
    assert meter.at(5_999_999).room(0) == 0
    assert meter.at(6_000_000) == Meter(meter.limit, 6_000_000, 0)
    assert meter.at(4_000_000).room(0) == 2


def test_claims_are_charged_to_rates() -> None:
    """Failed with the meters of other limits written as well."""
    rate, other = Meter(Limit(graph="orders", rate=5), 1, 1), Meter(Limit(graph="x", rate=5))
    count = Meter(Limit(concurrency=5))
    assert charged([rate, other, count], {(LANE, "a"): 1, (LANE, "b"): 1}) == [
        Meter(rate.limit, 1, 3)
    ]


def test_tenants_that_limits_hold_back_are_known_before_a_look() -> None:
    """Fails with limits of other graphs, and without those of every graph."""
    rooms = Rooms(
        [
            Meter(Limit(tenant="a", paused=True)),
            Meter(Limit(graph="orders", tenant="b", concurrency=1)),
            Meter(Limit(graph="orders", tenant="open", concurrency=2)),
            Meter(Limit(graph="other", tenant="c", paused=True)),
            Meter(Limit(graph="shut", concurrency=0)),
        ],
        {(LANE, "b"): 1, (LANE, "open"): 1},
    )
    assert rooms.shut(LANE) == {"a", "b"}
    assert rooms.shut("shut@3f") == {"a", ""}
    assert rooms.shut("free@3f") == {"a"}


def test_the_graph_of_a_lane_is_before_the_last_sign() -> None:
    assert [graph_of(lane) for lane in ("a@b@3f", "plain")] == ["a@b", "plain"]
