"""Disturbs a fleet of real worker processes, and judges how every run ended.

Workers are killed with SIGKILL, stopped for longer than their heartbeat may be late and continued,
told to drain, or their clocks jump; each that is gone is replaced. Their hints are lost, late and
doubled (``fleet_worker.py``). Workers in network namespaces of their own are cut off from the
server, by a packet filter. What happens to the server is up to the caller.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from milecastle import App, Conflict, InvalidRequest, ResumeRefused, StoreError, open_store
from tests.process.fleet_graphs import Trip, build, end, start

SILENT = 2.0
ROOT = Path(__file__).parents[2]


class Outcome(msgspec.Struct):
    """What became of the runs: each must have ended as the model says."""

    runs: int
    wrong: list[str] = []
    left: list[str] = []
    faults: int = 0
    late: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.wrong and not self.left


def can_isolate() -> bool:
    """Whether processes can have a network, and a packet filter, of their own here."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "nft"))):
        return False
    tried = ["unshare", "-n", "nft", "add table inet cut"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


class Fleet:
    """Worker processes on one store. ``cheat`` is the name of a way to work wrongly.

    ``relay`` (``PORT:SOCKET``) puts each into a network of its own, in which a relay leads from
    the port to the socket of the server. ``variables`` are added to their environment,
    ``words`` to their command lines.
    """

    def __init__(
        self,
        url: str,
        size: int,
        folder: Path,
        cheat: str = "",
        app: str = "tests.process.fleet_graphs:app",
        *,
        silent: float = SILENT,
        grace: float = 3.0,
        relay: str = "",
        variables: Mapping[str, str] | None = None,
        words: Sequence[str] = (),
    ) -> None:
        self._url = url
        self._folder = folder
        self._cheat = cheat
        self._app = app
        self._words = ["--poll", "0.2", "--silent-after", str(silent), "--grace", str(grace)]
        self._words += words
        self._relay = relay
        self._variables = {**(variables or {}), "MILECASTLE_TEST_RELAY": relay}
        self._started = 0
        self._logs: dict[int, Path] = {}
        self.faults = [self._kill, self._kill, self._stop, self._drain, self._jump]
        if relay:
            self.faults += [self._cut_off, self._cut_off]
        self.processes: list[subprocess.Popen[bytes]] = [self.start() for _ in range(size)]

    def start(self) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        self._started += 1
        program = [sys.executable, "-m", "tests.process.fleet_worker", self._cheat or "honest"]
        words = [self._app, "--store", self._url, *self._words]
        path = self._folder / f"worker-{self._started}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [*(["unshare", "-n"] if self._relay else []), *program, *words],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._variables},
            )
        self._logs[process.pid] = path
        return process

    def supervise(self) -> list[str]:
        """Start again what ended by itself; what of it had another reason than its first connect.

        A worker that cannot reach its store when it starts ends, and whoever started it starts it
        again. One that had started waits for the store instead. A signal to set the clock ends a
        process that does not know it yet.
        """
        wrong: list[str] = []
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                said = self._logs[process.pid].read_text("utf-8")
                is_early = process.returncode == -signal.SIGUSR1 or "[MC403]" in said
                if not is_early or "cannot claim" in said:
                    wrong.append(f"worker {process.pid} ended by itself: {said[-2000:]}")
                self.processes[number] = self.start()
        return wrong

    def disturb(self, chance: random.Random) -> None:
        """Do something bad to one worker, and replace it if it is gone."""
        number = chance.randrange(len(self.processes))
        process = self.processes[number]
        fault = chance.choice(self.faults)
        print(f"worker {process.pid}: {fault.__name__}")
        fault(process)
        if process.poll() is not None:
            self.processes[number] = self.start()

    def kill(self, number: int = 0) -> None:
        """Kill a worker with SIGKILL, and replace it."""
        self._kill(self.processes[number])
        self.processes[number] = self.start()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(SILENT + 1.0)
        process.send_signal(signal.SIGCONT)

    def _jump(self, process: subprocess.Popen[bytes]) -> None:
        """The clock of its machine is set."""
        process.send_signal(signal.SIGUSR1)

    def _cut_off(self, process: subprocess.Popen[bytes]) -> None:
        """For longer than its heartbeat may be late, nothing that it sends arrives."""
        port = self._relay.partition(":")[0]
        self._filter(process, "add table inet cut")
        chain = "{ type filter hook input priority 0; policy accept; }"
        self._filter(process, f"add chain inet cut lost {chain}")
        for side in ("sport", "dport"):
            self._filter(process, f"add rule inet cut lost tcp {side} {port} drop")
        time.sleep(SILENT + 1.0)
        self._filter(process, "delete table inet cut")

    def _filter(self, process: subprocess.Popen[bytes], rule: str) -> None:
        words = ["nsenter", "-t", str(process.pid), "-n", "nft", rule]
        subprocess.run(words, check=process.poll() is None, capture_output=True)

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise AssertionError("a worker did not drain") from None

    def end(self) -> None:
        """End every worker."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def logs(self) -> str:
        """What the workers said, for a failing test."""
        return "\n".join(path.read_text("utf-8")[-2000:] for path in self._folder.glob("*.log"))


def disturbed(
    url: str,
    folder: Path,
    *,
    seed: int,
    runs: int,
    rounds: int,
    workers: int = 3,
    cheat: str = "",
    also: Sequence[Callable[[], None]] = (),
    relay: str = "",
    patience: float = 60.0,
) -> Outcome:
    """Submit runs, disturb the fleet ``rounds`` times, and judge what is there in the end.

    A single worker is killed whenever it has a thread. ``also`` are further faults, one of which
    happens in each round. ``patience`` is how many
    seconds after the last fault everything must have ended.
    """
    chance, outcome = random.Random(seed), Outcome(runs=runs)
    app = build().compile(store=open_store(url))
    fleet = Fleet(url, workers, folder, cheat, relay=relay)
    names = [f"run {number}" for number in range(runs)]
    try:
        for number, name in enumerate(names):
            _insistently(partial(app.submit, start(number), name))
        for _ in range(rounds):
            _answer_for(app, chance.uniform(0.2, 1.0))
            outcome.wrong += fleet.supervise()
            if workers == 1:
                _until_claimed(app)
                fleet.kill()
            else:
                fleet.disturb(chance)
            if also:
                chance.choice(also)()
            outcome.faults += 1
        quiet = time.monotonic()
        while time.monotonic() - quiet < patience and _unfinished(app):
            outcome.wrong += fleet.supervise()
            _answer_for(app, 0.2)
        outcome.late = round(time.monotonic() - quiet, 2)
        _judge(app, names, outcome)
    finally:
        fleet.end()
        app.close()
    if not outcome.is_good:
        print(fleet.logs())
    return outcome


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _until_claimed(app: App[Trip]) -> None:
    """Wait until a worker has a thread, unless everything has ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _unfinished(app):
        if any(info.worker for info in app.threads()):
            return
        _answer_for(app, 0.01)


