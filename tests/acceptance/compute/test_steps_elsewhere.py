"""Steps of flows that run in other processes: what nodes can do there, they can."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from milecastle import (
    App,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    Keyring,
    Result,
    RunCancelled,
    RunTimeout,
    StepFailed,
    Timeout,
    UnserializableState,
    flow,
    step,
)
from milecastle.compute import steps as calling
from milecastle.errors import NodeTimeout, NoKeyring, ProcessLost
from milecastle.stores.memory import MemoryStore
from milecastle.testing import crash_everywhere
from tests.acceptance.compute import steps
from tests.acceptance.compute.graphs import Unlucky
from tests.acceptance.compute.steps import Part, Settings
from tests.unit.compute.fake_ray import FakeRay
from tests.unit.compute.in_threads import pool_of

Invoke = Callable[..., Result[Any]]


def lines(folder: Path, name: str) -> int:
    path = folder / name
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def wait_for_its_end(folder: Path) -> None:
    """Wait until the process that noted itself there has ended."""
    process = Path(f"/proc/{int((folder / 'ran').read_text())}/status")

    def has_ended() -> bool:
        with suppress(OSError):
            return "\nState:\tZ" in process.read_text()
        return True

    wait_for(has_ended)


@pytest.fixture(params=["sync", "async"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(app: App[Any], given: dict[str, Any], **options: Any) -> Any:
    """The flow's result: a sync one by ``invoke``, an async one by ``ainvoke``."""
    if "async" in options.pop("form", ""):
        return asyncio.run(app.ainvoke(given, thread="t", **options)).state["result"]
    return app.invoke(given, thread="t", **options).state["result"]


def _same(site: Any, _run_on: Any) -> Any:
    return site


def call(form: str, name: str, given: Any, **options: Any) -> Any:
    """The result of a flow that calls this step."""
    made = steps.calls if form == "sync" else steps.acalls
    app = made.compile(store=MemoryStore())
    return run(app, {"name": name, "given": given}, form=form, **options)


def failed(form: str, name: str, given: Any) -> BaseException:
    """What a flow failed with that calls this step."""
    with pytest.raises(ExecutionError) as caught:
        call(form, name, given)
    cause = caught.value.cause
    assert cause is not None
    return cause


# ---- what they can do


@pytest.mark.requirement("D3")
def test_steps_run_in_other_processes_and_return_their_types(form: str) -> None:
    """Fails if a declared step is called as one without `run_on`, or its options are dropped."""
    made = steps.each if form == "sync" else steps.aeach
    app = made.compile(store=MemoryStore())
    found = run(app, {"numbers": [*range(20)]}, form=form)
    assert [part.number for part in found] == [43, *(n * n for n in range(20))]
    assert os.getpid() not in {part.pid for part in found}


def test_steps_elsewhere_are_recorded_as_others_and_not_called_again() -> None:
    app = steps.each.compile(store=MemoryStore())
    app.invoke({"numbers": [1, 2]}, thread="t")
    notes = [entry.note for entry in app.history("t")]
    assert [notes.count(note) for note in ("1 square", "2.0.1 square", "2.1.1 square")] == [1] * 3
    assert app.replay("t").verdict == "same"


def test_outside_of_a_flow_the_step_is_an_ordinary_function() -> None:
    """Fails if the call does not look for a flow first."""
    assert steps.square(Part(3, 0)) == Part(9, os.getpid())
    assert asyncio.run(steps.asquare(Part(3, 0))) == Part(9, os.getpid())


def test_calls_have_the_context_that_they_have_here(form: str) -> None:
    """Fails if the id of the call, or the name of the flow, is not sent with the task."""
    app = (steps.calls if form == "sync" else steps.acalls).compile(store=MemoryStore())

    def told(name: str) -> list[Any]:
        events = app.stream({"name": name, "given": ""}, thread=name, mode="events")
        emitted = [(one.node, one.task, one.update) for one in events if one.type == "emit"]
        assert emitted == [("calls", "calls.1", number) for number in range(100)]
        found: list[Any] = app.state(name).state["result"]
        return found

    there, here = told("tells"), told("tells_here")
    assert there[:4] == here[:4] == ["calls", "calls.1", "1", 1]
    assert there[5] != os.getpid() == here[5]


def test_config_is_sent(form: str) -> None:
    assert call(form, "tone", "", config={"tone": "low"}) == "low"


def test_config_of_a_type_that_the_step_names_is_sent(form: str) -> None:
    made = steps.calls if form == "sync" else steps.acalls
    app = made.compile(store=MemoryStore(), config=Settings)
    given = {"name": "tone_of", "given": None}
    assert run(app, given, form=form, config=Settings("low")) == "low"


def test_a_flow_without_a_store_calls_them_as_well() -> None:
    assert steps.each.compile().invoke({"numbers": [3]}).state["result"][1].number == 9


