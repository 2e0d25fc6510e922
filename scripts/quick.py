"""Runs the tests of what was changed, in under a minute: ``python -m scripts.quick [FOLDER...]``.

Without folders: what differs from ``main``, committed or not. The whole suite is ``.ci/run``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/milecastle/"

ALWAYS = ("tests/architecture/test_exports.py", "tests/architecture/test_names.py")

BY_NAME = ("tests/unit/{}", "tests/contract/test_{}.py", "tests/acceptance/test_{}.py")
"""The tests of a folder of the package, or of a module."""

MORE: dict[str, Sequence[str]] = {
    "app": ("tests/acceptance/scenarios/test_interrupts.py",),
    "drivers": ("tests/acceptance/scenarios/test_fan_out.py",),
    "engine": ("tests/recovery/test_crash_everywhere.py",),
    "fleet": ("tests/acceptance/fleet/test_workers.py",),
    "langgraph": ("tests/contract/test_langgraph_saver.py",),
    "testing": ("tests/contract/test_memory.py",),
}

ELSE = ("tests/unit/engine", "tests/unit/model", "tests/contract/test_memory.py")
"""What everything builds on, for a folder without tests of its own."""


def changed() -> list[str]:
    """Return the files that differ from ``main``, and those that git does not know yet."""
    found: list[str] = []
    for command in (
        ["diff", "--name-only", "main"],
        ["ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        found += done.stdout.split()
    return found


def chosen(paths: Iterable[str]) -> list[str]:
    """Return the tests of some files and folders."""
    found = dict.fromkeys(ALWAYS)
    for path in paths:
        found |= dict.fromkeys(tests_of(path.removeprefix("./").rstrip("/")))
    return [test for test in found if (ROOT / test).exists()]


def tests_of(path: str) -> Sequence[str]:
    """Return the tests of one file or folder."""
    if path.startswith("tests/"):
        name = path.rpartition("/")[2]
        return [path] if name.startswith("test_") or "." not in name else [path.rpartition("/")[0]]
    if path.endswith(".md"):
        return ["tests/docs/test_pages.py"]
    if not path.startswith(PACKAGE):
        return []
    found: list[str] = []
    for name in reversed(path.removeprefix(PACKAGE).removesuffix(".py").split("/")):
        found += [form.format(name) for form in BY_NAME] + list(MORE.get(name, ()))
        found = [test for test in found if (ROOT / test).exists()]
        if found:
            break
    return found or ELSE


def main(arguments: list[str]) -> int:
    """Run the tests; arguments that begin with a dash are for pytest."""
    options = [one for one in arguments if one.startswith("-")]
    tests = chosen([one for one in arguments if not one.startswith("-")] or changed())
    print(*tests, sep="\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", *options, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