def _unfinished(app: App[Trip]) -> list[str]:
    found: list[str] = []

    def look() -> None:
        found[:] = [info.key.thread for info in app.threads() if info.status != "completed"]

    _insistently(look)
    return found


def _answer_for(app: App[Trip], seconds: float) -> None:
    """Answer every question that is open, for some time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        waiting: list[str] = []

        def look(waiting: list[str] = waiting) -> None:
            waiting[:] = [info.key.thread for info in app.threads(status="interrupted")]

        _insistently(look)
        for name in waiting:
            try:
                app.answer(name, "yes")
            except (Conflict, InvalidRequest, ResumeRefused):
                continue  # another answer, or another run, was faster
            except StoreError:
                break
        time.sleep(0.05)


def _insistently(function: Callable[[], object]) -> None:
    """Call again while the store cannot be reached."""
    deadline = time.monotonic() + 30
    while True:
        try:
            function()
        except Conflict:
            raise
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _judge(app: App[Trip], names: Sequence[str], outcome: Outcome) -> None:
    for number, name in enumerate(names):
        snapshot = app.state(name)
        if snapshot.status != "completed":
            info = app.store.thread(snapshot.key)
            outcome.left.append(f"{name}: {snapshot.status}, next {snapshot.next}, {info}")
        elif dict(snapshot.state) != end(number):
            outcome.wrong.append(f"{name}: {snapshot.state}")
        for run in app.store.runs(snapshot.key):
            if run.status not in ("completed", "superseded"):
                outcome.wrong.append(f"{name}: a run was left as '{run.status}'")
