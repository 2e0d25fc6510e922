"""What limits leave to a claim. Each test was seen to fail with the line it names broken."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.errors import InvalidRequest
from milecastle.model.limit_key import NO_KEY
from milecastle.ports.limits import ClaimPlace, Limit, Meter, Rooms, charged, graph_of

LANE = "orders@3f"


def a_place(tenant: str, limit_key: str = NO_KEY, lane: str = LANE) -> ClaimPlace:
    return lane, tenant, limit_key


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": -1},
        {"rate": 0},
        {"rate": 1, "period": 0.0},
        {"tenant": "a\0"},
        {"key": "a=b"},
        {"key": "customer", "concurrency": 0},
        {"key": "customer", "paused": True},
    ],
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
    rooms = Rooms(meters, {a_place("a"): 1, a_place("c", lane="other@3f"): 5})
    assert rooms.enter(a_place("a"))
    assert not rooms.enter(a_place("a"))
    assert not rooms.is_open(a_place("b"))
    assert rooms.enter(a_place("b", lane="orders2@3f"))
    assert rooms.enter(a_place("c"))
    assert not rooms.enter(a_place("c"))
    assert not rooms.enter(a_place("c", lane="else"))


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
    assert charged([rate, other, count], {a_place("a"): 1, a_place("b"): 1}) == [
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
        {a_place("b"): 1, a_place("open"): 1},
    )
    assert rooms.shut(LANE) == {("a", ""), ("b", "")}
    assert rooms.shut("shut@3f") == {("a", ""), ("", "")}
    assert rooms.shut("free@3f") == {("a", "")}


def test_the_graph_of_a_lane_is_before_the_last_sign() -> None:
    assert [graph_of(lane) for lane in ("a@b@3f", "plain")] == ["a@b", "plain"]


def test_a_limit_by_key_holds_for_each_value() -> None:
    """Failed with one room for all values, and with a key that begins alike taken for the other."""
    meters = [
        Meter(Limit(graph="orders", key="customer", concurrency=2, rate=9)),
        Meter(Limit(graph="orders", key="customer", concurrency=2, rate=9), 1, 9, "customer=c3"),
        Meter(Limit(tenant="a", key="customer", concurrency=1)),
    ]
    running = {a_place("a", "customer=c1"): 1, a_place("b", "customer=c1", "orders@40"): 1}
    rooms = Rooms(meters, running)
    assert not rooms.is_open(a_place("b", "customer=c1"))
    assert not rooms.is_open(a_place("b", "customer=c3"))
    assert rooms.enter(a_place("a", "customer=c2"))
    assert not rooms.enter(a_place("a", "customer=c2"))
    assert rooms.enter(a_place("b", "customer=c2"))
    assert not rooms.enter(a_place("b", "customer=c2"))
    assert rooms.enter(a_place("b", "customers=c2"))
    assert rooms.enter(a_place("b"))
    assert rooms.enter(a_place("b", "customer=c3", lane="other@3f"))
    assert rooms.shut(LANE) == {
        ("", "customer=c1"),
        ("", "customer=c2"),
        ("", "customer=c3"),
        ("a", "customer=c1"),
        ("a", "customer=c2"),
    }
    assert Rooms(meters, running).shut("other@3f") == {("a", "customer=c1")}


def test_claims_are_charged_to_each_value() -> None:
    """Failed with a value's meter begun at 0, and with one meter for all values."""
    limit = Limit(graph="orders", key="customer", rate=9)
    meters = [Meter(limit, 5), Meter(limit, 3, 4, "customer=c1"), Meter(Limit(rate=9), 2, 1)]
    claimed = {a_place("a", "customer=c1"): 1, a_place("b", "customer=c2"): 2, a_place("b"): 1}
    assert sorted(charged(meters, claimed), key=lambda meter: meter.scope) == [
        Meter(Limit(rate=9), 2, 5),
        Meter(limit, 3, 5, "customer=c1"),
        Meter(limit, 5, 2, "customer=c2"),
    ]
