"""``milecastle demo``: a run killed and resumed, in a temporary folder.

Rules:

- Each printed command is run, as a process, and what is printed below it is its output.
  ``kill -9`` is what ``Popen.kill`` does.
- What is said of the two processes is what they printed. If it is not what it should be, the demo
  fails.
- It ends without being told to, unless a person is at a terminal and the web view is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Final

import click

from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.cli.verb import verb
from milecastle.cli.verbs.init import RUN_ORDER, write_project
from milecastle.errors import InvalidRequest
from milecastle.views.documents import DemoDocument

_LIMIT: Final = 600
"""Seconds after which a command that hangs is killed; and for which the carrier of the order lets
the node wait that is killed: far longer than a slow machine takes to get there."""

_NODES: Final = ("price", "charge", "ship")
_KILLED: Final = _NODES[-1]
_NEXT: Final = (
    "next:",
    "  milecastle init orders   writes this project: the graph, its tests, its settings",
    "  milecastle --help        lists what else can be done with a thread",
    "read next:",
    "  the README and the tutorial of the project",
)


@click.command("demo")
@click.option("--no-browser", is_flag=True, help="End without opening the web view.")
@verb
def command(session: Session, no_browser: bool) -> None:
    """Kill a run in the middle and resume it, in a temporary folder.

    At a terminal it then opens the web view, if the extra serve is installed, until Ctrl-C.
    """
    with TemporaryDirectory(prefix="milecastle-demo-") as folder:
        shell = DemoShell(folder, quiet=session.as_json)
        document = _kill_and_resume(shell)
        if session.as_json:
            print_document(document)
        elif not no_browser and _has_web_view() and sys.stdin.isatty() and sys.stdout.isatty():
            shell.watch("milecastle dev")
        shell.say("", *_NEXT)


def _kill_and_resume(shell: DemoShell) -> DemoDocument:
    write_project(Path(shell.folder))
    shell.say(f"A run is killed in the middle, and resumed. {shell.folder} has the code.")
    slow = json.dumps({"carrier_takes": _LIMIT})
    killed, first = shell.run(f"{RUN_ORDER} --config '{slow}'", kill_at=_KILLED)
    shell.say("", "The process is gone. This is what it left in the store:")
    shown, _ = shell.run("milecastle show order-1")
    resumed, second = shell.run("milecastle resume order-1")
    if killed == 0 or shown or resumed or (*first, *second) != (*_NODES, _KILLED):
        raise RuntimeError(
            f"the demo did not do what it should: exit codes {killed}, {shown}, {resumed}; "
            f"nodes {', '.join(first)}, then {', '.join(second)}"
        )
    once = " and ".join(node for node in first if node not in second)
    shell.say(
        "",
        f"The first process ran {once}, and was killed in {first[-1]}.",
        f"The second ran {second[-1]} only: a step that was committed is not repeated.",
    )
    return DemoDocument(exit_code=killed, killed=tuple(first), resumed=tuple(second))


def _has_web_view() -> bool:
    from milecastle.server import require_extra

    try:
        require_extra()
    except InvalidRequest:
        return False
    return True


class DemoShell:
    def __init__(self, folder: str, *, quiet: bool) -> None:
        self.folder, self._quiet = folder, quiet
        settings = {name for name in os.environ if name.startswith("MILECASTLE_")}
        self._environment = {name: os.environ[name] for name in os.environ.keys() - settings}
        self._environment["PYTHONUNBUFFERED"] = "1"

    def say(self, *lines: str) -> None:
        if not self._quiet:
            print_lines(lines)

    def run(self, command: str, *, kill_at: str | None = None) -> tuple[int, list[str]]:
        """Run a command; return its exit code, and the nodes reported as run.

        It is killed once the node ``kill_at`` has begun.
        """
        self.say("", f"$ {command}")
        with self._start(command) as process:
            timer = Timer(_LIMIT, process.kill)
            timer.start()
            try:
                nodes = self._follow(process, kill_at)
            except BaseException:  # nobody reads any more, or Ctrl-C
                process.kill()
                raise
            finally:
                timer.cancel()
        return process.returncode, nodes

    def _follow(self, process: subprocess.Popen[str], kill_at: str | None) -> list[str]:
        nodes: list[str] = []
        for line in process.stdout or ():
            self.say(line.rstrip("\n"))
            node = line.partition(": ")[0]
            if node in _NODES:
                nodes.append(node)
            if node == kill_at:
                self.say("", f"$ kill -9 {process.pid}")
                process.kill()
        return nodes

    def watch(self, command: str) -> None:
        self.say("", f"$ {command}   (Ctrl-C ends it)")
        arguments = self._arguments(command)
        with subprocess.Popen(arguments, cwd=self.folder, env=self._environment) as process:  # noqa: S603 - this very program
            try:
                process.wait()
            except KeyboardInterrupt:  # the command received it, too, and stops
                # another one must not leave the folder
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                process.wait()

    def _start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - this very program
            self._arguments(command),
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
        )

    def _arguments(self, command: str) -> list[str]:
        return [sys.executable, "-P", "-m", *shlex.split(command)]
