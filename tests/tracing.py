"""Measure the coverage of lines and branches: ``pytest -p tests.tracing``, with a pool or none.

SlipCover changes the modules of the package when they are imported, instead of calling a function
at each line: the tests take a third longer, and not two to four times as long. Each process
writes what it covered into the folder that ``MILECASTLE_COVERAGE`` names, and
``scripts/coverage_bars.py`` merges the files.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "milecastle"
EXCLUDED = ["if TYPE_CHECKING:", "@overload", r"class .*\bProtocol\b.*:", r"assert_never\("]

slipcover: Any = importlib.import_module("slipcover")  # it has no types
matcher = slipcover.FileMatcher(sources=[str(SOURCE)])
measured = slipcover.Slipcover(branch=True, source=[str(SOURCE)], exclude_also=EXCLUDED)
slipcover.ImportManager(measured, matcher).__enter__()  # before anything imports the package


def leave_to_import(*_names: str) -> None:
    """Rewrite no module of the package: SlipCover measures none that pytest loads."""


pytest.register_assert_rewrite = leave_to_import


def pytest_sessionfinish() -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    folder = Path(os.environ["MILECASTLE_COVERAGE"])
    (folder / f"{worker}.json").write_text(json.dumps(measured.get_coverage()), encoding="utf-8")
