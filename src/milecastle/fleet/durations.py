from __future__ import annotations

from collections.abc import Iterator

from milecastle.fleet.histograms import LONG, Histogram


class Durations:
    def __init__(self) -> None:
        self.waits = Histogram(
            "queue_wait_seconds", "How long threads had been due when they were claimed.", LONG
        )
        self.segments = Histogram(
            "segment_seconds", "Segments: runs from wake-up to rest, by how.", LONG, ("status",)
        )
        self.runs = Histogram(
            "run_seconds",
            "Runs from their start to their end, with all waits, by how.",
            LONG,
            ("status",),
        )

    def __iter__(self) -> Iterator[Histogram]:
        return iter((self.waits, self.segments, self.runs))
