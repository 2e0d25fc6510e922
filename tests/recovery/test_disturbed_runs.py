"""A run of twenty steps, disturbed at its system calls: nothing acknowledged is lost or silent.

`MILECASTLE_EVERY` is 1 for a fault of each kind at every call that touches the store's files, and
for a short write at every place; n takes every n-th.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

if sys.platform != "linux":
    pytest.skip("strace is for Linux", allow_module_level=True)

from tests.recovery.disturbing import (
    FAULTS,
    KILL,
    Call,
    available,
    calls_of,
    disturb,
    problems,
    run,
)

EVERY = int(os.environ.get("MILECASTLE_EVERY", "61"))
KINDS = ("jsonl", "sqlite")
T = TypeVar("T")


@cache
def obstacle() -> str:
    return available()


@pytest.fixture
def traced() -> None:
    if obstacle():
        pytest.skip(obstacle())


def in_pairs(act: Callable[[int, T], list[str]], each: Sequence[T]) -> list[str]:
    """Act on each, two at a time, and gather what is wrong."""
    with ThreadPoolExecutor(2) as pool:
        return [problem for found in pool.map(act, range(len(each)), each) for problem in found]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_call_is_neither_lost_nor_silent(kind: str, tmp_path: Path) -> None:
    calls = calls_of(kind, tmp_path / "calm")
    assert len(calls) > 60
    plan = [(call, fault) for call in calls for fault in FAULTS][::EVERY]
    missed: list[tuple[Call, str]] = []

    def act(number: int, given: tuple[Call, str]) -> list[str]:
        call, fault = given
        folder = tmp_path / f"{number}.store"
        done = disturb(kind, folder, call, fault)
        if not done.hit:
            missed.append(given)
        found = problems(kind, folder, done, killed=fault == KILL)
        return [f"{fault} at {call.name} {call.number}: {problem}" for problem in found]

    assert in_pairs(act, plan) == []
    print(f"{kind}: {len(plan)} faults at {len(calls)} calls, {len(missed)} missed: {missed}")
    assert len(missed) <= len(plan) // 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_write_anywhere_is_neither_lost_nor_silent(kind: str, tmp_path: Path) -> None:
    assert run(kind, tmp_path / "calm").said[-1] == "done right"
    size, step = {"jsonl": (20_000, 53), "sqlite": (150_000, 509)}[kind]
    plan = [f"limit={limit}" for limit in range(1, size, step * EVERY * 2)]
    failed: list[str] = []

    def act(number: int, limit: str) -> list[str]:
        folder = tmp_path / f"{number}.store"
        done = run(kind, folder, limit)
        if done.code == 3:
            failed.append(limit)
        return [f"{limit}: {problem}" for problem in problems(kind, folder, done)]

    assert in_pairs(act, plan) == []
    print(f"{kind}: {len(plan)} limits, {len(failed)} met")
    assert len(failed) > len(plan) // 2


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_swallows_errors_is_caught(kind: str, tmp_path: Path) -> None:
    syncs = [call for call in calls_of(kind, tmp_path / "calm") if call.name == "fdatasync"]
    done = disturb(kind, tmp_path / "store", syncs[len(syncs) // 2], "error=EIO", "swallow")
    assert done.hit
    assert problems(kind, tmp_path / "store", done) != []