def test_results_are_encrypted_with_their_thread(form: str) -> None:
    store = MemoryStore()
    made = steps.calls if form == "sync" else steps.acalls
    app = made.compile(store=store, encryption=Keyring({"k": bytes(32)}, store="memory://"))
    assert run(app, {"name": "square", "given": Part(3, 0)}, form=form).number == 9
    with pytest.raises(NoKeyring):
        made.compile(store=store).state("t")


def test_actors_of_ray_run_steps(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the step's graph has another `run_on` than the step."""
    from milecastle.compute.ray_cluster import RayActors

    ray = FakeRay(CPU=2.0)
    ray.init()
    site = RayActors(ray, steps.needs)
    monkeypatch.setattr(calling, "site_of", {steps.needs: site}.__getitem__)
    try:
        assert call(form, "on_ray", "") == "ran"
    finally:
        site.close()


# ---- errors


def test_error_of_a_step_fails_it_as_here(form: str, tmp_path: Path) -> None:
    cause = failed(form, "raises", str(tmp_path))
    assert isinstance(cause, StepFailed)
    assert (cause.step_name, cause.error_type, cause.reason) == ("raises", "Unlucky", "number 7")
    assert isinstance(cause.__cause__, Unlucky)
    assert lines(tmp_path, "ran") == 1


def test_retry_knows_the_class_of_a_remote_error(form: str, tmp_path: Path) -> None:
    """Fails if the attempt is not sent, or errors come back as another class."""
    assert call(form, "unlucky_twice", str(tmp_path)) == 3


@pytest.mark.requirement("D3")
def test_a_killed_process_repeats_the_step_and_no_other(form: str, tmp_path: Path) -> None:
    """Fails if a step without a retry policy fails with the first lost process."""
    made = steps.twice if form == "sync" else steps.atwice
    found = run(made.compile(store=MemoryStore()), {"folder": str(tmp_path)}, form=form)
    assert found == [os.getpid(), "lived"]
    assert (lines(tmp_path, "here"), lines(tmp_path, "ran")) == (1, 2)
    keys = {(tmp_path / f"key {ran}").read_text() for ran in (1, 2)}
    assert len(keys) == 1


@pytest.mark.parametrize(("name", "times"), [("always_dies", 3), ("dies_with_a_retry", 2)])
def test_a_step_that_kills_its_process_is_not_tried_forever(
    form: str, tmp_path: Path, name: str, times: int
) -> None:
    cause = failed(form, name, str(tmp_path))
    assert isinstance(cause, StepFailed)
    assert isinstance(cause.__cause__, ProcessLost)
    assert lines(tmp_path, "ran") == times


@pytest.mark.parametrize("name", ["is_late", "is_idle"])
def test_a_step_out_of_time_is_stopped(form: str, tmp_path: Path, name: str) -> None:
    """Fails if its time is taken only by the thread that waits: its process lives on."""
    cause = failed(form, name, str(tmp_path))
    assert isinstance(cause, StepFailed)
    assert isinstance(cause.__cause__, NodeTimeout)
    assert lines(tmp_path, "ran") == 1
    wait_for_its_end(tmp_path)


@pytest.mark.parametrize("name", ["stalls", "astalls"])
def test_a_cancelled_run_stops_its_step(form: str, tmp_path: Path, name: str) -> None:
    """Fails if the wait does not look for it: it takes 600 s."""
    if form == "sync" and name == "astalls":
        pytest.skip("a sync flow has no async steps")
    cancel = threading.Event()

    def once_running() -> None:
        wait_for(lambda: lines(tmp_path, "ran") > 0)
        cancel.set()

    threading.Thread(target=once_running, daemon=True).start()
    with pytest.raises(RunCancelled):
        call(form, name, str(tmp_path), options=ExecutionOptions(cancel=cancel))
    if name == "astalls":
        wait_for(lambda: lines(tmp_path, "cancelled") == 1)
    else:
        wait_for_its_end(tmp_path)


def test_a_cancelled_call_stops_its_step(tmp_path: Path) -> None:
    """Fails if only the run's own reasons to stop are looked for."""
    app = steps.acalls.compile(store=MemoryStore())

    async def cancelled() -> None:
        given = {"name": "stalls", "given": str(tmp_path)}
        running = asyncio.ensure_future(app.ainvoke(given, thread="t"))
        await asyncio.to_thread(wait_for, lambda: lines(tmp_path, "ran") == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(wait_for_its_end, tmp_path)

    asyncio.run(cancelled())


def test_the_time_of_a_step_begins_when_it_does(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the thread that waits takes the time: the second step waits for the only process."""
    with pool_of(1) as (pool, _):
        monkeypatch.setattr(calling, "site_of", partial(_same, pool))
        threading.Thread(target=_release, args=(tmp_path,), daemon=True).start()
        made = steps.queued if form == "sync" else steps.aqueued
        app = made.compile(store=MemoryStore())
        assert run(app, {"folder": str(tmp_path)}, form=form) == ["held", "quick"]


def _release(folder: Path) -> None:
    wait_for(lambda: lines(folder, "held") == 1)
    time.sleep(4)
    (folder / "go").touch()


def test_a_run_out_of_time_stops_its_step(form: str, tmp_path: Path) -> None:
    with pytest.raises(RunTimeout):
        call(form, "stalls", str(tmp_path), options=ExecutionOptions(timeout=0.5))


@pytest.mark.requirement("D3")
def test_a_killed_driver_repeats_only_the_step_in_flight(tmp_path: Path) -> None:
    """Fails if the process of a step outlives its driver, or a recorded step runs again."""
    store = f"sqlite:///{tmp_path}/runs.db"
    module = "tests.acceptance.compute.steps"
    driver = subprocess.Popen([sys.executable, "-m", module, store, str(tmp_path)])
    wait_for(lambda: lines(tmp_path, "ran") == 1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_for_its_end(tmp_path)
    app = steps.driven.compile(store=store)
    found = app.invoke(steps.driven.input(str(tmp_path)), thread="t").state["result"]
    assert found == [driver.pid, "waited"]
    assert (lines(tmp_path, "here"), lines(tmp_path, "ran")) == (1, 2)


# ---- no crash changes the outcome


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Generator[list[Any]]:
    """The pool's processes are threads here: what they run is traced."""
    with pool_of(2) as (pool, started):
        monkeypatch.setattr(calling, "site_of", partial(_same, pool))
        yield started


@pytest.mark.requirement("D3")
def test_no_crash_changes_the_outcome_of_steps_elsewhere(form: str, in_threads: list[Any]) -> None:
    """Fails if the result is not recorded before the flow continues."""
    app = (steps.each if form == "sync" else steps.aeach).compile(store=MemoryStore())
    report = crash_everywhere(app, {"numbers": [1, 2, 3]})
    assert report.crashes > 5
    assert in_threads


# ---- what is refused


def refused(function: Callable[[], Any], kind: type[Exception], match: str) -> None:
    """Run a flow of this function: its step is refused, and not as a failure of its own."""
    with pytest.raises(ExecutionError) as caught:
        flow(function).compile(store=MemoryStore()).invoke({}, thread="t")
    assert type(caught.value.cause) is kind
    assert match in str(caught.value.cause)


def test_a_step_that_no_module_names_is_refused() -> None:
    """Fails if it is taken for a node, whose app needs a name."""
    unnamed = steps.made(lambda: 1)
    refused(lambda: unnamed(), InvalidRequest, "module, with @step(run_on")

    @step(run_on="process")
    def inner() -> None:
        """A closure."""

    refused(lambda: inner(), InvalidRequest, "module, with @step(run_on")


def test_values_that_cannot_travel_are_refused_and_not_retried(tmp_path: Path) -> None:
    """Fails if `Finished.refused` is taken for a failure of the step."""
    given: Any = object()
    refused(lambda: steps.square(given), UnserializableState, "args[0]")
    refused(lambda: steps.returns_nonsense(str(tmp_path)), UnserializableState, "result[0]")
    assert lines(tmp_path, "ran") == 1


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("once", "records its own calls"),
        ("interrupt", "records its own calls"),
        ("transaction", "records its own calls"),
        ("memory", "remove run_on="),
    ],
)
def test_calls_that_a_step_cannot_make_there_are_refused(form: str, what: str, match: str) -> None:
    cause = failed(form, "uses", what)
    assert isinstance(cause.__cause__, InvalidRequest)
    assert match in str(cause)


def test_a_sync_flow_has_no_async_step_elsewhere_either() -> None:
    """Fails if nothing compares them: there it would be awaited."""
    cause = failed("sync", "asquare", Part(1, 0))
    assert "async, too" in str(cause)


def test_impossible_options_are_refused() -> None:
    given: Any = "cloud"
    with pytest.raises(TypeError, match="run_on= takes"):
        step(run_on=given)
    with pytest.raises(TypeError, match="no idle="):
        step(timeout=Timeout(idle=1))


def test_options_of_where_a_step_runs_are_declared_and_not_called() -> None:
    """Fails if the options in place replace the declared ones: the step runs here."""
    given: Any = {"run_on": "process"}
    refused(lambda: step(steps.note, "", "x", **given), TypeError, "@step(run_on=...)")
    refused(lambda: step(steps.square, Part(1, 0), retry=3), TypeError, "@step(run_on=...)")
    refused(lambda: step(steps.here, "", **given), TypeError, "@step(run_on=...)")


def test_a_declared_step_called_in_place_runs_elsewhere() -> None:
    @flow(types=(Part,))
    def in_place() -> Any:
        return step(steps.square, Part(3, 0), name="squared")

    app = in_place.compile(store=MemoryStore())
    assert app.invoke({}, thread="t").state["result"].pid != os.getpid()
    assert "1 squared" in [entry.note for entry in app.history("t")]
