"""F3, F6: nodes that do not let their worker go, or that kill it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milecastle import App, RunFailed
from tests.every_store import Stores
from tests.process.fleet_chaos import ROOT
from tests.process.fleet_hostile import Deed, build


def worker(url: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "milecastle", "worker", "tests.process.fleet_hostile:app"]
    return subprocess.Popen(
        [*command, "--store", url, "--poll", "0.1", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_claimed(app: App[Deed], url: str) -> None:
    ends = time.monotonic() + 30
    while app.state("t").state["log"] != ["first"]:
        assert time.monotonic() < ends, url
        time.sleep(0.05)


@pytest.mark.requirement("F6")
def test_worker_process_ends_although_a_sync_node_does_not(tmp_path: Path) -> None:
    """A thread cannot be stopped, and Python waits for it: the node would go on for a minute.

    Fails without the exit in ``milecastle worker``: the process lives as long as the node.
    """
    url = Stores(tmp_path).url("sqlite")
    app = build().compile(store=url)
    app.submit({"do": "block", "log": []}, "t")
    process = worker(url, "--grace", "0.3")
    try:
        until_claimed(app, url)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert "stopped" in said
    assert app.state("t").status == "queued"
    app.close()


@pytest.mark.requirement("F3")
def test_run_that_kills_every_worker_is_held_and_the_one_beside_it_completes(
    tmp_path: Path,
) -> None:
    """Each worker dies by ``os._exit`` in the node, while a slow node runs beside it.

    Fails if ``Segments.begin`` holds nothing: the ninth worker dies as well. Without the lock
    the run beside it is held, too.
    """
    url = Stores(tmp_path).url("sqlite")
    app = build().compile(store=url)
    handles = [app.submit({"do": do, "log": []}, do) for do in ("exit", "slow")]
    deaths = 0
    process = worker(url, "--silent-after", "0.6")
    try:
        while app.state("exit").status != "failed" or app.state("slow").status != "completed":
            assert app.state("slow").status != "failed"
            if process.poll() is not None:
                assert process.returncode == 9
                deaths += 1
                assert deaths < 9
                process.communicate()
                process = worker(url, "--silent-after", "0.6")
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    assert deaths == 6
    with pytest.raises(RunFailed, match="5 workers in a row were lost") as caught:
        handles[0].result(60)
    assert (caught.value.failure_type, caught.value.node) == ("WorkersLost", "hostile")
    assert handles[1].result(60).state["log"] == ["first", "done"]
    assert app.retry("exit").status == "queued"
    app.close()
