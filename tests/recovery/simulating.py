"""The long form of the simulation: ``python -m tests.recovery.simulating FIRST COUNT [PROCESSES]``.

Prints what was simulated and every violation with its seed; ends with 1 if there was one.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter, process_time

import msgspec.structs

from milecastle.testing.simulation import Violation, simulate

CHUNK = 250


def simulate_all(seeds: range) -> tuple[Counter[str], list[str]]:
    """What happened, and the violations, each with its seed."""
    happened: Counter[str] = Counter()
    violations: list[str] = []
    began = process_time()
    gc.set_threshold(50_000)  # what a simulation leaves behind is small
    for seed in seeds:
        try:
            happened.update(msgspec.structs.asdict(simulate(seed)))
        except Violation as violation:
            violations.append(str(violation))
    happened["seeds"] = len(seeds)
    happened["cpu_ms"] = round((process_time() - began) * 1000)
    return happened, violations


def main(first: int, count: int, processes: int = 1) -> int:
    """Simulate ``count`` seeds from ``first`` on, and tell of progress."""
    chunks = [
        range(start, min(start + CHUNK, first + count))
        for start in range(first, first + count, CHUNK)
    ]
    total: Counter[str] = Counter()
    found: list[str] = []
    began = perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for happened, violations in pool.map(simulate_all, chunks):
            total += happened
            found += violations
            for violation in violations:
                print(violation, flush=True)
            if total["seeds"] % (20 * CHUNK) == 0:
                print(json.dumps(dict(total)), file=sys.stderr, flush=True)
    report = {**total, "violations": len(found), "seconds": round(perf_counter() - began, 1)}
    print(json.dumps(report))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
