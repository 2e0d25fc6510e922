"""F9: schedules fire each tick once, with overlap, catch-up and backfill, by the store's clock."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from milecastle import (
    END,
    START,
    App,
    InvalidRequest,
    Schedules,
    StateGraph,
    Store,
    ThreadKey,
    Worker,
    interrupt,
)
from milecastle.app.clock import SystemClock
from milecastle.ports.claims import ClaimStore
from milecastle.stores.memory import MemoryStore
from milecastle.testing import with_store
from tests.acceptance.fleet.working import QUICK, Node, Trip, note, serving, start, until, work

HOUR = 3600.0
MIDNIGHT = round(datetime(2026, 11, 16, tzinfo=UTC).timestamp()) * 1_000_000


class Timeline:
    """A store in memory whose clock a test sets."""

    def __init__(self) -> None:
        self.now = MIDNIGHT + 1_000_000
        self.store = MemoryStore(now=lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000)

    def __call__(self, app: App[Trip], *seconds: float) -> None:
        """Let time pass, in several parts, and run what is due after each."""
        for part in seconds:
            self.advance(part)
            work(app)


def timed(store: Store | None, when: str | timedelta = "0 * * * *", **options: Any) -> App[Trip]:
    """A graph of one node that is run every hour, unless told otherwise."""
    node: Node = options.pop("node", note("a"))
    graph: StateGraph[Trip] = StateGraph(Trip, name="hourly")
    graph.add_node("a", node)
    graph.add_edges(START, "a", END)
    given: dict[str, Any] = {"input": start(), **options}
    graph.schedule(when, **given)
    return graph.compile(store=store)


def fired(app: App[Trip]) -> list[str]:
    """The times of the firings, as hour and minute, with what became of them."""
    lines = [info for info in app.threads() if not info.key.thread.startswith("schedule@@")]
    return [f"{info.key.thread.partition('T')[2][:5]} {info.status}" for info in lines]


def counts(app: App[Trip]) -> tuple[int, int, int]:
    (info,) = Schedules(app).all()
    return info.fired, info.skipped, info.missed


def asks(state: Trip) -> dict[str, Any]:
    return {"log": [f"heard {interrupt('well?')}"]}


@pytest.mark.requirement("F9", api="StateGraph.schedule")
def test_a_schedule_starts_when_it_is_first_seen_and_fires_each_tick(store: Store) -> None:
    """By workers whose clocks are wrong. Fails if a schedule begins at the time of a worker."""
    ticks: list[datetime] = []

    def seen(tick: datetime) -> dict[str, Any]:
        ticks.append(tick)
        return start()

    app = timed(store, timedelta(milliseconds=200), input=seen, overlap="queue", catch_up="all")
    wrong = [with_store(app, store, clock=Off(hours)) for hours in (-1, 0, 1)]

    async def enough() -> bool:
        return len(ticks) > 5

    async def serve() -> None:
        async with serving(wrong[0]), serving(wrong[1]), serving(wrong[2]):
            await until(enough)

    assert isinstance(store, ClaimStore)
    began = store.now()
    asyncio.run(serve())
    at = sorted({round(tick.timestamp() * 1000) for tick in ticks})  # two may work out an input
    assert at == list(range(at[0], at[0] + len(at) * 200, 200))
    assert began // 1000 < at[0] <= began // 1000 + 20_000
    assert at[-1] <= store.now() // 1000


class Off(SystemClock):
    """A clock that is some hours wrong."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._wrong = hours * 3_600_000_000

    def now(self) -> int:
        return super().now() + self._wrong


@pytest.mark.requirement("F9", api="StateGraph.schedule")
def test_a_tick_is_not_fired_again_if_its_thread_was_deleted() -> None:
    """Fails if the memory of a schedule is its threads."""
    time = Timeline()
    app = timed(time.store)
    time(app, 0, HOUR, HOUR)
    assert fired(app) == ["01:00 completed", "02:00 completed"]
    for thread in ("tick@@hourly@2026-11-16T01:00:00Z", "tick@@hourly@2026-11-16T02:00:00Z"):
        app.delete(thread)
    time(app, 10, 10)
    assert fired(app) == []
    time(app, HOUR)
    assert fired(app) == ["03:00 completed"]


