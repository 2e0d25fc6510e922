"""Runs mypy or pyright in strict mode on a piece of code, as a user of the package would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

__all__ = ["errors_of", "pyright_lines"]


def errors_of(code: str) -> list[str]:
    """What ``mypy --strict`` reports of a program, a line for each error."""
    pytest.importorskip("mypy", reason="mypy is among the tools, not among what tests need")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mypy", "--strict", "--config-file="),
                *("--cache-dir", str(ROOT / ".mypy_cache" / "programs")),
                *("--no-error-summary", "--hide-error-context", str(program)),
            ],
            cwd=folder,
            env={**os.environ, "MYPYPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode in (0, 1), done.stderr
    return [line.removeprefix(folder) for line in done.stdout.splitlines() if ": error:" in line]


def pyright_lines(code: str) -> list[int]:
    """The lines of a program in which pyright, in strict mode, reports an error."""
    pytest.importorskip("pyright", reason="pyright is among the tools, not among what tests need")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text("# pyright: strict\n" + code, encoding="utf-8")
        settings = {"extraPaths": [str(ROOT / "src")], "include": ["program.py"]}
        Path(folder, "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [one["range"]["start"]["line"] for one in found if one["severity"] == "error"]
