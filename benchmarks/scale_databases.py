"""The same work on 1, 2 and 4 databases of this machine, and what the simulation said before.

``simulation_error`` is the greatest difference of the simulated rate to the real one, as a share of
the real one; at most 0.2 is wanted. Clients are processes; each runs one thread, step by step, on
the database of its number. Each database is a server of its own with its own log.

What the simulation is given: the processor time of client and server for a step, when all clients
are on one database, and the time of a flush by files that are written and synced by one, two and
four processes, without any database. A client alone would not do: its step takes half the processor
time, because nobody else uses the caches. Everything takes turns; the best of the rounds counts.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.fleet_speed import worked
from benchmarks.milecastle_loop import compile_loop, run
from benchmarks.postgres_server import postgres_server
from benchmarks.scale_simulation import Costs, Fleet, rate

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier

    from tests.postgres_cluster import Cluster

DATABASES = (1, 2, 4)
_PAGE = b"\0" * 8192
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done."""

    clients: int = 8
    steps: int = 400
    flushes: int = 100
    rounds: int = 8
    runs: int = 1000


QUICK = Scale(clients=4, steps=40, flushes=40, rounds=1, runs=20)


def compare(scale: Scale) -> Mapping[str, float]:
    """Real and simulated steps a second, and the error."""
    with ExitStack() as stack:
        clusters = [stack.enter_context(postgres_server()) for _ in range(max(DATABASES))]
        if None in clusters:
            return {}
        running = [cluster for cluster in clusters if cluster is not None]
        used: dict[int, list[_Used]] = {databases: [] for databases in DATABASES}
        flushes: dict[int, list[float]] = {writers: [] for writers in DATABASES}
        for _ in range(scale.rounds):
            for databases in DATABASES:
                used[databases].append(_run(running[:databases], scale))
                flushes[databases].append(_flushes(databases, scale))
        found = _compared(_costs(used[1], flushes, scale), used, scale)
        return {**found, **cost_of_runs(running[0], scale.runs)}


class _Used(NamedTuple):
    """Seconds that the steps of all clients took, and how much processor time of each side."""

    seconds: float
    client: float
    server: float


def _costs(used: Sequence[_Used], flushes: Mapping[int, Sequence[float]], scale: Scale) -> Costs:
    """What the simulation is given."""
    steps = scale.clients * scale.steps
    best = min(used, key=lambda one: one.client + one.server)
    flush = [min(flushes[writers]) for writers in (1, 2, 4, 4)]
    return Costs(best.client / steps, best.server / steps, flush)


def _compared(
    costs: Costs, used: Mapping[int, Sequence[_Used]], scale: Scale
) -> Mapping[str, float]:
    """Real and simulated steps a second, and the greatest error."""
    cores = len(os.sched_getaffinity(0))
    found = dict[str, float]()
    errors = list[float]()
    for databases, rounds in used.items():
        real = scale.clients * scale.steps / min(one.seconds for one in rounds)
        simulated = rate(costs, Fleet(scale.clients, databases, cores), steps=scale.steps)
        errors.append(abs(simulated - real) / real)
        found[f"steps_{databases}"] = round(real)
        found[f"simulated_{databases}"] = round(simulated)
    return {**found, "simulation_error": round(max(errors), 3)}


def cost_of_runs(cluster: Cluster, runs: int) -> Mapping[str, float]:
    """Processor time of a worker, and of its server, for a run of ten steps that was submitted.

    The schema, its tables and the submits are in it: with 1,000 runs, a few percent.
    """
    client, server = time.process_time(), _server_time(cluster)
    worked(cluster, runs, 10)
    return {
        "run_worker_us": round((time.process_time() - client) / runs * 1e6),
        "run_server_us": round((_server_time(cluster) - server) / runs * 1e6),
    }


def _run(clusters: Sequence[Cluster], scale: Scale) -> _Used:
    """All clients make their steps, each on the database of its number."""
    urls = [clusters[number % len(clusters)].url for number in range(scale.clients)]
    began = list[float]()
    took = _side_by_side(
        _steps,
        [(url, scale.steps) for url in urls],
        lambda: began.extend(map(_server_time, clusters)),
    )
    server = sum(map(_server_time, clusters)) - sum(began)
    return _Used(_from_first_to_last(took), sum(one.processor for one in took), server)


def _flushes(writers: int, scale: Scale) -> float:
    """Seconds of one flush, while so many processes write and sync a file each."""
    with tempfile.TemporaryDirectory() as folder:
        files = [(f"{folder}/{number}", scale.flushes) for number in range(writers)]
        return _from_first_to_last(_side_by_side(_sync, files)) / scale.flushes


class _Took(NamedTuple):
    """When a client began and ended, and its processor time between."""

    began: float
    ended: float
    processor: float


def _from_first_to_last(took: Sequence[_Took]) -> float:
    return max(one.ended for one in took) - min(one.began for one in took)


def _side_by_side(
    prepare: Callable[[str, int], Callable[[], object]],
    given: Sequence[tuple[str, int]],
    begin: Callable[[], object] = lambda: None,
) -> Sequence[_Took]:
    """Prepare each in a process of its own; when all are ready ``begin``, then all at once."""
    ready, took = _spawn.Barrier(len(given) + 1), _spawn.SimpleQueue()
    processes = [_spawn.Process(target=_one, args=(prepare, one, ready, took)) for one in given]
    for process in processes:
        process.start()
    ready.wait(60)
    begin()
    ready.wait(60)
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a client ended with {process.exitcode}")
    return [_Took(*took.get()) for _ in given]


def _one(
    prepare: Callable[[str, int], Callable[[], object]],
    given: tuple[str, int],
    ready: Barrier,
    took: SimpleQueue[tuple[float, float, float]],
) -> None:
    work = prepare(*given)
    ready.wait(60)
    ready.wait(60)
    began, used = time.perf_counter(), time.process_time()
    work()
    took.put((began, time.perf_counter(), time.process_time() - used))


def _steps(url: str, steps: int) -> Callable[[], object]:
    run(compile_loop(5, store=url), 5, thread=f"first {os.getpid()}")
    app = compile_loop(steps, store=url)
    return lambda: run(app, steps, thread=f"loop {os.getpid()}")


def _sync(path: str, flushes: int) -> Callable[[], object]:
    """Write within a file whose blocks exist, as PostgreSQL does to its log."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, _PAGE * flushes)
    os.fsync(file)

    def work() -> None:
        for number in range(flushes):
            os.pwrite(file, _PAGE, number * len(_PAGE))
            os.fdatasync(file)

    return work


def _server_time(cluster: Cluster) -> float:
    """Processor seconds of a server and its processes, those included that ended."""
    first = int((cluster.data / "postmaster.pid").read_text("utf-8").splitlines()[0])
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(folder.name) == first:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == first:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
