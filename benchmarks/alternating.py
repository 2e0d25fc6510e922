"""Rounds in which the peers take turns, so that both meet the same moods of the machine.

Rules: every round samples every peer, in an order that turns round each time; the collector is
emptied before a run and off during it, for all alike; a peer's figure is its best round.
A much faster peer repeats its run within a round and is given the mean, because the best of a few
short moments on a busy machine flatters it against the best of a few long ones.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter


class PeerMissing(RuntimeError):
    """The peer to compare with is not installed."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Something to time: `run` does the work once and returns the seconds that it took."""

    name: str
    run: Callable[[], float]
    repeats: int = 1


@contextmanager
def without_collector() -> Generator[None]:
    """Empty the garbage collector and keep it off."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def sample(peer: Peer) -> float:
    """Return the mean seconds of the peer's runs in one round."""
    total = 0.0
    for _ in range(peer.repeats):
        with without_collector():
            total += peer.run()
    return total / peer.repeats


def best_of(rounds: int, peers: Sequence[Peer]) -> dict[str, float]:
    """Return each peer's best seconds over the rounds."""
    best = {peer.name: math.inf for peer in peers}
    for number in range(rounds):
        for peer in peers if number % 2 == 0 else reversed(peers):
            best[peer.name] = min(best[peer.name], sample(peer))
    return best


def timed(name: str, call: Callable[[], object], repeats: int = 1) -> Peer:
    """A peer that does nothing but a call."""

    def once() -> float:
        began = perf_counter()
        call()
        return perf_counter() - began

    return Peer(name, once, repeats)
