"""Attacks on buckets, by nodes, operators and clocks. Each says which defect it shows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from milecastle import Context, InvalidRequest, Store, ThreadKey
from milecastle.ports.buckets import Bucket, BucketLevel, BucketTake, marks_of, require_buckets
from milecastle.stores.memory import MemoryStore
from milecastle.testing import ManualClock, with_store
from tests.acceptance.fleet.test_buckets import fill, left, takes
from tests.acceptance.fleet.working import Trip, line, start

_SECOND = 1_000_000


def refusal(store: Store, call: Callable[[Context], object]) -> BaseException | None:
    """What a node gets for a call."""
    found: list[BaseException] = []

    def node(state: Trip, ctx: Context) -> dict[str, Any]:
        try:
            call(ctx)
        except Exception as error:
            found.append(error)
        return {}

    line(store, ("node", node)).invoke(start())
    return found[0] if found else None


@pytest.mark.parametrize("name", ["a\0b", "", "a" * 129, "\udc80", None, 7, b"gpt", ("gpt",)])
def test_a_name_that_no_bucket_has_is_refused(store: Store, name: Any) -> None:
    """Fails on PostgreSQL with an error of its driver."""
    fill(store, rate=5, burst=5)
    calls: list[Callable[[Context], object]] = [
        lambda ctx: ctx.take(name),
        lambda ctx: ctx.settle(name, 1),
        lambda ctx: ctx.settle(name, until=1.0),
    ]
    for call in calls:
        assert isinstance(refusal(store, call), InvalidRequest)


@pytest.mark.parametrize("amount", [0, -1, math.nan, math.inf, 1.0, True, "1", None, 2**31, 6])
def test_an_amount_that_cannot_be_taken_takes_nothing(store: Store, amount: Any) -> None:
    """Fails if NaN is compared, or if ``True`` is taken for one."""
    fill(store, rate=1, period=86400.0, burst=5)
    assert isinstance(refusal(store, lambda ctx: ctx.take("gpt", amount)), InvalidRequest)
    assert left(store) == 5


@pytest.mark.parametrize(
    "given",
    [
        {"amount": math.nan},
        {"amount": True},
        {"amount": -(2**31)},
        {"amount": 2**31},
        {"until": math.nan},
        {"until": math.inf},
        {"until": "soon"},
        {"until": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"until": datetime.max.replace(tzinfo=UTC)},
        {"until": datetime.min.replace(tzinfo=UTC)},
    ],
    ids=str,
)
def test_a_settlement_that_means_nothing_changes_nothing(
    store: Store, given: dict[str, Any]
) -> None:
    """Was broken: a time that no date has later made every list of the thread fail."""
    fill(store, rate=1, period=86400.0, burst=5)
    error = refusal(store, lambda ctx: ctx.settle("gpt", **given))
    assert isinstance(error, InvalidRequest) or given["until"].year == 1, error
    assert left(store) == 5


def test_more_is_given_back_than_was_taken(store: Store) -> None:
    """Fails if a bucket then holds more than its burst."""
    fill(store, rate=1, period=86400.0, burst=5)
    assert refusal(store, lambda ctx: ctx.take("gpt", 4)) is None
    assert refusal(store, lambda ctx: ctx.settle("gpt", -(2**31 - 1))) is None
    assert left(store) == 5


def sleeping(store: Store, *threads: str) -> Any:
    """An app, with threads that wait for the turns after the first, which is taken."""
    app = line(store, ("takes", takes()))
    assert app.invoke(start(), "first").status == "completed"
    for thread in threads:
        assert app.invoke(start(), thread).status == "sleeping"
    return app


def later(app: Any, store: Store, seconds: float) -> Any:
    now = time.time_ns() // 1000 + round(seconds * _SECOND)
    return with_store(app, store, clock=ManualClock(now))


def test_a_bucket_that_is_removed_while_runs_sleep(store: Store) -> None:
    """They fail when they wake, with what to do, and can be retried."""
    buckets = fill(store, rate=1, period=30.0, burst=1)
    app = sleeping(store, "a", "b")
    assert buckets.drop("", "gpt")
    with pytest.raises(Exception, match="milecastle queue bucket 'gpt'") as failed:
        later(app, store, 200).resume("a")
    assert isinstance(failed.value.__cause__, InvalidRequest)
    fill(store, rate=5, burst=1)
    for thread in ("a", "b"):
        assert later(app, store, 200).resume(thread).status == "completed"
        time.sleep(0.2)


def test_a_burst_that_is_lowered_while_runs_sleep(store: Store) -> None:
    """A run that wants more than the bucket now grants fails when it wakes, and says why."""
    fill(store, rate=10, period=3.0, burst=10)

    def ten(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.take("gpt", 10)
        return {"log": ["took"]}

    app = line(store, ("ten", ten))
    assert app.invoke(start(), "a").status == "completed"
    assert app.invoke(start(), "b").status == "sleeping"
    fill(store, rate=10, period=3.0, burst=9)
    time.sleep(3.1)
    with pytest.raises(Exception, match="at most 9 at once"):
        app.resume("b")
    fill(store, rate=10, period=3.0, burst=10)
    assert app.resume("b").status == "completed"


def test_a_run_that_is_cancelled_while_it_sleeps(store: Store) -> None:
    """It ends at once, its turn is lost, and those of others stay theirs."""
    buckets = fill(store, rate=1, period=30.0, burst=1)
    app = sleeping(store, "a", "b")
    before = buckets.waiting("default", marks_of(ThreadKey("default", "b")))
    assert app.cancel("a")
    assert app.state("a").status == "cancelled"
    (after,) = buckets.waiting("default", marks_of(ThreadKey("default", "b")))
    assert 50 < after.wait <= before[0].wait


@pytest.mark.parametrize(
    "limits",
    [
        {"rate": 1.5},
        {"rate": True},
        {"rate": math.nan},
        {"rate": 0},
        {"rate": 2**31},
        {"rate": 1, "burst": 2.5},
        {"rate": 1, "burst": -1},
        {"rate": 1, "burst": True},
        {"rate": 1, "period": math.nan},
        {"rate": 1, "period": math.inf},
        {"rate": 1, "period": 0},
        {"rate": 1, "period": 86400.0, "burst": 2**31 - 1},
    ],
    ids=str,
)
def test_limits_that_stores_would_read_in_their_own_ways_are_refused(
    limits: dict[str, Any],
) -> None:
    """Was broken: a rate of 1.5 was 1.5 in memory and another number in PostgreSQL."""
    with pytest.raises(InvalidRequest):
        Bucket(name="gpt", **limits)


class Timeline:
    now = 1_800_000_000 * _SECOND


def test_a_clock_that_is_set_back_grants_no_more() -> None:
    """Fails if the difference of times counts as time that has passed."""
    timeline = Timeline()
    store = MemoryStore(now=lambda: timeline.now)
    buckets = require_buckets(store.buckets)
    buckets.put(Bucket(name="gpt", rate=10, burst=5))
    begin, granted = timeline.now, 0
    for back in (0, 3600, 0, -2, 3600, -1):
        timeline.now = begin - back * _SECOND
        turns = [buckets.take("t", "gpt", 1, f"{back} {granted} {one}") for one in range(20)]
        granted += sum(turn is not None and not turn.wait for turn in turns)
    assert granted <= 5 + 10 * 2


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((0, 0, 0, 100_000, 10 * _SECOND, -3 * _SECOND)),
            st.integers(1, 5),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
@example([*((0, 5, mark) for mark in range(5)), (10 * _SECOND, 5, 1), (0, 5, 2), (0, 5, 3)])
def test_no_second_grants_more_than_the_rate_and_the_burst_whatever_the_clock_does(
    steps: list[tuple[int, int, int]],
) -> None:
    """Fails if ``BucketLevel.take`` begins at the present and not at what was granted."""
    level, now = BucketLevel(Bucket(name="gpt", rate=7, burst=5)), 10**15
    known: dict[int, BucketTake] = {}
    grants: list[tuple[int, int]] = []
    for passed, amount, mark in steps:
        now += passed
        before = known.get(mark)
        level, known[mark] = level.take(now, amount, before)
        if known[mark].granted_at is not None:
            if before != known[mark]:
                grants.append((now, amount))
            del known[mark]  # the next take is another one
    for begin, _ in grants:
        within = sum(amount for at, amount in grants if begin <= at <= begin + _SECOND)
        assert within <= 7 + 5
