"""Run tests in several processes that share one collection: ``pytest -p tests.pool --pool 6``.

Each process of xdist collects every test for itself: 20 seconds of processor time, 40 if traced.
Here one process collects and forks the others. They take chunks of neighbouring tests from a pipe
and send their reports back. A test whose process dies has failed; the others run elsewhere.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import pytest

from tests.seeds import first_seed

CHUNK = 8
"""How many neighbouring tests a process takes at once, if they do not share a fixture."""
WIDTH = 4
WRITE = os.write
"""A test may replace that of the module."""
DONE = {"done": True}
"""The last message of a process."""
LOCAL = ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin")
"""Plugins of pytest that show or store what all processes found."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pool", type=int, default=0, help="run tests in this many processes")
    parser.addoption("--one-in", type=int, default=1, help="run one test in so many: the commit's")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests to other commits."""
    one_in: Any = config.getoption("one_in")
    if one_in > 1:
        chosen = items[first_seed() % one_in :: one_in]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Write no more bytecode: tests write modules faster than a cache of bytecode sees."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Literal[True] | None:
    processes: Any = session.config.getoption("pool")
    if not processes or session.config.option.collectonly or session.testsfailed:
        return None
    vars(session.config)["_tmp_path_factory"].getbasetemp()  # one for all
    left = list(range(len(session.items)))
    while left:
        left = Round(session, left).run(processes)
    return True


class Round:
    """Run these tests once; what a dead process had taken is left for the next round."""

    def __init__(self, session: pytest.Session, left: Sequence[int]) -> None:
        self._session = session
        self._left = dict.fromkeys(left)
        self._chunks = self._in_turn(left)
        self._running: dict[int, int] = {}

    def _in_turn(self, left: Sequence[int]) -> list[Sequence[int]]:
        """Let folders take turns: tests that wait then run beside those that compute."""
        folders: dict[Path, list[Sequence[int]]] = defaultdict(list)
        for path, module in groupby(left, lambda at: self._session.items[at].path):
            tests = list(module)
            size = len(tests) if any(map(self._shares, tests)) else CHUNK
            folders[path.parent] += [tests[at : at + size] for at in range(0, len(tests), size)]
        shares = [
            (at / len(some), chunk) for some in folders.values() for at, chunk in enumerate(some)
        ]
        return [chunk for _, chunk in sorted(shares)]

    def _shares(self, at: int) -> bool:
        """True if a test uses a fixture of its module, as a browser and its server are."""
        info: Any = vars(self._session.items[at])["_fixtureinfo"]
        used = [defined[-1] for defined in info.name2fixturedefs.values()]
        return any(fixture.scope == "module" for fixture in used)

    def run(self, processes: int) -> list[int]:
        """Return what is left: nothing, unless a process died."""
        numbers, source = os.pipe()
        with selectors.DefaultSelector() as selector:
            for number in range(min(processes, len(self._chunks))):
                pid, reports = self._fork(number, numbers, source)
                selector.register(reports, selectors.EVENT_READ, Reading(pid, reports))
            os.close(numbers)
            self._offer(selector, source)
        return list(self._left)

    def _offer(self, selector: selectors.BaseSelector, source: int) -> None:
        """Write the numbers of chunks as fast as processes take them, and read reports."""
        os.set_blocking(source, False)
        offered = b"".join(at.to_bytes(WIDTH, "big") for at in range(len(self._chunks)))
        selector.register(source, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select():
                reading: Reading | None = key.data
                if reading:
                    if not self._receive(reading):
                        selector.unregister(key.fd)
                        os.close(key.fd)
                    continue
                try:
                    offered = offered[os.write(source, offered[:512]) :]
                except BrokenPipeError:
                    offered = b""
                if not offered:
                    selector.unregister(source)
                    os.close(source)

    def _receive(self, reading: Reading) -> bool:
        """Take what a process sent; false if it has ended."""
        data = os.read(reading.pipe, 1 << 16)
        *lines, reading.rest = (reading.rest + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            self._take(reading.pid, message)
        # What a test forked and left may hold the pipe open.
        has_ended = not data or messages[-1:] == [DONE]
        if has_ended:
            _, status = os.waitpid(reading.pid, 0)
            self._bury(reading.pid, os.waitstatus_to_exitcode(status))
        return not has_ended

    def _take(self, pid: int, message: dict[str, Any]) -> None:
        hook, config = self._session.config.hook, self._session.config
        if "began" in message:
            self._running[pid] = message["began"]
        elif "ended" in message:
            del self._left[self._running.pop(pid)]
        elif "report" in message:
            found: dict[str, Any] = message["report"]
            reason: Any = found["longrepr"]
            if not isinstance(reason, str | dict | None):  # a list: why a test is skipped
                found["longrepr"] = tuple(reason)
            report = hook.pytest_report_from_serializable(config=config, data=found)
            hook.pytest_runtest_logreport(report=report)

    def _bury(self, pid: int, code: int) -> None:
        """Report the test in which a process died as failed."""
        if pid not in self._running:
            assert code == 0, f"a process of the pool ended with {code} outside of a test"
            return
        at = self._running.pop(pid)
        item = self._session.items[at]
        del self._left[at]
        why = f"the process that ran this test ended with {code}"
        died = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        self._session.config.hook.pytest_runtest_logreport(report=died)

    def _fork(self, number: int, numbers: int, source: int) -> tuple[int, int]:
        reports, sent = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(sent)
            return pid, reports
        code = 1
        try:
            # What was registered before is the business of the first process.
            atexit._clear()  # pyright: ignore[reportPrivateUsage]
            os.close(source)
            os.close(reports)
            Process(self._session, self._chunks, number, sent).run(numbers)
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
            code = 0
        finally:
            os._exit(code)


class Reading:
    """The reports of a process, and a part of a line that has no end yet."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe, self.rest = pid, pipe, b""


class Process:
    """A forked process: it runs tests and sends reports."""

    def __init__(
        self, session: pytest.Session, chunks: Sequence[Sequence[int]], number: int, sent: int
    ) -> None:
        self._session = session
        self._chunks = chunks
        self._number = number
        self._sent = sent

    def run(self, numbers: int) -> None:
        """Run what is taken from the pipe until it is empty."""
        session, config = self._session, self._session.config
        for name in LOCAL:
            if plugin := config.pluginmanager.getplugin(name):
                config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(self)
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        capturing = capture._global_capturing
        for stream in (capturing.out, capturing.err):  # the files are those of all processes
            with TemporaryFile() as own:  # what was imported may have kept the objects
                os.dup2(own.fileno(), stream.tmpfile.fileno())
        os.environ["PYTEST_XDIST_WORKER"] = f"process{self._number}-{os.getpid()}"
        temporary: Any = vars(config)["_tmp_path_factory"]
        temporary._basetemp = temporary.mktemp(f"process{os.getpid()}", numbered=False)
        taken = self._taken(numbers)
        at = next(taken, None)
        while at is not None:
            after = next(taken, None)
            self._send({"began": at})
            following = None if after is None else session.items[after]
            item = session.items[at]
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._send({"ended": at})
            at = after
        config.hook.pytest_sessionfinish(session=session, exitstatus=0)
        self._send(DONE)

    def _taken(self, numbers: int) -> Iterator[int]:
        while number := os.read(numbers, WIDTH):
            yield from self._chunks[int.from_bytes(number, "big")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._send({"report": data})

    def _send(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[WRITE(self._sent, data) :]
