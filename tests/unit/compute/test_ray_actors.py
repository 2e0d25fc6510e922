"""Actors of a Ray cluster, with a fake in its place: ``test_run_on_ray`` has the real one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from milecastle import InvalidRequest, Ray, StateGraph
from milecastle.compute import executor_choice, ray_cluster
from milecastle.compute.ray_cluster import RayActors, shared_cluster
from milecastle.errors import ProcessLost
from tests.acceptance.compute import graphs
from tests.acceptance.compute.graphs import Work
from tests.unit.compute.fake_ray import ActorDiedError, FakeRay, RayError, RuntimeEnvSetupError
from tests.unit.compute.in_threads import app_on
from tests.unit.compute.test_pool import Round, gated, rounds, wait_until


@contextmanager
def actors(needs: Ray | None = None, **resources: float) -> Generator[tuple[RayActors, FakeRay]]:
    ray = FakeRay(**resources or {"CPU": 2.0})
    ray.init()
    with closing(RayActors(ray, needs or Ray())) as made:
        yield made, ray


def test_items_run_in_actors_and_join_in_order() -> None:
    with actors() as (site, ray):
        state = app_on(site, graphs.shared).invoke({"numbers": [*range(60)]}, "t").state
        assert state["said"] == [f"{n} of 60" for n in range(60)]
        assert len(ray.actors) == 2
    assert all(actor.dead for actor in ray.actors)


def test_actor_gets_what_it_needs_and_no_more_start_than_fit() -> None:
    """Fails if only processors are counted: the second actor waits without end."""
    needs = Ray(num_cpus=0.5, memory=100, resources={"disk": 1, "GPU": 0.5}, runtime_env={"a": {}})
    with actors(needs, CPU=8, memory=1000, disk=1, GPU=8) as (site, ray):
        app_on(site, graphs.squares).invoke({"numbers": [1, 2, 3, 4]}, "t")
        assert [actor.needs for actor in ray.actors] == [
            {
                "num_cpus": 0.5,
                "memory": 100,
                "resources": {"disk": 1},
                "num_gpus": 0.5,
                "runtime_env": {"a": {}},
            }
        ]
    with actors(Ray(resources={"gpu": 1}), CPU=8) as (site, ray):
        app_on(site, graphs.squares).invoke({"numbers": [1, 2]}, "t")
        assert len(ray.actors) == 1  # it may be added to the cluster


def test_task_of_a_lost_actor_is_repeated() -> None:
    """Fails if the error of Ray is not the end of the pipe."""
    rounds["ray"] = this = Round()
    with actors(CPU=1) as (site, ray):

        def cut() -> None:
            assert this.reached.wait(30)
            ray.actors[0].die()

        threading.Thread(target=cut, daemon=True).start()
        app = app_on(site, gated)
        state = app.invoke({"numbers": [*range(5)], "folder": "ray"}, "t").state
        assert state["said"] == [f"{n}" for n in range(5)]
        assert sorted(this.runs) == [0, 0, 1, 2, 3, 4]
    this.gate.set()


@pytest.mark.parametrize(("error", "most"), [(ActorDiedError, 12), (RuntimeEnvSetupError, 2)])
def test_actor_that_cannot_start_fails_what_waits(error: type[RayError], most: int) -> None:
    """Fails if actors that are lost are started without end."""
    with actors() as (site, ray):
        ray.stillborn = error
        with pytest.raises(ProcessLost, match=rf"was lost by Ray \({error.__name__}\) before it"):
            app_on(site, graphs.squares).invoke({"numbers": [1, 2]}, "t")
        assert len(ray.actors) <= most


def test_actors_of_a_node_that_ends_are_started_again() -> None:
    """Fails if the first one that is lost fails what waits: the killed node of a cluster did."""
    with actors() as (site, ray):
        ray.stillborn, ray.stillborns = ActorDiedError, 4
        app = app_on(site, graphs.squares)
        assert app.invoke({"numbers": [1, 2]}, "t").status == "completed"


def test_actor_that_cannot_start_fails_nothing_while_others_run() -> None:
    with actors() as (site, ray):
        app = app_on(site, graphs.squares)
        app.invoke({"numbers": [1]}, "t")
        assert len(ray.actors) == 1
        ray.stillborn = RuntimeEnvSetupError
        assert app.invoke({"numbers": [*range(20)]}, "u").status == "completed"
        assert wait_until(lambda: len(ray.actors) >= 2)
        assert app.invoke({"numbers": [*range(20)]}, "v").status == "completed"


def test_actors_that_no_call_uses_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if they are kept: nothing else could run in the cluster."""
    monkeypatch.setattr(ray_cluster, "IDLE", 0.2)
    rounds["idle"] = this = Round()
    with actors(CPU=1) as (site, ray):
        app = app_on(site, graphs.squares)
        app.invoke({"numbers": [1, 2]}, "t")
        app.invoke({"numbers": [1, 2]}, "u")
        assert wait_until(lambda: ray.actors[0].dead)
        run = threading.Thread(
            target=app_on(site, gated).invoke,
            args=({"numbers": [1], "folder": "idle"}, "v"),
            daemon=True,
        )
        run.start()
        assert this.reached.wait(30)
        site.forget([0])  # of another call
        time.sleep(0.5)
        assert not ray.actors[1].dead
        this.gate.set()
        run.join(30)
        assert wait_until(lambda: ray.actors[1].dead)


