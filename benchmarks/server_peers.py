"""The same actions on our server, LangGraph's development server and Prefect's, in turn.

Not in CI: the peers come from environments of their own, because their pins are not ours.

    python -m venv /tmp/lg && /tmp/lg/bin/pip install "langgraph-cli[inmem]"
    python -m venv /tmp/pf && /tmp/pf/bin/pip install prefect
    python -m benchmarks.server_peers --langgraph /tmp/lg/bin --prefect /tmp/pf/bin

Each server is started as its documentation says, on loopback, with what it stores by default: ours
and Prefect's in SQLite, LangGraph's in memory. Actions, each the median of all rounds in ms:

- ``run``: start a run of one node and wait for its result. Prefect has no request that waits: its
  run is asked for every 50 ms. Its runs are processes, those of the others are not.
- ``list``: 100 of 1,000 threads; of Prefect, runs.
- ``state``: the state of a thread of 100 steps. Prefect stores no state of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx

Actions = Mapping[str, Callable[[], Any]]

THREADS, STEPS, ROUNDS, LIMIT = 1000, 100, 15, 240.0

NODES = """
from typing import TypedDict
class Count(TypedDict):
    n: int
    steps: int
def count(state: Count) -> dict:
    return {"n": state["n"] + 1}
def what_next(state: Count) -> str:
    return "count" if state["n"] < state["steps"] else "end"
"""
OURS = """
from milecastle import END, START, ExecutionConfig, StateGraph
graph = StateGraph(Count, name="count")
graph = graph.with_default_config(ExecutionConfig(max_steps=1000))
graph.add_node("count", count)
graph.add_edges(START, "count")
graph.add_conditional_edges("count", what_next, {"count": "count", "end": END})
"""
LANGGRAPH = """
from langgraph.graph import END, START, StateGraph
builder = StateGraph(Count)
builder.add_node("count", count)
builder.add_edge(START, "count")
builder.add_conditional_edges("count", what_next, {"count": "count", "end": END})
graph = builder.compile()
"""
PREFECT = """
from prefect import flow
@flow(log_prints=False)
def count(n: int) -> int:
    return n + 1
if __name__ == "__main__":
    count.serve(name="bench")
"""


@contextmanager
def started(command: list[str], folder: Path, **environment: str) -> Generator[Path, None, None]:
    """A process in a folder, with a file of what it prints; it is ended with the block."""
    log = folder / f"{Path(command[0]).name}-{len(list(folder.iterdir()))}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=file, stderr=file
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(LIMIT)


def until(condition: Callable[[], Any], every: float = 0.2) -> Any:
    """What a condition returns once it is true."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except httpx.HTTPError:
            pass
        time.sleep(every)
    raise AssertionError("it takes too long")


