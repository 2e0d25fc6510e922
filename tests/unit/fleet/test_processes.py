"""The parent of several worker processes, with small programs in place of workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from milecastle.fleet import processes
from milecastle.fleet.processes import Processes, Seat, take_seat
from milecastle.fleet.worker import Worker
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK, line, note, until

PLACE = "MILECASTLE_WORKER_PROCESS"
BEGIN = f"""
import os, pathlib, signal, socket, sys, time
number, descriptor = os.environ["{PLACE}"].split(":")
parent = socket.socket(fileno=int(descriptor))
lives = pathlib.Path(sys.argv[1]) / number
lives.open("a").write(f"{{os.getpid()}}\\n")
count = len(lives.read_text().splitlines())
"""
SERVE = "parent.send(b's')\nparent.recv(1)\n"


def lives(folder: Path, number: int = 0) -> list[int]:
    """The process ids that the process of a number has had."""
    place = folder / str(number)
    return list(map(int, place.read_text().splitlines())) if place.exists() else []


def parent_of(folder: Path, program: str, count: int = 1) -> Processes:
    return Processes(count, [sys.executable, "-c", BEGIN + program, str(folder)])


def test_processes_are_restarted_and_end_when_the_parent_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two lives of each end at once. Fails if an ended process is left out."""
    monkeypatch.setattr(processes, "_SHORTEST", 0.01)
    program = "parent.send(b's')\nif count < 3: sys.exit(count)\nparent.recv(1)\n"

    async def use() -> int:
        running = asyncio.create_task(parent_of(tmp_path, program, 2).run())

        async def thrice() -> bool:
            return all(len(lives(tmp_path, number)) == 3 for number in (0, 1))

        await until(thrice, 30)
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    assert asyncio.run(use()) == 0


def test_the_delay_before_a_restart_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if each restart waits as long as the first; a signal ends the longest wait."""
    monkeypatch.setattr(processes, "_SHORTEST", 0.01)
    caplog.set_level(logging.ERROR, "milecastle.fleet")

    async def use() -> int:
        running = asyncio.create_task(parent_of(tmp_path, "parent.send(b's')\n").run())

        async def often() -> bool:
            return len(caplog.records) >= 4

        await until(often, 30)
        os.kill(os.getpid(), signal.SIGINT)
        return await running

    assert asyncio.run(use()) == 0
    waits = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert waits[:4] == [0.01, 0.02, 0.04, 0.08]


@pytest.mark.parametrize(
    ("program", "code"),
    [("sys.exit(7)", 7), ("sys.exit(0)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_the_parent_gives_up_if_nothing_ever_served(
    tmp_path: Path, program: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are told to drain. Fails if it is restarted: this would not end."""
    other = f"if number == '0': {program}\nparent.recv(1)\n"

    async def use() -> int:
        async with asyncio.timeout(30):
            return await parent_of(tmp_path, other, 2).run()

    assert asyncio.run(use()) == code
    assert "before any had served" in caplog.text
    assert len(lives(tmp_path)) == 1


def test_a_second_signal_ends_processes_that_do_not_drain(tmp_path: Path) -> None:
    """Fails if it is only passed on as the first was: the program sleeps for a minute."""

    async def use() -> int:
        program = "parent.recv(1)\nlives.write_text('1\\n2')\ntime.sleep(60)\n"
        running = asyncio.create_task(parent_of(tmp_path, program).run())

        async def serves() -> bool:
            return len(lives(tmp_path)) == 1

        async def drains() -> bool:
            return len(lives(tmp_path)) == 2

        await until(serves, 30)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(drains, 30)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(30):
            return await running

    assert asyncio.run(use()) == 128 + signal.SIGTERM


def test_a_process_drains_when_its_parent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said before that it serves. Fails without the watch: it would serve forever."""
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(PLACE, f"3:{theirs.detach()}")
    seat = take_seat()
    assert isinstance(seat, Seat)
    assert seat.number == 3
    assert take_seat() is None
    worker = Worker([line(MemoryStore(), ("a", note("a")))], QUICK)

    async def use() -> None:
        running = asyncio.create_task(seat.serve(worker))
        ours.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(ours, 9) == b"s"
        ours.close()
        async with asyncio.timeout(30):
            await running

    asyncio.run(use())


def test_signals_to_a_process_drain_it_however_many_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a service manager signals parent and processes. Fails if the second one ends it."""
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(PLACE, f"0:{theirs.detach()}")
    seat = take_seat()
    assert seat is not None
    worker = Worker([line(MemoryStore(), ("a", note("a")))], QUICK)

    async def use() -> None:
        running = asyncio.create_task(seat.serve(worker))
        await worker.entered.wait()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(30):
            await running

    with ours:
        asyncio.run(use())
