"""Nodes that run in a real Ray cluster, whose actors, nodes and drivers are killed.

Ray is in no list of tools, for its size: where it is not installed these tests are skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from milecastle import ExecutionError, ExecutionOptions, Keyring, Ray, RunCancelled
from milecastle.compute import ray_cluster
from milecastle.errors import ProcessLost
from tests.acceptance.compute import graphs, on_ray
from tests.acceptance.compute.on_ray import ITEMS, MOST
from tests.unit.compute.in_threads import app_on

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install 'milecastle[ray]'")

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("default"),  # of Ray itself
]


@pytest.fixture(scope="module")
def cluster() -> Generator[Any]:
    """A node of Ray on this machine; a test adds a second. Half of it is for ``site``."""
    os.environ |= {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_niceness": "0"}
    create: Any = pytest.importorskip("ray.cluster_utils").Cluster
    head = {"num_cpus": 4, "resources": {"site": 2}, "include_dashboard": False}
    made = create(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    for actors in vars(ray_cluster)["_clusters"].values():
        actors.close()
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def site(cluster: Any) -> Generator[Any]:
    from milecastle.compute.ray_cluster import RayActors

    made = RayActors(ray, Ray(resources={"site": 1}))
    yield made
    made.close()


def lines(folder: Path, name: str) -> int:
    path = folder / name
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_items_run_in_actors_and_join_in_order(site: Any) -> None:
    state = app_on(site, graphs.squares).invoke({"numbers": [*range(40)]}, "t").state
    parts = state.get("parts", [])
    assert [part.number for part in parts] == [n * n for n in range(40)]
    assert os.getpid() not in {part.pid for part in parts}


def test_async_nodes_record_and_emit(site: Any) -> None:
    events = [*app_on(site, graphs.asquares).stream({"numbers": [*range(20)]}, "t", mode="events")]
    assert sorted(event.update for event in events if event.type == "emit") == [*range(20)]


def test_large_values_travel(site: Any) -> None:
    texts = ["x" * 1_000_000] * 6  # Ray stores what is above 100 KiB
    state = app_on(site, graphs.echoing).invoke({"texts": texts}, "t").state
    assert state.get("said") == texts


@pytest.mark.parametrize("encrypted", [False, True])
def test_actor_stores_and_reads_files(site: Any, tmp_path: Path, encrypted: bool) -> None:
    """The actor reaches the object storage itself, and encrypts as this process does."""
    keyring = Keyring({"k": bytes(32)}, store="memory://") if encrypted else None
    app = app_on(site, graphs.storing, objects=f"file://{tmp_path}/objects", encryption=keyring)
    (tmp_path / "given.txt").write_text("written here")
    given = app.files.store(tmp_path / "given.txt")
    app.invoke({"folder": str(tmp_path), "given": given}, "t")
    state = app.state(thread="t")
    assert int(state["said"][0]) != os.getpid()
    assert (state["made"].secret is not None) == encrypted
    with app.files.open(state["made"]) as opened:
        assert opened.read() == b"WRITTEN HERE"


def test_files_in_memory_cannot_be_shared_with_an_actor(site: Any, tmp_path: Path) -> None:
    app = app_on(site, graphs.storing, objects="memory:///")
    (tmp_path / "given.txt").write_text("written here")
    given = app.files.store(tmp_path / "given.txt")
    with pytest.raises(ExecutionError, match="needs files in file:///folder or a bucket"):
        app.invoke({"folder": str(tmp_path), "given": given}, "t")


def test_killed_actor_repeats_only_what_was_in_flight(site: Any, tmp_path: Path) -> None:
    """Number 3 kills its actor; an earlier outcome may be on its way then, and is lost."""
    values: Any = {"numbers": [*range(30)], "folder": str(tmp_path)}
    state = app_on(site, graphs.unlucky_three).invoke(values, "t").state
    assert [part.number for part in state.get("parts", [])] == [n * n for n in range(30)]
    ran = {n: lines(tmp_path, f"ran {n}") for n in range(30)}
    assert ran[3] == 2
    assert {n for n in ran if ran[n] != 1} <= {0, 1, 2, 3}
    assert max(ran.values()) == 2


def test_task_that_kills_its_actor_is_not_tried_forever(site: Any, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError) as caught:
        app_on(site, graphs.doomed).invoke({"folder": str(tmp_path)}, "t")
    assert isinstance(caught.value.__cause__, ProcessLost)
    assert lines(tmp_path, "ran") == 3


def test_what_was_recorded_is_not_repeated_by_the_next_actor(site: Any, tmp_path: Path) -> None:
    state = app_on(site, graphs.talking).invoke({"folder": str(tmp_path)}, "t").state
    assert (lines(tmp_path, "mail"), lines(tmp_path, "ran")) == (1, 2)
    assert state.get("said") == ["1 2 True"]


def test_cancelled_run_stops_its_tasks(site: Any, tmp_path: Path) -> None:
    cancel = threading.Event()

    def once_running() -> None:
        wait_for(lambda: lines(tmp_path, "ran") > 0)
        cancel.set()

    threading.Thread(target=once_running, daemon=True).start()
    with pytest.raises(RunCancelled):
        app_on(site, graphs.stalled).invoke(
            {"numbers": [1, 2], "folder": str(tmp_path)},
            "t",
            options=ExecutionOptions(cancel=cancel),
        )
    parts = app_on(site, graphs.squares).invoke({"numbers": [2]}, "u").state.get("parts", [])
    assert [part.number for part in parts] == [4]


def test_killed_driver_repeats_only_what_was_in_flight(cluster: Any, tmp_path: Path) -> None:
    """The second driver is this process, which resumes from the log of the first."""
    command = [sys.executable, "-m", "tests.acceptance.compute.on_ray"]
    with subprocess.Popen([*command, cluster.address, str(tmp_path)]) as driver:
        try:
            wait_for(lambda: lines(tmp_path, "reached") == 1 and before_reached(tmp_path) >= 30)
        finally:
            driver.send_signal(signal.SIGKILL)
    app = on_ray.plain.compile(store=f"sqlite:///{tmp_path}/runs.db")
    assert app.resume("t").state.get("said") == [f"{n}" for n in range(ITEMS)]
    again = [n for n in range(ITEMS) if lines(tmp_path, f"ran {n}") > 1]
    assert 20 in again
    assert len(again) <= MOST


def before_reached(folder: Path) -> int:
    return sum(lines(folder, f"ran {n}") > 0 for n in range(ITEMS))


def test_killed_node_repeats_only_what_was_in_flight(cluster: Any, tmp_path: Path) -> None:
    """Its actors are on the node that is killed; the tasks go to another that joins."""
    node = cluster.add_node(num_cpus=2, resources={"lane": 2})
    app = on_ray.needing.compile(store=f"sqlite:///{tmp_path}/runs.db")
    results: list[Any] = []
    values: Any = {"numbers": [*range(ITEMS)], "folder": str(tmp_path)}
    run = threading.Thread(target=lambda: results.append(app.invoke(values, "t")), daemon=True)
    run.start()
    wait_for(lambda: lines(tmp_path, "reached") == 1 and before_reached(tmp_path) >= 30)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=2, resources={"lane": 2})
    run.join(180)
    assert results, "the run did not end"
    assert results[0].state.get("said") == [f"{n}" for n in range(ITEMS)]
    again = [n for n in range(ITEMS) if lines(tmp_path, f"ran {n}") > 1]
    assert 20 in again
    assert len(again) <= MOST
