"""Flows: what a recorded call and a resumption cost. PeerRun take turns, best of several.

- ``call_vs_step``: a call of a flow, to a step of a graph that appends as much.
- ``resume_10k_vs_1k``: resuming a flow after ten thousand calls, to after one thousand.
- ``vs_dbos``: steps a second, to those of DBOS on the same PostgreSQL: ``one_vs_dbos`` in one flow,
  ``many_vs_dbos`` in many at once. ``vs_dbos`` is the lesser.
- ``vs_temporal``: the same beside Temporal's development server with a database file. It is not a
  server for production, so this has no bar.

A figure with a suffix is of that database; without one it is the greater of both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from benchmarks.alternating import Peer, best_of
from benchmarks.faults.world import TemporalServer, temporal_binary
from benchmarks.postgres_server import fresh_schema, postgres_server
from benchmarks.report import Report, columns
from milecastle import END, START, ExecutionConfig, StateGraph, append, flow, interrupt, step
from milecastle.fleet.worker import Worker

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

FIGURES = (
    "call_vs_step",
    "call_vs_step_sqlite",
    "call_vs_step_postgres",
    "call_us_sqlite",
    "call_us_postgres",
    "resume_ms_1k",
    "resume_10k_vs_1k",
    "vs_dbos",
    "one_vs_dbos",
    "many_vs_dbos",
    "vs_temporal",
    "one_vs_temporal",
    "many_vs_temporal",
)


class Size(msgspec.Struct, frozen=True):
    """How much is measured. DBOS gets ``flows`` of ``each`` steps at once."""

    calls: int = 1000
    rounds: int = 6
    resumed: int = 1000
    flows: int = 100
    each: int = 30
    peer_rounds: int = 3


QUICK = Size(calls=200, rounds=3, resumed=200, flows=20, each=20, peer_rounds=1)


class Added(TypedDict):
    found: Annotated[list[int], append]


def add(number: int) -> int:
    return number + 1


@flow(name="count")
def count(most: int) -> int:
    found = 0
    while found < most:
        found = int(step(add, found))
    return found


@flow(name="stopped")
def stopped(most: int) -> int:
    found = count(most)
    interrupt("go on?")
    return found


def measure(*, quick: bool = False) -> Report:
    """Measure on a file and on a private server; fewer figures where there is no PostgreSQL."""
    size = QUICK if quick else Size()
    with tempfile.TemporaryDirectory() as folder:
        found = on_sqlite(Path(folder), size)
    with postgres_server() as cluster:
        if cluster is not None:
            found |= on_postgres(cluster, size)
    return report(found)


def on_sqlite(folder: Path, size: Size) -> dict[str, float]:
    """Calls and resumptions, each commit synced."""
    place = partial(_in_folder, folder)
    return _costs("sqlite", size, place) | _resumptions(place, size)


def on_postgres(cluster: Cluster, size: Size) -> dict[str, float]:
    """Calls; beside DBOS and Temporal, where they are installed."""
    found = _costs("postgres", size, partial(_in_schema, cluster))
    peers: dict[str, PeerRun] = {}
    if find_spec("dbos"):
        peers["dbos"] = partial(_dbos, cluster)
    if find_spec("temporalio") and temporal_binary():
        peers["temporal"] = _temporal
    return found | _beside(cluster, size, peers)


def report(found: Mapping[str, float]) -> Report:
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    figures["call_vs_step"] = max(found[name] for name in found if name.startswith("call_vs_step_"))
    figures |= found
    rounded = {name: value and round(value, 3) for name, value in figures.items()}
    shown = [(name, "-" if value is None else f"{value:.3f}") for name, value in rounded.items()]
    return Report(figures=rounded, table=columns([("figure", ""), *shown]))


Place = Callable[[Callable[[str], float]], float]
"""Calls a function with the URL of a new store."""

PeerRun = Callable[[Size], tuple[float, float]]
"""The seconds of one flow, and of many at once."""


def _in_folder(folder: Path, work: Callable[[str], float]) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return work(f"sqlite:///{Path(name) / 'flows.db'}?synchronous=full")


def _in_schema(cluster: Cluster, work: Callable[[str], float]) -> float:
    with fresh_schema(cluster) as schema:
        return work(cluster.url_of(schema))


def _costs(kind: str, size: Size, place: Place) -> dict[str, float]:
    calls = Peer("calls", partial(place, partial(called, size.calls)))
    steps = Peer("steps", partial(place, partial(stepped, size.calls)))
    best = best_of(size.rounds, [calls, steps])
    return {
        f"call_vs_step_{kind}": best["calls"] / best["steps"],
        f"call_us_{kind}": best["calls"] / size.calls * 1_000_000,
    }


def called(calls: int, url: str) -> float:
    """The seconds of a flow with as many calls."""
    with closing(count.compile(store=url)) as app:
        app.invoke(count.input(10), "warm")
        began = perf_counter()
        app.invoke(count.input(calls), "measured")
        return perf_counter() - began


def stepped(steps: int, url: str) -> float:
    """The seconds of a graph with as many steps, each appending a number."""
    graph = StateGraph(Added, name="steps")
    graph.with_default_config(ExecutionConfig(max_steps=None))
    graph.add_node("add", lambda state: {"found": [add(len(state["found"]))]})
    graph.add_edge(START, "add")
    graph.add_edge("add", END, when=lambda state: len(state["found"]) % 1_000_000 >= most[0])
    graph.add_edge("add", "add")
    most = [10]
    with closing(graph.compile(store=url)) as app:
        app.invoke({"found": []}, "warm")
        most[0] = steps
        began = perf_counter()
        app.invoke({"found": []}, "measured")
        return perf_counter() - began


def _resumptions(place: Place, size: Size) -> dict[str, float]:
    best = best_of(
        size.rounds,
        [
            Peer("few", partial(place, partial(resumed, size.resumed))),
            Peer("many", partial(place, partial(resumed, 10 * size.resumed))),
        ],
    )
    return {
        "resume_ms_1k": best["few"] * 1000,
        "resume_10k_vs_1k": best["many"] / best["few"],
    }


def resumed(calls: int, url: str) -> float:
    """The seconds of resuming a flow that has made as many calls."""
    fast = url.replace("synchronous=full", "synchronous=normal")
    with closing(stopped.compile(store=fast)) as app:
        app.invoke(stopped.input(calls), "measured")
    with closing(stopped.compile(store=url)) as app:
        began = perf_counter()
        app.resume("measured", answer=1)
        return perf_counter() - began


def _beside(cluster: Cluster, size: Size, peers: Mapping[str, PeerRun]) -> dict[str, float]:
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ("", *peers)}
    for _ in range(size.peer_rounds):
        measured[""].append(_ours(cluster, size))
        for name, peer in peers.items():
            measured[name].append(peer(size))
    best = {name: tuple(map(min, zip(*found, strict=True))) for name, found in measured.items()}
    figures: dict[str, float] = {}
    for name in peers:
        ratios = [theirs / ours for theirs, ours in zip(best[name], best[""], strict=True)]
        figures |= {f"one_vs_{name}": ratios[0], f"many_vs_{name}": ratios[1]}
        figures[f"vs_{name}"] = min(ratios)
    return figures


def _ours(cluster: Cluster, size: Size) -> tuple[float, float]:
    with (
        fresh_schema(cluster) as schema,
        closing(count.compile(store=cluster.url_of(schema))) as app,
    ):
        app.invoke(count.input(10), "warm")
        began = perf_counter()
        app.invoke(count.input(size.each), "one")
        between = perf_counter()
        asyncio.run(_many(app, size))
        return between - began, perf_counter() - between


async def _many(app: Any, size: Size) -> None:
    inputs = {f"{number}": count.input(size.each) for number in range(size.flows)}
    await app.asubmit_many(inputs)
    await Worker([app]).run_until_idle()
    if app.state("0").state["result"] != size.each:
        raise AssertionError("steps were lost")


def _dbos(cluster: Cluster, size: Size) -> tuple[float, float]:
    return _printed("benchmarks.dbos_flows", cluster.url, size)


def _temporal(size: Size) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = TemporalServer(Path(folder))
        try:
            return _printed("benchmarks.temporal_flows", f"127.0.0.1:{server.port}", size)
        finally:
            server.end()


def _printed(module: str, place: str, size: Size) -> tuple[float, float]:
    command = [sys.executable, "-m", module, place, str(size.flows), str(size.each)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    one, many = map(float, done.stdout.split()[-2:])
    return one, many