def test_ray_that_was_shut_down_is_not_started_by_what_is_left() -> None:
    """Fails if an actor is called after that: Ray starts anew for any call."""
    with actors() as (site, ray):
        app_on(site, graphs.squares).invoke({"numbers": [1]}, "t")
        ray.begun.clear()
        ray.actors[0].die()
        with pytest.raises(ProcessLost, match=r"was lost by Ray \(EOFError\) before it could"):
            app_on(site, graphs.squares).invoke({"numbers": [1]}, "u")


def test_actor_that_ray_does_not_know_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises errors that have no class of their own."""

    def unknown(*arguments: Any) -> None:
        raise Exception("Can't find actor")

    with actors(CPU=1) as (site, ray):
        app = app_on(site, graphs.squares)
        app.invoke({"numbers": [1]}, "t")
        first = ray.actors[0]
        monkeypatch.setattr(first.put, "remote", unknown)
        monkeypatch.setattr(ray, "kill", unknown)
        run = threading.Thread(target=app.invoke, args=({"numbers": [1]}, "u"), daemon=True)
        run.start()
        assert wait_until(lambda: bool(vars(site)["_children"][0].tasks))
        first.die()
        run.join(30)
        assert not run.is_alive()
        assert len(ray.actors) == 2


def test_actors_are_shared_by_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, start_over = FakeRay(CPU=1), vars(ray_cluster)["_start_over"]
    monkeypatch.setitem(sys.modules, "ray", ray)
    try:
        first = executor_choice.site_of("ray")
        assert shared_cluster(Ray()) is first
        assert executor_choice.site_of(Ray(num_cpus=2)) is not first
        assert ray.begun == [{"log_to_driver": False}]
    finally:
        start_over()
    assert shared_cluster(Ray()) is not first
    start_over()


def test_missing_ray_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidRequest, match="pip install"):
        placed.compile(store="memory://").invoke({"number": 1}, "t")


placed = StateGraph(Work)
placed.add_node("item", graphs.square, run_on="ray")
placed.add_edges("__start__", "item", "__end__")


@pytest.mark.parametrize(
    "given",
    [
        {"num_cpus": -1},
        {"num_cpus": True},
        {"num_cpus": 0},
        {"memory": 0},
        {"resources": {"a": "b"}},
    ],
)
def test_needs_that_mean_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Ray(**given)
