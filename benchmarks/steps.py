"""The time of a step, beside LangGraph: without a store, in a memory store, asynchronously."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from benchmarks.alternating import Peer, PeerMissing, best_of
from benchmarks.loop import STEPS
from benchmarks.report import Report, columns

ROUNDS = 7
QUICK_ROUNDS = 2
OUR_REPEATS = 20

Run = Callable[[int], float]
"""Does a loop of so many steps and returns its seconds."""

Best = dict[str, tuple[float, float]]
"""For each kind of loop, LangGraph's best seconds and ours."""


def measure(*, quick: bool = False) -> Report:
    """Time the loops in turns and report how many times faster ours are."""
    best = compare(STEPS, rounds=QUICK_ROUNDS if quick else ROUNDS)
    return Report(
        figures={name: round(theirs / ours, 2) for name, (theirs, ours) in best.items()},
        table=_table(best),
    )


def compare(steps: int, *, rounds: int, repeats: int = OUR_REPEATS) -> Best:
    """Return for each kind of loop LangGraph's best seconds and ours."""
    kinds = _kinds()
    # What is loaded by now would only make each collection between the runs slow.
    gc.freeze()
    return {
        name: _race(theirs, ours, steps, rounds, repeats) for name, (theirs, ours) in kinds.items()
    }


def _kinds() -> dict[str, tuple[Run, Run]]:
    # Tracing would be the peer's work for somebody else's account.
    for variable in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        os.environ.pop(variable, None)
    try:
        from benchmarks import langgraph_loop as theirs
    except ModuleNotFoundError as error:
        raise PeerMissing("LangGraph is not installed: pip install langgraph") from error
    from benchmarks import milecastle_loop as ours

    return {
        "no_store": (theirs.no_store, ours.no_store),
        "memory": (theirs.memory, ours.memory),
        "async_no_store": (theirs.async_no_store, ours.async_no_store),
    }


def _race(theirs: Run, ours: Run, steps: int, rounds: int, repeats: int) -> tuple[float, float]:
    best = best_of(
        rounds,
        [
            Peer("langgraph", lambda: theirs(steps)),
            Peer("milecastle", lambda: ours(steps), repeats),
        ],
    )
    return best["langgraph"], best["milecastle"]


def _table(best: Best) -> str:
    rows = [("µs a step", "LangGraph", "Milecastle", "ratio")]
    for name, (theirs, ours) in best.items():
        per_step = 1e6 / STEPS
        rows.append(
            (name, f"{theirs * per_step:.1f}", f"{ours * per_step:.2f}", f"{theirs / ours:.1f}")
        )
    return columns(rows)
