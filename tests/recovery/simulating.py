"""The long form of the simulation: ``python -m tests.recovery.simulating FIRST COUNT [PROCESSES]``.

With ``fleet`` before these, that of fleets. Prints what was simulated and every violation with its
seed; ends with 1 if there was one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter, process_time

import msgspec.structs

from tests.simulation.collecting import collected_rarely
from tests.simulation.fleet.simulate import simulate_fleet
from tests.simulation.progress import note_done, pieces
from tests.simulation.simulate import Violation, simulate

CHUNK = 250


def simulate_all(seeds: range) -> tuple[Counter[str], list[str]]:
    """What happened, and the violations, each with its seed."""
    return _all(seeds, lambda seed: msgspec.structs.asdict(simulate(seed)))


def simulate_fleets(seeds: range) -> tuple[Counter[str], list[str]]:
    """``simulate_all`` of fleets."""
    return _all(seeds, simulate_fleet)


def _all(
    seeds: range, simulated: Callable[[int], Mapping[str, int]]
) -> tuple[Counter[str], list[str]]:
    happened: Counter[str] = Counter()
    violations: list[str] = []
    began = process_time()
    for seed in collected_rarely(seeds):
        try:
            happened.update(simulated(seed))
        except Violation as violation:
            violations.append(str(violation))
    happened["seeds"] = len(seeds)
    happened["cpu_ms"] = round((process_time() - began) * 1000)
    return happened, violations


def main(first: int, count: int, processes: int = 1) -> int:
    """Simulate ``count`` seeds from ``first`` on, and tell of progress."""
    return _in_chunks(simulate_all, first, count, processes)


def main_fleet(first: int, count: int, processes: int = 1) -> int:
    """``main`` for fleets."""
    return _in_chunks(simulate_fleets, first, count, processes)


def _in_chunks(
    simulated: Callable[[range], tuple[Counter[str], list[str]]],
    first: int,
    count: int,
    processes: int,
) -> int:
    name = simulated.__name__
    chunks = list(pieces(name, first, count, CHUNK))
    total: Counter[str] = Counter()
    found: list[str] = []
    began = perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for chunk, (happened, violations) in zip(chunks, pool.map(simulated, chunks), strict=True):
            total += happened
            if not violations:
                note_done(name, chunk)
            found += violations
            for violation in violations:
                print(violation, flush=True)
            if total["seeds"] % (20 * CHUNK) == 0:
                print(json.dumps(dict(total)), file=sys.stderr, flush=True)
    report = {**total, "violations": len(found), "seconds": round(perf_counter() - began, 1)}
    print(json.dumps(report))
    return 1 if found else 0


if __name__ == "__main__":
    is_fleet = sys.argv[1] == "fleet"
    sys.exit((main_fleet if is_fleet else main)(*map(int, sys.argv[1 + is_fleet :])))