def asked(client: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    """The answer to a request, which must succeed."""
    answer = client.request(method, path, json=body)
    answer.raise_for_status()
    return answer.json()


@contextmanager
def milecastle(folder: Path) -> Generator[Actions, None, None]:
    """Our server."""
    folder.joinpath("flow.py").write_text(NODES + OURS, encoding="utf-8")
    store = "--store=sqlite:///runs.db"
    command = [sys.executable, "-m", "milecastle", "serve", "flow:graph", store, "--port=0"]
    with started(command, folder) as log:
        found = until(lambda: re.search(r"(http://\S+?/)\?token=(\S+)", log.read_text("utf-8")))
        headers = {"Authorization": f"Bearer {found[2]}"}
        with httpx.Client(base_url=found[1], headers=headers, timeout=LIMIT) as client:
            until(lambda: client.get("/readyz").status_code == 200)

            def run(name: str, steps: int = 1, wait: int = 60) -> Any:
                body = {"input": {"n": 0, "steps": steps}, "again": True}
                done = asked(client, "POST", f"/v1/threads/{name}/runs?wait={wait}", body)
                assert not wait or done["state"]["n"] == steps
                return done

            def unfinished(status: str) -> Any:
                return asked(client, "GET", f"/v1/runs?status={status}&limit=1")["runs"]

            for number in range(THREADS - 1):
                run(f"t{number}", wait=0)
            run("long", STEPS)
            until(lambda: not any(map(unfinished, ("queued", "running"))))
            yield {
                "run": lambda: run("t0"),
                "list": lambda: asked(client, "GET", "/v1/threads?limit=100"),
                "state": lambda: asked(client, "GET", "/v1/threads/long"),
            }


@contextmanager
def langgraph(folder: Path, binaries: Path) -> Generator[Actions, None, None]:
    """LangGraph's development server."""
    folder.joinpath("flow.py").write_text(NODES + LANGGRAPH, encoding="utf-8")
    known = {"dependencies": ["."], "graphs": {"count": "./flow.py:graph"}}
    folder.joinpath("langgraph.json").write_text(json.dumps(known), encoding="utf-8")
    command = [str(binaries / "langgraph"), "dev", "--no-browser", "--no-reload", "--port=21231"]
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    with (
        started(command, folder, PATH=path, PYTHONPATH="", LANGSMITH_TRACING="false"),
        httpx.Client(base_url="http://127.0.0.1:21231", timeout=LIMIT) as client,
    ):
        until(lambda: client.get("/ok").status_code == 200)
        threads = [asked(client, "POST", "/threads", {})["thread_id"] for _ in range(THREADS)]

        def run(thread: str, steps: int = 1) -> Any:
            body = {
                "assistant_id": "count",
                "input": {"n": 0, "steps": steps},
                "config": {"recursion_limit": 2 * STEPS},
            }
            done = asked(client, "POST", f"/threads/{thread}/runs/wait", body)
            assert done["n"] == steps
            return done

        run(threads[1], STEPS)
        yield {
            "run": lambda: run(threads[0]),
            "list": lambda: asked(client, "POST", "/threads/search", {"limit": 100}),
            "state": lambda: asked(client, "GET", f"/threads/{threads[1]}/state"),
        }


@contextmanager
def prefect(folder: Path, binaries: Path) -> Generator[Actions, None, None]:
    """Prefect's server, and a process that serves a flow."""
    folder.joinpath("flow.py").write_text(PREFECT, encoding="utf-8")
    url = "http://127.0.0.1:21232/api"
    settings = {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": "",
    }
    server = [str(binaries / "prefect"), "server", "start", "--port=21232"]
    with (
        started(server, folder, **settings),
        httpx.Client(base_url=url, timeout=LIMIT) as client,
        ExitStack() as stack,
    ):
        until(lambda: client.get("/health").status_code == 200)
        stack.enter_context(started([str(binaries / "python"), "flow.py"], folder, **settings))
        named = "/deployments/name/count/bench"
        deployment = until(lambda: (one := client.get(named)).status_code == 200 and one.json())
        for _ in range(THREADS):
            asked(client, "POST", "/flow_runs/", {"flow_id": deployment["flow_id"]})

        def run() -> None:
            path = f"/deployments/{deployment['id']}/create_flow_run"
            id = asked(client, "POST", path, {"parameters": {"n": 0}})["id"]
            place = f"/flow_runs/{id}"
            until(lambda: asked(client, "GET", place)["state_type"] == "COMPLETED", 0.05)

        yield {
            "run": run,
            "list": lambda: asked(client, "POST", "/flow_runs/filter", {"limit": 100}),
        }


def measure(servers: Mapping[str, Actions], rounds: int) -> dict[str, dict[str, float]]:
    """The median of each action in ms, each server in turn."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
    for action in ("run", "list", "state"):
        for number in range(rounds + 1):
            for name, actions in servers.items():
                if action not in actions:
                    continue
                begun = time.perf_counter()
                actions[action]()
                if number:  # the first warms up
                    taken = 1000 * (time.perf_counter() - begun)
                    times[name].setdefault(action, []).append(taken)
    return {
        name: {action: round(median(taken), 1) for action, taken in of_server.items()}
        for name, of_server in times.items()
    }


def main() -> None:
    """Measure the servers that were named, and ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--langgraph", type=Path)
    parser.add_argument("--prefect", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    with ExitStack() as stack:

        def folder(name: str) -> Path:
            made = Path(stack.enter_context(TemporaryDirectory()), name)
            made.mkdir()
            return made

        servers = {"milecastle": stack.enter_context(milecastle(folder("ours")))}
        if given.langgraph:
            found = langgraph(folder("langgraph"), given.langgraph)
            servers["langgraph"] = stack.enter_context(found)
        if given.prefect:
            servers["prefect"] = stack.enter_context(prefect(folder("prefect"), given.prefect))
        print(json.dumps(measure(servers, given.rounds), indent=2))


if __name__ == "__main__":
    main()
