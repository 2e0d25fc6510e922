"""The session on the page about the command line: played again, and compared or written again.

`python -m tests.acceptance.command_line_session` writes what it prints into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

from milecastle.cli.main import cli
from tests.docs.pages import ROOT, blocks, read
from tests.unit.cli.commands import fresh_modules

PAGE = "docs/how-to/use-the-command-line.md"

ID = re.compile(r"\b0[0-9a-f]{7}-[0-9a-f]{4}(-[0-9a-f-]+)?\b *")
"""Whole or cut short, with what fills a column up: how long it is depends on the others."""
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z")
AGE = re.compile(r"\b\d+\.\d s\b")
FOUND = re.compile(r"^(\w+ +(?:ok|warning|failed)) .*$", flags=re.MULTILINE)


def masked(text: str) -> str:
    """What a command printed, without what is different each time."""
    for pattern, word in ((ID, "ID "), (TIME, "TIME"), (AGE, "AGE"), (FOUND, r"\1")):
        text = pattern.sub(word, text)
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    # How wide the column of ids is depends on how many digits tell them apart.
    return "\n".join(re.sub("  +", "  ", line) if "ID" in line else line for line in lines)


class Play:
    """A session in its own folder. ``settings`` override what it exports."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self._settings = settings
        self.environment = {**os.environ, "COLUMNS": "100"}
        programs = [block.text for block in blocks(read(PAGE)) if block.info == "python"]
        for name, text in zip(("demo.py", "report.py"), programs, strict=True):
            (folder / name).write_text(text + "\n", encoding="utf-8")
        commands = folder / "bin"
        commands.mkdir()
        for name, words in (("python", ""), ("milecastle", "-m milecastle ")):
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
            path.chmod(0o755)
        self.environment["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
        # A file that is changed within a second must not be taken for its older self.
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT / "src")])

    def do(self, command: str) -> str:
        """Do one command; what it prints."""
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environment[name] = self._settings.get(name, value)
            return ""
        plain = not any(sign in command for sign in "|;>")
        if plain and command.startswith("milecastle "):
            return self._call(shlex.split(command)[1:])
        return self._shell(command)

    def _call(self, words: list[str]) -> str:
        """In this process, which saves most of the time."""
        given = [re.sub(r"\$(\w+)", lambda name: self.environment[name[1]], word) for word in words]
        with fresh_modules():
            result = CliRunner().invoke(cli, given, env=self.environment, prog_name="milecastle")
        assert result.exit_code == 0, f"{words}: {result.output}"
        return result.output

    def _shell(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout


def session_of(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def session() -> list[tuple[str, str]]:
    """The whole session of the page."""
    shown = [block for block in blocks(read(PAGE)) if block.info == "console"]
    return [pair for block in shown for pair in session_of(block.text)]


def rewritten(text: str, play: Play) -> str:
    """The page with what is printed now."""
    for block in [block for block in blocks(text) if block.info == "console"]:
        lines: list[str] = []
        for command, _ in session_of(block.text):
            lines += [f"$ {command}", *play.do(command).strip("\n").splitlines()]
        kept = "\n".join(line.rstrip() for line in lines)
        text = text.replace(f"```console\n{block.text}\n```", f"```console\n{kept}\n```")
    return text


def main() -> None:
    """Write the page again."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        page = ROOT / PAGE
        written = rewritten(read(PAGE), Play(Path(folder), {}))
        page.write_text(written.replace(folder, "."), encoding="utf-8")


if __name__ == "__main__":
    main()
