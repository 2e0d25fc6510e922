"""What the OpenTelemetry observer adds to a step: without a provider, and with the SDK.

In a memory store, whose steps are the cheapest that are committed, so that whatever is added shows
most. Processor time, because the machine may be busy with other work.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks.alternating import Peer, PeerMissing, best_of
from benchmarks.loop import verify
from benchmarks.milecastle_loop import compile_loop, run
from benchmarks.report import Report, columns
from milecastle import Observer

STEPS = 100
ROUNDS = 50
QUICK_ROUNDS = 5
SHORT_RUNS = 20
"""How many runs of one step are timed together."""

MakeObservers = Callable[[], list[Observer]]


def measure(*, quick: bool = False) -> Report:
    """Time the same loop with each observer in turns, long and short."""
    try:
        kinds = _kinds()
    except ModuleNotFoundError as error:
        raise PeerMissing("the SDK is not installed: pip install opentelemetry-sdk") from error
    gc.freeze()
    rounds = QUICK_ROUNDS if quick else ROUNDS
    long = best_of(rounds, [Peer(name, _long(made)) for name, made in kinds.items()])
    short = best_of(rounds, [Peer(name, _short(made)) for name, made in kinds.items()])
    rows = [("processor time", "µs a step", "added", "µs a run of one step", "added")]
    figures: dict[str, float | None] = {}
    for name in kinds:
        added = long[name] / long["none"] - 1, short[name] / short["none"] - 1
        figures[f"{name}_added"], figures[f"{name}_added_short"] = map(_rounded, added)
        micros = long[name] / STEPS * 1e6, short[name] / SHORT_RUNS * 1e6
        each = [f"{micros[0]:.2f}", f"{added[0]:+.1%}", f"{micros[1]:.1f}", f"{added[1]:+.1%}"]
        rows.append((name, *each))
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


def _long(make: MakeObservers) -> Callable[[], float]:
    def once() -> float:
        app = compile_loop(STEPS, store="memory://", observers=make())
        began = process_time()
        state = run(app, STEPS)
        seconds = process_time() - began
        verify(state, STEPS)
        return seconds

    return once


def _short(make: MakeObservers) -> Callable[[], float]:
    def once() -> float:
        app = compile_loop(1, store="memory://", observers=make())
        began = process_time()
        for number in range(SHORT_RUNS):
            app.invoke({"n": 0, "items": []}, thread=f"t{number}")
        return process_time() - began

    return once
