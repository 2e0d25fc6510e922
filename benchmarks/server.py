"""A server: readers of events that reconnect, and what large stores cost.

Streams, on a real server process with SQLite, killed with SIGKILL and started again meanwhile:

- ``readers``: how many followed runs, each leaving after a few events and coming back.
- ``reconnects``: how often they came back with the id of the last event, to whatever server.
- ``events_missed``, ``events_doubled``: committed checkpoints that a reader did not get, or got
  more than once. Both must be 0. An event out of order, or that was not committed, is an error.

The figures of pages are in ``server_pages.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Report, columns
from benchmarks.server_pages import pages

Figures = Mapping[str, float | None]


def streams(*, quick: bool) -> Figures:
    """Readers of runs, by the harness of ``tests/process/test_server_streams.py``."""
    from tests.process.server_streams import FULL, Scale, prove

    with TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'runs.db'}"
        found = prove(store, Path(folder), Scale() if quick else FULL)
    if found.wrong:
        raise AssertionError(f"{found.wrong} events were out of order, or not committed")
    return {
        "readers": found.readers,
        "reconnects": found.reconnects,
        "events_missed": found.missed,
        "events_doubled": found.doubled,
    }


MEASURES: tuple[Callable[..., Figures], ...] = (streams, pages)
"""Each takes ``quick`` and has its own figures."""


def measure(*, quick: bool = False) -> Report:
    """Everything, one part after the other."""
    found: dict[str, float | None] = {}
    for part in MEASURES:
        found |= part(quick=quick)
    rows = [("figure", "")]
    rows += [(name, "-" if value is None else f"{value:g}") for name, value in found.items()]
    return Report(figures=found, table=columns(rows))
