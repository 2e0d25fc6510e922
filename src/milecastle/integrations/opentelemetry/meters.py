"""Run metrics, with graph names and nodes, statuses and error types as attributes.

Never a run, a thread or a tenant: the number of series must not grow with them. Durations are in
seconds; a duration's count is the number of runs, steps, tasks and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from milecastle.integrations.opentelemetry.names import GRAPH, QUEUE_STATE
from milecastle.ports.limits import graph_of
from milecastle.ports.workers import LaneDepth

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)
"""The bounds of the buckets, if the provider takes advice."""


class Meters:
    def __init__(self, meter: Meter) -> None:
        def duration(what: str, of: str) -> Callable[..., None]:
            return meter.create_histogram(
                f"milecastle.{what}.duration",
                unit="s",
                description=f"Duration of {of}.",
                explicit_bucket_boundaries_advisory=_SECONDS,
            ).record

        def counter(name: str, unit: str, description: str) -> Callable[..., None]:
            return meter.create_counter(f"milecastle.{name}", unit, description).add

        self.active = meter.create_up_down_counter(
            "milecastle.run.active", "{run}", "Runs that this process drives."
        ).add
        self.run = duration("segment", "segments: from where a run starts or continues to its stop")
        self.step = duration("step", "steps, with their commit")
        self.task = duration("task", "attempts at tasks")
        self.commit = duration("commit", "commits, until they are durable")
        self.retries = counter("task.retries", "{retry}", "Attempts that failed and are repeated.")
        self.conflicts = counter("commit.conflicts", "{conflict}", "Commits that another run won.")
        self.takeovers = counter("run.takeovers", "{takeover}", "Runs taken over from a process.")


def observe_depths(meter: Meter, read: Callable[[], Iterable[LaneDepth]]) -> None:
    def depths(_: CallbackOptions) -> Iterable[Observation]:
        found: dict[tuple[str, str], int] = {}
        for one in read():
            for state in ("due", "later", "running"):
                place = graph_of(one.lane), state
                found[place] = found.get(place, 0) + getattr(one, state)
        for (graph, state), count in found.items():
            yield Observation(count, {GRAPH: graph, QUEUE_STATE: state})

    def ages(_: CallbackOptions) -> Iterable[Observation]:
        found: dict[str, float] = {}
        for one in read():
            graph = graph_of(one.lane)
            found[graph] = max(found.get(graph, 0.0), one.oldest)
        for graph, age in found.items():
            yield Observation(age, {GRAPH: graph})

    meter.create_observable_gauge(
        "milecastle.queue.depth", [depths], "{thread}", "Threads that wait, will wait, or run."
    )
    meter.create_observable_gauge(
        "milecastle.queue.oldest", [ages], "s", "For how long the first due thread has waited."
    )