@pytest.mark.requirement("F9", api="StateGraph.schedule")
@pytest.mark.parametrize(
    ("catch_up", "expected", "missed"),
    [
        ("none", ["04:00"], 3),
        ("last", ["03:00", "04:00"], 2),
        ("all", ["01:00", "02:00", "03:00", "04:00"], 0),
    ],
)
def test_ticks_without_a_worker_are_caught_up_as_declared(
    catch_up: str, expected: list[str], missed: int
) -> None:
    """Three ticks came while no worker ran. They run one after the other, and none is skipped.

    Fails if lateness is not looked at, and if ``overlap`` applies to what is caught up.
    """
    time = Timeline()
    app = timed(time.store, catch_up=catch_up)
    time(app, 0, 3 * HOUR + 600, *[1] * 5, HOUR - 605)
    assert fired(app) == [f"{each} completed" for each in expected]
    assert counts(app) == (len(expected), 0, missed)


def test_a_tick_that_is_a_little_late_is_not_missed() -> None:
    """Fails if only the newest tick counts as in time, or none does."""
    time = Timeline()
    app = timed(time.store, "* * * * *")
    time(app, 0, 300 + 30)
    assert fired(app) == ["00:05 completed"]
    assert counts(app) == (1, 0, 4)


@pytest.mark.requirement("F9", api="StateGraph.schedule")
def test_a_tick_is_skipped_while_the_run_before_has_not_ended() -> None:
    """A run that asks a person has not ended. Fails if any of its states counts as the end."""
    time = Timeline()
    app = timed(time.store, node=asks)
    time(app, 0, HOUR, HOUR, HOUR)
    assert fired(app) == ["01:00 interrupted"]
    assert counts(app) == (1, 2, 0)
    app.answer("tick@@hourly@2026-11-16T01:00:00Z", "yes")
    time(app, 10, HOUR)
    assert fired(app) == ["01:00 completed", "04:00 interrupted"]


@pytest.mark.requirement("F9", api="StateGraph.schedule")
def test_ticks_are_queued_in_order_until_the_run_before_has_ended() -> None:
    """And are not missed, however long that takes. Fails if ``seen`` is not moved while waiting."""
    time = Timeline()
    app = timed(time.store, "* * * * *", node=asks, overlap="queue")
    time(app, 0, 60, *[15] * 12)
    expected = ["00:01 interrupted"]
    for minute in (1, 2, 3):
        assert fired(app) == expected
        app.answer(f"tick@@hourly@2026-11-16T00:0{minute}:00Z", "yes")
        time(app, 1, 15)
        expected[-1:] = [f"00:0{minute} completed", f"00:0{minute + 1} interrupted"]
    assert fired(app) == expected
    assert counts(app) == (4, 0, 0)


@pytest.mark.requirement("F9", api="StateGraph.schedule")
def test_a_tick_cancels_the_run_before() -> None:
    """Also if that was deleted meanwhile."""
    time = Timeline()
    app = timed(time.store, node=asks, overlap="cancel")
    time(app, 0, HOUR, HOUR)
    assert fired(app) == ["01:00 cancelled", "02:00 interrupted"]
    app.delete("tick@@hourly@2026-11-16T02:00:00Z")
    time(app, HOUR)
    assert fired(app) == ["01:00 cancelled", "03:00 interrupted"]
    assert counts(app) == (3, 0, 0)


@pytest.mark.requirement("F9", api="Schedules.backfill")
def test_a_backfill_submits_what_has_come_and_is_absent() -> None:
    """Fails if it submits ticks to come, or fires again what was fired."""
    time = Timeline()
    app = timed(time.store)
    time(app, 0, HOUR)
    midnight = datetime(2026, 11, 16, tzinfo=UTC)
    schedules = Schedules(app)
    handles = schedules.backfill(
        "hourly", midnight - timedelta(hours=2), midnight + timedelta(hours=9)
    )
    assert [handle.reused for handle in handles] == [False, False, False, True]
    work(app)
    assert fired(app) == [f"{each}:00 completed" for each in ("22", "23", "00", "01")]
    with pytest.raises(InvalidRequest, match="with a time zone"):
        schedules.backfill("hourly", midnight.replace(tzinfo=None), midnight)
    with pytest.raises(InvalidRequest, match="no schedule 'daily'; the graph has 'hourly'"):
        schedules.backfill("daily", midnight, midnight)
    time(app, HOUR)
    assert fired(app)[-1] == "02:00 completed"


def test_a_changed_expression_starts_now_and_takes_effect_at_once() -> None:
    """Fails if the thread keeps its old sleep, or ticks before the change are caught up."""
    time = Timeline()
    time(timed(time.store, "0 20 * * *", catch_up="all"), 0)
    time.advance(600)
    app = timed(time.store, "*/5 * * * *", catch_up="all")
    time(app, 0)
    assert fired(app) == []
    time(app, 300)
    assert fired(app) == ["00:15 completed"]


