"""Steps of flows that run in other processes, which import this module to find them.

``python -m tests.acceptance.compute.steps STORE FOLDER`` runs a flow of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milecastle import Context, Ray, Retry, Timeout, current, flow, gather, interrupt, step
from tests.acceptance.compute.graphs import Unlucky


@dataclass
class Part:
    """A type that only the steps' annotations name."""

    number: int
    pid: int


@dataclass
class Settings:
    """The config of a flow."""

    tone: str


def note(folder: str, what: str) -> int:
    """Write a line that outlasts the process; how many lines of it there are."""
    path = Path(folder, what)
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(path.read_text().splitlines())


@step
def here(folder: str) -> int:
    note(folder, "here")
    return os.getpid()


@step(run_on="process")
def square(part: Part, *more: int, times: int = 1) -> Part:
    return Part(part.number**2 * times + sum(more), os.getpid())


@step(run_on="process")
async def asquare(part: Part) -> Part:
    await asyncio.sleep(0)
    return Part(part.number**2, os.getpid())


@step(run_on="process")
def raises(folder: str) -> None:
    note(folder, "ran")
    raise Unlucky(7)


@step(run_on="process", retry=Retry(attempts=3, delay=0.0, on=Unlucky))
def unlucky_twice(folder: str) -> int:
    if note(folder, "ran") < 3:
        raise Unlucky(7)
    return current().attempt


@step(run_on="process")
def dies_once(folder: str) -> str:
    ran = note(folder, "ran")
    Path(folder, f"key {ran}").write_text(current().idempotency_key)
    if ran == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


@step(run_on="process")
def always_dies(folder: str) -> None:
    note(folder, "ran")
    os.kill(os.getpid(), signal.SIGKILL)


@step(run_on="process", retry=Retry(attempts=2, delay=0.0, on=ZeroDivisionError))
def dies_with_a_retry(folder: str) -> None:
    note(folder, "ran")
    os.kill(os.getpid(), signal.SIGKILL)


@step(run_on="process")
def stalls(folder: str) -> None:
    note(folder, "ran")
    time.sleep(600)


@step(run_on="process", timeout=1.0)
def is_late(folder: str) -> None:
    note(folder, "ran")
    time.sleep(600)


@step(run_on="process", timeout=Timeout(idle=1.0))
def is_idle(folder: str) -> None:
    note(folder, "ran")
    time.sleep(600)


@step(run_on="process")
async def astalls(folder: str) -> None:
    note(folder, "ran")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(folder, "cancelled")
        raise


@step(run_on="process")
def holds(folder: str) -> str:
    note(folder, "held")
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "held"


@step(run_on="process", timeout=3)
def quick(folder: str) -> str:
    return "quick"


@step
def once_held(folder: str) -> None:
    while not Path(folder, "held").exists():
        time.sleep(0.01)


@step(run_on="process")
def tells(folder: str) -> list[Any]:
    """What a step may use of its context."""
    ctx = current()
    for number in range(100):
        ctx.emit(number)
    ctx.heartbeat()
    return [ctx.node, ctx.task, ctx.call, ctx.attempt, ctx.idempotency_key, os.getpid()]


@step
def tells_here(folder: str) -> list[Any]:
    return tells(folder)  # an ordinary function inside a step


def _once(ctx: Context) -> None:
    ctx.once("name", os.getpid)


def _transaction(ctx: Context) -> None:
    ctx.transaction("name", print)


def _memory(ctx: Context) -> None:
    ctx.memory.put(("notes",), "key", {"n": 1})


def _interrupt(ctx: Context) -> None:
    interrupt("How many?", answer=int)


REFUSED: dict[str, Callable[[Context], None]] = {
    "once": _once,
    "transaction": _transaction,
    "memory": _memory,
    "interrupt": _interrupt,
}


@step(run_on="process")
def uses(what: str) -> None:
    REFUSED[what](current())


@step(run_on="process")
def returns_nonsense(folder: str) -> Any:
    note(folder, "ran")
    return [object()]


@step(run_on="process")
def tone(folder: str) -> str:
    return str(current().config["tone"])


@step(run_on="process")
def tone_of(settings: Settings | None) -> str:
    config: Any = current().config
    return f"{config.tone}"


needs = Ray(num_cpus=0.5)


@step(run_on=needs)
def on_ray(folder: str) -> str:
    return "ran"


def made(function: Callable[..., Any]) -> Any:
    """A step that no module has."""
    return step(run_on="process")(function)


# -- flows ------------------------------------------------------------------------------------


def awaited(function: Any) -> Any:
    """A plain step, for an async flow."""
    return function


@flow(name="calls", types=(Part,))
def calls(name: str, given: Any) -> Any:
    """Call one of the steps."""
    return globals()[name](given)


@flow(name="calls", types=(Part,))
async def acalls(name: str, given: Any) -> Any:
    return await globals()[name](given)


@flow(name="each")
def each(numbers: list[int]) -> list[Part]:
    found = [square(Part(2, 0), 1, 2, times=10)]
    found += gather(*(lambda n=n: square(Part(n, 0)) for n in numbers))
    return found


@flow(name="each")
async def aeach(numbers: list[int]) -> list[Part]:
    found = [await awaited(square)(Part(2, 0), 1, 2, times=10)]
    found += await gather(*(asquare(Part(n, 0)) for n in numbers))
    return found


@flow(name="twice")
def twice(folder: str) -> list[Any]:
    return [here(folder), dies_once(folder)]


@flow(name="twice")
async def atwice(folder: str) -> list[Any]:
    return [await awaited(here)(folder), await awaited(dies_once)(folder)]


def _behind(folder: str) -> str:
    once_held(folder)
    return quick(folder)


async def _abehind(folder: str) -> str:
    await awaited(once_held)(folder)
    found: str = await awaited(quick)(folder)
    return found


@flow(name="queued")
def queued(folder: str) -> list[str]:
    found: list[str] = gather(lambda: holds(folder), lambda: _behind(folder))
    return found


@flow(name="queued")
async def aqueued(folder: str) -> list[str]:
    found: list[str] = await gather(awaited(holds)(folder), _abehind(folder))
    return found


@step(run_on="process")
def waits(folder: str) -> str:
    """Wait for the test, the first time."""
    if note(folder, "ran") == 1:
        time.sleep(600)
    return "waited"


@flow
def driven(folder: str) -> list[Any]:
    return [here(folder), waits(folder)]


def main(store: str, folder: str) -> None:
    """Run a flow until this process is killed."""
    driven.compile(store=store).invoke(driven.input(folder), thread="t")


if __name__ == "__main__":
    from tests.acceptance.compute import steps

    steps.main(*sys.argv[1:])
