"""The long form of the model: ``python -m tests.model KIND FIRST COUNT [SECONDS]``.

Kinds: ``memory`` and ``file`` (the simulator, with a store in memory or in SQLite);
``claims-memory``, ``claims-sqlite``, ``claims-postgres``; ``sqlite``, ``postgres`` and ``shards``
(real processes). Prints each history that breaks a rule; ends with 1 if there was one, or if
SIGTERM ended it, which lets the history under way end. ``show KIND SEED`` prints one.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic, process_time
from types import FrameType

from tests.model import simulated
from tests.model.claiming import claim_history
from tests.model.history import History
from tests.model.processes import SHARED, Processes
from tests.simulation.collecting import collected_rarely
from tests.simulation.progress import note_done, pieces

PIECE = 50
"""How many histories are noted together as done."""

Judged = tuple[list[str], Callable[[], str]]
"""What is wrong with a history, and how it is shown."""


@contextmanager
def histories(kind: str) -> Generator[Callable[[int], Judged], None, None]:
    """A function that makes and judges the history of a seed."""
    if kind.startswith("claims-"):
        with TemporaryDirectory(dir=SHARED) as folder:
            yield lambda seed: _claims(kind, seed, folder)
    elif kind in ("memory", "file"):
        with TemporaryDirectory(dir=SHARED) as folder:
            yield lambda seed: _simulated(seed, folder if kind == "file" else "")
    else:
        processes = Processes(kind)
        try:
            yield lambda seed: _real(processes.run(seed))
        finally:
            processes.close()
            print(dict(processes.happened))


def _claims(kind: str, seed: int, folder: str) -> Judged:
    where = folder
    if kind == "claims-postgres":
        from tests.postgres_cluster import new_schema, the_cluster

        where = the_cluster().url_of(new_schema())
    return claim_history(seed, kind.partition("-")[2], where), lambda: ""


def _simulated(seed: int, folder: str) -> Judged:
    course = simulated.run(seed, folder=folder)

    def shown() -> str:
        return simulated.report(simulated.shrunk(seed, folder), seed)

    return course.wrong, shown


def _real(history: History) -> Judged:
    return history.wrong, lambda: "\n".join(map(str, history.in_milliseconds()))


@contextmanager
def _until_ended() -> Generator[Event, None, None]:
    """An event that SIGTERM sets. An exception of the handler would be raised inside of a node."""
    ended = Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def main(kind: str, first: int, count: int, seconds: float = 1e9, *, shows: bool = False) -> int:
    """Make histories for at most so many seconds, and print what is wrong with them."""
    began, cpu, found = monotonic(), process_time(), Counter[str]()
    with _until_ended() as ended, histories(kind) as made:
        for piece in pieces(kind, first, count, PIECE):
            broken = found["broken"]
            for seed in collected_rarely(piece):
                if ended.is_set() or monotonic() - began > seconds:
                    break
                wrong, shown = made(seed)
                found["histories"] += 1
                found["broken"] += bool(wrong)
                for text in wrong:
                    print(f"{kind} {seed}: {text}", flush=True)
                if wrong and shows:
                    print(shown(), flush=True)
            else:
                if found["broken"] == broken:
                    note_done(kind, piece)
    took = f"{monotonic() - began:.0f} s, {process_time() - cpu:.0f} s cpu"
    print(f"{kind}: from {first}, {dict(found)} in {took}")
    return bool(found["broken"] or ended.is_set())


if __name__ == "__main__":
    if sys.argv[1] == "show":
        sys.exit(main(sys.argv[2], int(sys.argv[3]), 1, shows=True))
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