def test_other_changes_keep_the_place_and_the_counts() -> None:
    time = Timeline()
    before = timed(time.store, catch_up="none")
    time(before, 0, HOUR)
    app = timed(time.store, catch_up="all")
    time(app, 2 * HOUR + 600, *[1] * 5)
    assert fired(app) == [f"0{hour}:00 completed" for hour in (1, 2, 3)]
    assert counts(app) == (3, 0, 0)


def test_a_running_worker_takes_a_schedule_only_if_nobody_serves_it() -> None:
    """Fails if ``register`` does not look at the workers, or looks at the silent ones."""
    time = Timeline()
    old, new = timed(time.store, catch_up="none"), timed(time.store, catch_up="all")
    worker = Worker([old], QUICK)
    key = ThreadKey("default", "schedule@@hourly")
    time(old, 0)
    time.store.beat(worker.describe())
    before = time.store.thread(key)
    Schedules(new).register()
    assert time.store.thread(key) == before
    time.advance(60)
    Schedules(new).register()
    after = time.store.thread(key)
    assert before is not None
    assert after is not None
    assert after.lane in Worker([new], QUICK).lanes
    assert before.lane not in Worker([new], QUICK).lanes


def test_a_paused_schedule_misses_its_ticks() -> None:
    """It stays paused when workers start. Fails if ``register`` resumes what was cancelled."""
    time = Timeline()
    app = timed(time.store)
    schedules = Schedules(app)
    time(app, 0)
    assert schedules.pause("hourly")
    assert not schedules.pause("hourly")
    time(app, HOUR + 600)
    (info,) = schedules.all()
    assert (info.status, info.next, fired(app)) == ("paused", None, [])
    schedules.resume("hourly")
    time(app, 0, HOUR - 600)
    assert fired(app) == ["02:00 completed"]
    assert counts(app) == (1, 0, 1)


def test_a_firing_that_cannot_be_started_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Later ticks wait for it. Fails without ``retry_runs``: the schedule then stands still."""
    time, errors = Timeline(), [ValueError("no"), ValueError("no")]
    caplog.set_level(logging.ERROR, "milecastle.fleet")

    def moody(tick: datetime) -> dict[str, Any]:
        if errors:
            raise errors.pop()
        return start()

    app = timed(time.store, input=moody, catch_up="all")
    time(app, 0, HOUR)
    (info,) = Schedules(app).all()
    assert (info.status, fired(app)) == ("failing", [])
    time(app, 15, 2 * HOUR + 600, *[1] * 5)
    assert fired(app) == [f"0{hour}:00 completed" for hour in (1, 2, 3)]
    assert Schedules(app).all()[0].status == "active"


def test_a_run_whose_clock_is_ahead_does_not_fire_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sleep has ended too early. Fails if ``wait`` does not ask the store for the time."""
    time = Timeline()
    app = timed(time.store, timedelta(seconds=1))
    time(app, 0)

    def pause(seconds: float) -> None:
        time.advance(0.4)

    monkeypatch.setattr("milecastle.fleet.schedules.sleep", pause)
    (run,) = Schedules(app).runs.values()

    class Awake:
        thread = None

        def sleep(self, until: datetime) -> None: ...

    state, context = cast("Any", App(run.runner).state(run.key).state), cast("Any", Awake())
    verdicts = [run.wait(state, context)["verdict"] for _ in range(4)]
    assert verdicts == ["waits", "waits", "waits", "fires"]


def test_the_log_of_a_schedule_is_cut(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Fails without ``_prune``. A store in memory has no rollups, and keeps what it has."""
    monkeypatch.setattr("milecastle.fleet.schedules._PRUNE_EVERY", 5)
    monkeypatch.setattr("milecastle.fleet.schedules._KEPT", 20)
    app = timed(store, timedelta(milliseconds=1), catch_up="all", overlap="cancel")
    key = ThreadKey("default", "schedule@@hourly")

    async def enough() -> bool:
        head = store.head(key)
        return head is not None and head.seq > 120

    async def serve() -> None:
        async with serving(app):
            await until(enough, 60)

    asyncio.run(serve())
    head, left = store.head(key), len(list(store.history(key)))
    assert head is not None
    assert left < head.seq or isinstance(store, MemoryStore)
    assert Schedules(app).all()[0].fired > 15


def test_two_graphs_do_not_share_the_name_of_a_schedule() -> None:
    app = timed(MemoryStore())
    with pytest.raises(InvalidRequest, match="two graphs have a schedule 'hourly'"):
        Worker([app, timed(app.store)])


def test_schedules_of_a_store_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="workers need a store"):
        Schedules(timed(None))
