"""The rounds in which peers take turns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from benchmarks.alternating import Peer, best_of, sample, without_collector


def scripted(log: list[str], name: str, seconds: Iterator[float]) -> Callable[[], float]:
    """A run that notes itself and takes the next of the given times."""

    def run() -> float:
        log.append(name)
        return next(seconds)

    return run


def test_peers_take_turns_and_the_order_turns_round_each_time() -> None:
    log: list[str] = []
    peers = [Peer(name, scripted(log, name, iter([1.0] * 3))) for name in ("a", "b")]
    best_of(3, peers)
    assert log == ["a", "b", "b", "a", "a", "b"]


def test_the_best_round_counts() -> None:
    peers = [Peer("a", scripted([], "a", iter([3.0, 1.0, 2.0])))]
    assert best_of(3, peers) == {"a": 1.0}


def test_a_repeated_run_counts_with_its_mean() -> None:
    assert sample(Peer("a", scripted([], "a", iter([1.0, 3.0])), repeats=2)) == 2.0


def test_the_collector_is_off_during_a_run_and_on_again_after_it() -> None:
    seen: list[bool] = []

    def run() -> float:
        seen.append(gc.isenabled())
        return 1.0

    sample(Peer("a", run))
    assert seen == [False]
    assert gc.isenabled()


def test_the_collector_is_on_again_after_a_run_that_failed() -> None:
    with pytest.raises(ValueError, match="broken"), without_collector():
        raise ValueError("broken")
    assert gc.isenabled()
