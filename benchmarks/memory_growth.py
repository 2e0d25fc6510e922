"""The bytes that a memory store holds after the loop: they must grow with the steps, not faster.

Counted by `tracemalloc`: whatever the run allocated and what is still alive when it has ended, its
result dropped and its garbage collected, while the app and its store are kept.
"""

from __future__ import annotations

import gc
import tracemalloc

from benchmarks.loop import STEPS, verify
from benchmarks.report import Report, columns


def measure(*, quick: bool = False) -> Report:
    """Measure the loop and one twice as long; a quick run is the same."""
    del quick
    once, twice = held_bytes(STEPS), held_bytes(2 * STEPS)
    ratio = round(twice / once, 3)
    rows = [
        ("steps", "bytes held", "a step"),
        (str(STEPS), str(once), str(once // STEPS)),
        (str(2 * STEPS), str(twice), str(twice // (2 * STEPS))),
        ("ratio", str(ratio), ""),
    ]
    figures = {f"bytes_{STEPS}": once, f"bytes_{2 * STEPS}": twice, "ratio": ratio}
    return Report(figures=figures, table=columns(rows))


def held_bytes(steps: int) -> int:
    """Return the bytes that a run of so many steps leaves in the store."""
    from benchmarks import milecastle_loop as ours

    # A first run elsewhere fills what is made once for a process.
    ours.memory(2)
    app = ours.compile_loop(steps, store="memory://")
    gc.collect()
    tracemalloc.start()
    try:
        ours.run(app, steps)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    verify(app.state(ours.THREAD).state, steps)
    return held
