"""Two writers of one thread: whatever each got, one log explains it; and the checker itself.

`MILECASTLE_RACES` is the number of races on each store.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Chain
from milecastle.stores.memory import MemoryStore
from milecastle.testing.entries import a_key
from milecastle.testing.races import switching_often
from tests.every_store import POSTGRES
from tests.postgres_cluster import new_schema, the_cluster
from tests.process.acknowledging import RACES
from tests.process.linearizability import Answer, Log, Operation, apply, first_contradiction
from tests.process.recorded_races import WRITERS, Meeting, Raced, Recorder, kept_by, problems

ROOT = Path(__file__).resolve().parents[2]

forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")


# -- the checker


def an_append(asked: float, answered: float, wanted: int, name: str, told: int = -2) -> Operation:
    """An append that was stored, or was refused with the head."""
    answer: Answer = "kept" if told == -2 else "refused"
    return Operation(asked, answered, answer, name, wanted, told)


def a_read(asked: float, answered: float, head: int, name: str) -> Operation:
    return Operation(asked, answered, "read", name, -1, head)


def is_linearizable(*history: Operation) -> bool:
    return first_contradiction(history) is None


def test_one_after_the_other_is_linearizable() -> None:
    assert is_linearizable(an_append(0, 1, 0, "a"), a_read(2, 3, 1, "a"), an_append(4, 5, 1, "b"))


def test_of_two_at_once_either_may_win() -> None:
    assert is_linearizable(an_append(0, 5, 0, "a"), an_append(1, 4, 0, "b", told=1))
    assert is_linearizable(an_append(0, 5, 0, "a", told=1), an_append(1, 4, 0, "b"))


def test_two_winners_of_one_seq_are_a_contradiction() -> None:
    assert not is_linearizable(an_append(0, 5, 0, "a"), an_append(1, 4, 0, "b"))


def test_a_read_during_an_append_may_see_it_or_not() -> None:
    for seen in (a_read(1, 2, 0, ""), a_read(1, 2, 1, "a")):
        assert is_linearizable(an_append(0, 5, 0, "a"), seen)


def test_a_stale_read_is_a_contradiction() -> None:
    assert not is_linearizable(an_append(0, 1, 0, "a"), a_read(2, 3, 0, ""))


def test_what_was_seen_once_must_stay() -> None:
    seen, gone = a_read(1, 2, 1, "a"), a_read(3, 4, 0, "")
    assert not is_linearizable(an_append(0, 9, 0, "a"), seen, gone)


def test_a_lost_update_is_a_contradiction() -> None:
    kept = an_append(0, 1, 0, "a"), an_append(2, 3, 1, "b")
    assert is_linearizable(*kept, a_read(4, 5, 2, "b"))
    assert not is_linearizable(*kept, a_read(4, 5, 2, "a"))


def test_nobody_is_refused_without_a_winner() -> None:
    assert not is_linearizable(an_append(0, 1, 0, "a", told=0))
    assert not is_linearizable(an_append(0, 1, 0, "a", told=1))
    assert not is_linearizable(an_append(0, 1, 0, "a"), an_append(2, 3, 0, "b", told=7))


def test_an_unknown_outcome_may_have_happened_or_not() -> None:
    unknown = Operation(0, 1, "unknown", "a", 0, -1)
    assert is_linearizable(unknown, a_read(2, 3, 0, ""), a_read(4, 5, 1, "a"))
    assert is_linearizable(unknown, a_read(2, 3, 0, ""), an_append(4, 5, 0, "b"))
    assert not is_linearizable(unknown, a_read(2, 3, 1, "a"), an_append(4, 5, 0, "b"))
    assert not is_linearizable(unknown, a_read(2, 3, 1, "c"))


def a_true_history(chance: random.Random, calls: int) -> list[Operation]:
    """What overlapping calls get from a log, each at one moment of its time."""
    log, history = Log(), list[Operation]()
    for number in range(calls):
        asked, answered = number - 3 * chance.random(), number + 3 * chance.random()
        wanted = max(0, log.length - chance.randrange(2))
        operation = a_read(asked, answered, *log)
        if chance.random() < 0.6:
            told = -2 if wanted == log.length else log.length
            operation = an_append(asked, answered, wanted, f"entry {number}", told)
        after = apply(operation, log)
        assert after is not None
        log = after
        history.append(operation)
    return history


@pytest.mark.parametrize("seed", range(20))
def test_true_histories_pass_and_altered_ones_do_not(seed: int) -> None:
    chance = random.Random(seed)
    history = a_true_history(chance, 200)
    assert is_linearizable(*history)
    kept = [number for number, each in enumerate(history) if each.answer == "kept"]
    number = chance.choice(kept[:-3])
    refused = history[number]._replace(answer="refused", head=history[number].wanted)
    assert not is_linearizable(*history[:number], refused, *history[number + 1 :])


# -- the stores


@pytest.fixture(params=["jsonl", "sqlite", pytest.param("postgres", marks=POSTGRES)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return the_cluster().url_of(new_schema(), max_size="1")
    return f"file://{tmp_path}" if request.param == "jsonl" else f"sqlite:///{tmp_path}/store.db"


def race(url: str, races: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.process.recorded_races", url, str(races)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


@forked
def test_processes_that_race_see_one_log(url: str) -> None:
    found = race(url, RACES)
    print(found)
    assert found == {"operations": 4 * RACES, "refused": RACES, "problems": []}


@forked
def test_a_store_without_a_fence_is_flagged(tmp_path: Path) -> None:
    found = race(f"unfenced:{tmp_path}/unfenced.db", 300)["problems"]
    assert any(problem.startswith("not linearizable") for problem in found)


def race_in_threads(store: Raced, races: int) -> list[str]:
    """What is wrong with the record of threads that race."""
    meeting = Meeting(races)
    recorders = [Recorder(store, writer) for writer in range(WRITERS)]
    threads = [Thread(target=each.race, args=(races, meeting)) for each in recorders]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    operations = [each for recorder in recorders for each in recorder.operations]
    assert len(operations) == 4 * races
    return problems(operations, races, kept_by(store, races))


def test_threads_that_race_see_one_log_in_memory() -> None:
    assert race_in_threads(MemoryStore(), RACES) == []


class Forgetful(MemoryStore):
    """Answers now and then with the head that it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self._reads = 0
        self._remembered: Chain | None = None

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        self._reads += 1
        if seq is not None or self._reads % 7:
            return super().read(key, seq)
        remembered, self._remembered = self._remembered, super().read(key)
        return remembered


class Hasty(MemoryStore):
    """Tells some losers that they won."""

    def commit(self, batch: Batch) -> None:
        try:
            super().commit(batch)
        except Exception:
            if batch.head % 5:
                raise


@pytest.mark.parametrize("broken", [Forgetful, Hasty])
def test_a_broken_store_is_flagged(broken: type[MemoryStore]) -> None:
    found = race_in_threads(broken(), 200)
    assert any(problem.startswith("not linearizable") for problem in found)
    assert broken().read(a_key()) is None
