"""F2 to F6: whatever happens to the workers, every run ends exactly as it must.

``MILECASTLE_FLEET_ROUNDS`` is the number of faults, and ``MILECASTLE_FLEET_RUNS`` that of runs, in
the long form.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from milecastle import open_store
from tests.every_store import POSTGRES, Stores
from tests.postgres_cluster import Cluster, find_binaries, needs_postgres, new_schema, the_cluster
from tests.process.fleet_chaos import Fleet, can_isolate, disturbed, until
from tests.process.fleet_graphs import build_blocking, start
from tests.process.postgres_pair import Pair

ROUNDS = int(os.environ.get("MILECASTLE_FLEET_ROUNDS", "3"))
RUNS = int(os.environ.get("MILECASTLE_FLEET_RUNS", "20"))

BLOCKING = "tests.process.fleet_graphs:blocking"

SHARED = ["sqlite", pytest.param("postgres", marks=POSTGRES)]


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh store that processes can share."""
    stores = Stores(tmp_path)
    stores.open(request.param)
    stores.close()
    return stores.url(request.param)


@pytest.mark.requirement("F3")
def test_every_run_ends_as_it_must_whatever_happens_to_workers(url: str, tmp_path: Path) -> None:
    """The controls below show that lost wake-ups and claims are found."""
    outcome = disturbed(url, tmp_path, seed=7, runs=RUNS, rounds=ROUNDS, also=_faults(url))
    assert outcome.is_good, outcome
    assert outcome.late < 60


def _faults(url: str) -> list[Callable[[], None]]:
    return [] if url.startswith("sqlite") else [end_backends]


def end_backends() -> None:
    """Terminate the connections of everybody but ourselves."""
    the_cluster().execute(
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        b"WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5"
    )


@needs_postgres
@pytest.mark.requirement("F3")
def test_every_run_ends_as_it_must_though_the_server_restarts(tmp_path: Path) -> None:
    cluster = Cluster(_binaries())

    def restart() -> None:
        cluster.stop("immediate")
        cluster.start()

    try:
        url = cluster.url_of("fleet", timeout="20")
        outcome = disturbed(url, tmp_path, seed=3, runs=RUNS, rounds=ROUNDS, also=[restart])
        assert outcome.is_good, outcome
    finally:
        cluster.remove()


@needs_postgres
@pytest.mark.requirement("F3")
def test_every_run_ends_as_it_must_though_the_primary_dies(tmp_path: Path) -> None:
    pair = Pair(synchronous=True)
    left = [pair.fail_over]
    try:
        outcome = disturbed(
            pair.url_of("fleet"),
            tmp_path,
            seed=5,
            runs=RUNS,
            rounds=ROUNDS,
            also=[lambda: left.pop()() if left else None],
        )
        assert outcome.is_good, outcome
        assert not left
    finally:
        pair.remove()


@needs_postgres
@pytest.mark.requirement("F4")
@pytest.mark.skipif(not can_isolate(), reason="needs root, unshare, nsenter, ip and nft")
def test_every_run_ends_as_it_must_though_workers_are_cut_off(tmp_path: Path) -> None:
    """Each worker has a network of its own, and a packet filter drops what one sends for 3 s."""
    cluster = the_cluster()
    relay = f"{cluster.port}:{cluster.folder}/.s.PGSQL.{cluster.port}"
    url = cluster.url_of(new_schema())
    outcome = disturbed(url, tmp_path, seed=2, runs=RUNS, rounds=ROUNDS, relay=relay)
    assert outcome.is_good, outcome


def _binaries() -> Path:
    binaries = find_binaries()
    assert binaries, "no PostgreSQL was found: install one, or set MILECASTLE_NO_POSTGRES=1"
    return binaries


@pytest.mark.parametrize("cheat", ["no-reconciler", "no-wake-up"])
@pytest.mark.control
def test_a_fleet_that_cheats_is_caught(tmp_path: Path, cheat: str) -> None:
    """With one worker, which is killed when it has claimed something."""
    url = Stores(tmp_path).url("sqlite")
    outcome = disturbed(
        url, tmp_path, seed=7, runs=40, rounds=2, workers=1, cheat=cheat, patience=8.0
    )
    assert not outcome.is_good


@pytest.mark.requirement("F2")
@pytest.mark.parametrize("cheat", ["honest", "no-owner", "beats-on-loop"])
def test_a_node_that_blocks_its_loop_is_run_once(tmp_path: Path, cheat: str) -> None:
    """It takes twice as long as a heartbeat may be late. The others are controls.

    A takeover without its entry is a control of the simulation only: here it is a matter of luck.
    """
    url, starts = Stores(tmp_path).url("sqlite"), tmp_path / "starts"
    app = build_blocking().compile(store=open_store(url))
    variables = {"MILECASTLE_TEST_STARTS": str(starts)}
    fleet = Fleet(url, 2, tmp_path, cheat, BLOCKING, silent=3.0, variables=variables)
    try:
        until(lambda: fleet.logs().count(" serves ") == 2)  # one that comes late would find the end
        app.submit(start(1), "t")
        until(lambda: app.state("t").status == "completed" or _count(starts) > 1)
    finally:
        fleet.end()
        app.close()
    assert (_count(starts) == 1) == (cheat == "honest"), fleet.logs()


def _count(starts: Path) -> int:
    return len(starts.read_text("utf-8").splitlines()) if starts.exists() else 0
