"""The README as a new user follows it: from `pip install` in an empty environment to a resume.

Slow, because it builds the wheel and installs it and its dependencies from the index that pip is
configured for. `just proof` runs it, with `-s` it prints what each step took.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, read
from tests.docs.test_demo import demo
from tests.unit.cli.commands import Desk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="the README's shell is one of Unix"),
]
LIMIT = 600


class NewUser:
    """A folder, and an empty virtual environment to run commands in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / ".venv", with_pip=True)
        bin = folder / ".venv" / "bin"
        self._environment = {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
        pip = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_"))}
        self._environment |= pip

    def run(self, *command: str, code: int = 0, within: str = ".") -> str:
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.folder / within,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        print(f"{time.monotonic() - began:6.1f} s  {' '.join(command)}")
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def paste(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, timeout=LIMIT)
    (found,) = folder.glob("*.whl")
    return found


def test_from_an_empty_environment_to_a_resumed_crash(wheel: Path, tmp_path: Path) -> None:
    """Fails if the template is left out of the wheel, or if it needs more than milecastle."""
    user = NewUser(tmp_path)
    user.run("pip", "install", str(wheel))
    assert "is not repeated" in user.run("milecastle", "demo")
    found = [block for block in blocks(read("README.md")) if block.language == "python"]
    user.paste("desk.py", found[0].text)
    assert user.run("python", "desk.py").endswith("interrupted \n")
    user.paste("demo.py", demo())
    assert user.run("python", "demo.py", code=-signal.SIGKILL) == "researching\n"
    assert "lost" in user.run("milecastle", "ls")
    assert "completed" in user.run("milecastle", "resume", "demo", "--app", "demo:app")
    assert user.run("python", "demo.py") == "a fact about walls\n"
    assert "a fact about walls" in user.run("milecastle", "show", "demo")
    user.run("milecastle", "init", "orders")
    user.run("pip", "install", "pytest")
    assert "2 passed" in user.run("pytest", within="orders")


def test_the_quickstart_is_accepted_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran its graph on import, which the command line refuses."""
    monkeypatch.chdir(tmp_path)
    found = next(block for block in blocks(read("README.md")) if block.language == "python")
    desk = Desk(tmp_path)
    desk.write("desk.py", found.text)
    assert "no problems" in desk.out("check", "desk")
