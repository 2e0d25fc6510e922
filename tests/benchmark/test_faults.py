"""The fault harness: its oracle, its controls, and its quick form."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import pytest

from benchmarks.faults import as_document, one_cell, report
from benchmarks.faults.injections import FAULTS, kill_worker
from benchmarks.faults.oracle import CALLS, Line, Status, judge
from benchmarks.faults.outside import final_state
from benchmarks.faults.world import RUNTIMES, World, a_world, fresh_database
from tests.postgres_cluster import needs_postgres, the_cluster

ANSWERS = {"a": ["ann"]}
DONE: Mapping[str, Status] = {"a": {"status": "done", "state": final_state("a", "ann")}}


def line(event: str, kind: str, item: str = "", pid: int = 1) -> Line:
    return {"event": event, "order": "a", "kind": kind, "item": item, "time": 0, "pid": pid}


def made(kind: str, item: str = "", pid: int = 1) -> list[Line]:
    return [line("began", kind, item, pid), line("effect", kind, item, pid)]


PACKED = [part for call in CALLS if call[0] == "pack" for part in made(*call)]
ALL = [*made("reserve"), *made("charge"), *PACKED, *made("ship"), *made("notify")]


def test_a_right_order_has_no_anomaly() -> None:
    assert not judge(ALL, DONE, ANSWERS).notes


def test_a_call_that_begins_again_after_a_later_step_is_repeated() -> None:
    """Fails if the beginning of a call is not compared with the later step's effect."""
    verdict = judge([*ALL, *made("charge", pid=2)], DONE, ANSWERS)
    assert verdict.counts["repeated"] == 1
    assert not verdict.counts["in the gap"]


def test_a_call_in_flight_before_a_later_step_is_in_the_gap() -> None:
    """Fails if a stopped process's request counts as a repetition of what was recorded."""
    late = [line("began", "charge", pid=2), *ALL, line("effect", "charge", pid=2)]
    verdict = judge(late, DONE, ANSWERS)
    assert not verdict.counts["repeated"]
    assert verdict.counts["in the gap"] == 1


def test_each_second_effect_is_a_repetition_where_no_process_died() -> None:
    twice = [*ALL[:4], *made("charge"), *ALL[4:]]
    assert judge(twice, DONE, ANSWERS).counts["in the gap"] == 1
    assert judge(twice, DONE, ANSWERS, has_crashes=False).counts["repeated"] == 1


def test_a_missing_effect_is_lost_and_another_state_is_wrong() -> None:
    """Fails if only the state or only the effects of an end are looked at."""
    assert judge(ALL[:-4], DONE, ANSWERS).counts["lost"] == 1
    other: Mapping[str, Status] = {"a": {"status": "done", "state": final_state("a", "bob")}}
    assert judge(ALL, other, ANSWERS).counts["wrong"] == 1
    unknown: Mapping[str, Status] = {"a": {"status": "none", "state": None}}
    assert judge(ALL, unknown, ANSWERS).counts["lost"] == 1
    open_: Mapping[str, Status] = {"a": {"status": "waiting", "state": None}}
    assert judge(ALL, open_, ANSWERS).counts["stuck"] == 1


@pytest.mark.parametrize(
    ("cheat", "caught"), [("forget", "repeated"), ("skip", "lost"), ("answer", "wrong")]
)
def test_a_cheating_runtime_is_caught(
    cheat: str, caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controls: one that records nothing, one that never ships, one that makes answers up."""
    monkeypatch.setenv("FAULTS_PAUSE", "0.01")
    with a_world(f"control-{cheat}") as world:
        cell = kill_worker(world, 2, 1)
    assert cell.verdict.counts[caught]


def test_orders_of_a_killed_worker_end_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick form of the whole: one cell, with real processes and SIGKILL."""
    monkeypatch.setenv("FAULTS_PAUSE", "0.02")
    result = one_cell("milecastle-sqlite", "kill-worker", None, 2)
    assert result.cell is not None
    assert not result.cell.verdict.notes
    assert as_document(result)["done"] == 4
    assert report([result]).figures["milecastle_repeated"] == 0


@needs_postgres
def test_each_world_on_postgresql_has_a_database_that_can_be_opened() -> None:
    """Seen to fail: the URL named the new database as its user, too, and every cell was stuck."""
    with psycopg.connect(fresh_database(the_cluster())) as connection:
        [(name,)] = connection.execute("SELECT current_database()")
    assert name.startswith("faults_")


def test_what_cannot_be_tried_says_why() -> None:
    result = one_cell("milecastle-sqlite", "restart-database", None, 1)
    assert result.cell is None
    assert "file" in result.text


def test_every_fault_has_a_docstring_for_the_table() -> None:
    assert all(fault.__doc__ for fault in FAULTS.values())
    assert len({runtime.peer for runtime in RUNTIMES.values()}) >= 4
    assert World.__doc__
