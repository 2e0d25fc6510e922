"""Runs an example of an agent library with a kill at each call: ``python -m ...agent_kills``.

Its arguments are the example, the URL of a store, and the file for the report. Each run is a new
process, forked from this one, which only imports: the libraries take seconds to import.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from milecastle import ThreadKey
from milecastle.stores.opening import find_store

Report = dict[str, Any]


class Calls:
    """Writes each call to a file before it is made; dies at one of them.

    With ``waits`` it dies only when every call before is on record.
    """

    def __init__(self, path: Path, url: str, thread: str, dies_at: int, waits: bool) -> None:
        self._path, self._where = path, (url, thread)
        self._dies_at, self._waits = dies_at, waits
        self._made = 0

    async def __call__(self, what: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")
        if self._made == self._dies_at:
            while self._waits and len(records(*self._where)) < self._dies_at:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # another task of this loop commits
            os.kill(os.getpid(), signal.SIGKILL)
        self._made += 1


def records(url: str, thread: str) -> list[str]:
    """The calls that are on record for the step at the head."""
    store = find_store(url)
    try:
        rows = [row.task for row in store.results(ThreadKey("default", thread))]
    finally:
        store.close()
    models = sum("model.request#" in row or "/model " in row for row in rows)
    tools = [found[1] for row in rows if (found := re.search(r"(?:call_tool:|/tool )(\w+)", row))]
    return sorted([*(f"model {number}" for number in range(models)), *tools])


class Processes:
    """Runs the example in one thread, each time in a new process."""

    def __init__(self, example: Any, url: str, thread: str, folder: Path) -> None:
        self._example, self._where, self._folder = example, (url, thread), folder

    def run(self, dies_at: int = -1, waits: bool = False) -> Report:
        """What was on record before, what was called, and what was returned."""
        calls, report = self._folder / "calls", self._folder / "outcome"
        calls.write_text("")
        report.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            try:
                known = records(*self._where)
                self._example.called = Calls(calls, *self._where, dies_at, waits)
                outcome = {"records": known, "returned": self._example.run(*self._where)}
                report.write_text(json.dumps(outcome))
            finally:
                os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found: Report = {"status": status, "calls": calls.read_text("utf-8").splitlines()}
        return found | (json.loads(report.read_text("utf-8")) if report.exists() else {})


def main(name: str, url: str, report: str) -> None:
    """The undisturbed run, then a kill at each of its calls, with and without waiting."""
    example = import_module(f"examples.{name}")
    folder = Path(report).parent
    whole = Processes(example, url, "whole", folder).run()
    kills: list[list[Report]] = []
    for dies_at in range(len(whole["calls"])):
        for waits in (False, True) if "MILECASTLE_AGENT_KILLS" in os.environ else (True,):
            process = Processes(example, url, f"{dies_at}-{waits}", folder)
            killed = process.run(dies_at, waits)
            kills.append([killed | {"at": dies_at, "waits": waits}, process.run(), process.run()])
    Path(report).write_text(json.dumps({"whole": whole, "kills": kills}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
