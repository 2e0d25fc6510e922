"""What the OpenTelemetry observer adds to a step: without a provider, and with the SDK.

In a memory store, whose steps are the cheapest that are committed, so that whatever is added shows
most. Instructions of the interpreter are counted, which is the same on a busy machine; processor
time is shown beside them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from time import process_time
from types import FrameType
from typing import Any

from benchmarks.alternating import Peer, PeerMissing, best_of
from benchmarks.loop import verify
from benchmarks.milecastle_loop import compile_loop, run
from benchmarks.report import Report, columns
from milecastle import ExecutionOptions, Observer

STEPS = 100
ROUNDS = 50
QUICK_ROUNDS = 5

MakeObservers = Callable[[], list[Observer]]


def measure(*, quick: bool = False) -> Report:
    """Count and time the same loop with each observer in turns, long and short."""
    try:
        kinds = _kinds()
    except ModuleNotFoundError as error:
        raise PeerMissing("the SDK is not installed: pip install opentelemetry-sdk") from error
    gc.freeze()
    rounds = QUICK_ROUNDS if quick else ROUNDS
    best = best_of(rounds, [Peer(name, _loop(made)) for name, made in kinds.items()])
    long = {name: _counted(made, STEPS) / STEPS for name, made in kinds.items()}
    short = {name: float(_counted(made, 1)) for name, made in kinds.items()}
    rows = [["", "µs a step", "instructions a step", "added", "of a run of one step", "added"]]
    figures: dict[str, float | None] = {}
    for name in kinds:
        added = long[name] / long["none"] - 1, short[name] / short["none"] - 1
        figures[f"{name}_added"], figures[f"{name}_added_short"] = map(_rounded, added)
        row = [name, f"{best[name] / STEPS * 1e6:.2f}", f"{long[name]:.0f}", f"{added[0]:+.1%}"]
        rows.append([*row, f"{short[name]:.0f}", f"{added[1]:+.1%}"])
    return Report(figures=figures, table=columns(rows))


def _rounded(value: float) -> float:
    return round(value, 4)


def _kinds() -> dict[str, MakeObservers]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from milecastle.integrations.opentelemetry import OpenTelemetryObserver

    class Null:
        def on_event(self, event: Any) -> None:
            pass

    def sdk() -> list[Observer]:
        tracers, meters = TracerProvider(), MeterProvider()
        return [OpenTelemetryObserver(tracer_provider=tracers, meter_provider=meters)]

    return {
        "none": list,
        "no_provider": lambda: [OpenTelemetryObserver()],
        "any_observer": lambda: [Null()],
        "sdk": sdk,
    }


def _loop(make: MakeObservers) -> Callable[[], float]:
    def once() -> float:
        app = compile_loop(STEPS, store="memory://", observers=make())
        began = process_time()
        state = run(app, STEPS)
        seconds = process_time() - began
        verify(state, STEPS)
        return seconds

    return once


def _counted(make: MakeObservers, steps: int) -> int:
    """How many instructions of the interpreter a run takes, after one that fills the caches."""
    app, count = compile_loop(steps, store="memory://", observers=make()), 0

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    for thread in ("first", "counted"):
        count = 0
        sys.settrace(trace)
        try:
            app.invoke({"n": 0, "items": []}, thread=thread, options=_options(steps))
        finally:
            sys.settrace(None)
    return count


def _options(steps: int) -> ExecutionOptions:
    return ExecutionOptions(max_steps=steps)
