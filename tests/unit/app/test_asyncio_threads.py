"""What our async calls do off the loop does not wait for the threads of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

from milecastle import END, START, App, StateGraph
from milecastle.compute.messages import AskReply, GraphValues
from milecastle.compute.task_server import FarPort
from milecastle.model.task import RunTask


class State(TypedDict, total=False):
    text: str


def app_of(folder: Path) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("a", lambda state: {"text": "a"})
    graph.add_edges(START, "a", END)
    return graph.compile(workspace=folder / "work")


@asynccontextmanager
async def occupied() -> AsyncGenerator[None, None]:
    """All threads of asyncio are busy, as with nodes that call ``asyncio.to_thread``."""
    free, loop = threading.Event(), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        busy = loop.run_in_executor(None, free.wait)
        try:
            yield
        finally:
            free.set()
            await busy


def while_occupied(call: Callable[[], Awaitable[Any]]) -> Any:
    async def calling() -> Any:
        async with occupied(), asyncio.timeout(30):
            return await call()

    return asyncio.run(calling())


def test_portable_files_do_not_wait_for_them(tmp_path: Path) -> None:
    """Was broken: ``asave_checkpoint`` and ``aload_checkpoint`` used ``asyncio.to_thread``."""
    app, path = app_of(tmp_path), tmp_path / "file.json"
    while_occupied(lambda: app.asave_checkpoint(path, {"text": "x"}, "a"))
    assert while_occupied(lambda: app.aload_checkpoint(path))["state"] == {"text": "x"}


def test_a_task_in_another_process_asks_its_run_without_them(tmp_path: Path) -> None:
    """Was broken: a node that had occupied them waited for itself."""
    asked: list[str] = []

    def ask(ticket: int, name: str, body: bytes) -> AskReply:
        asked.append(name)
        return AskReply(number=0)

    port = FarPort(GraphValues(app_of(tmp_path).graph), ask)
    task: Any = RunTask
    while_occupied(lambda: port.arecord(task, "mail", 1))
    assert asked == ["record"]


def test_planning_does_not_wait_for_them(tmp_path: Path) -> None:
    """Was broken: ``aplan`` used ``asyncio.to_thread``."""
    assert while_occupied(app_of(tmp_path).aplan).executed == ("a",)
