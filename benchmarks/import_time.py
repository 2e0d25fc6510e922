"""The time of a cold import beside LangGraph's, and the packages that an installation brings.

An import is timed inside a fresh interpreter, by `perf_counter` before and after the statement:
the interpreter's own start is left out. Compiled bytecode and the files are warm, from an untimed
first import, because that is what every start but the first one meets. The figure is the median.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.report import Report, columns

ROUNDS = 15
QUICK_ROUNDS = 3
OURS = "milecastle"
THEIRS = "langgraph.graph"
INSTALLERS = frozenset({"pip", "setuptools", "wheel"})
PIP = (sys.executable, "-m", "pip")
REPOSITORY = Path(__file__).resolve().parent.parent

TIMED_IMPORT = """
from time import perf_counter
start = perf_counter()
import {module}
print(perf_counter() - start)
"""


def measure(*, quick: bool = False) -> Report:
    """Time the imports in turns, and install the built wheel into a fresh environment."""
    modules = [OURS, THEIRS] if is_installed("langgraph") else [OURS]
    times = import_times(modules, rounds=QUICK_ROUNDS if quick else ROUNDS)
    brought = installed_besides(REPOSITORY)
    theirs = times.get(THEIRS)
    return Report(
        figures={
            "import_ms": _median_ms(times[OURS]),
            "langgraph_import_ms": _median_ms(theirs) if theirs else None,
            "packages": len(brought),
        },
        table=_table(times, brought),
    )


def is_installed(package: str) -> bool:
    """Say whether the package can be imported."""
    return importlib.util.find_spec(package) is not None


def import_times(modules: Sequence[str], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each import in fresh interpreters, the modules taking turns."""
    for module in modules:
        import_once(module)
    times: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(rounds):
        for module in modules:
            times[module].append(import_once(module))
    return times


def import_once(module: str) -> float:
    """Return the seconds that the import takes in a fresh interpreter."""
    return float(_output([sys.executable, "-c", TIMED_IMPORT.format(module=module)]))


def installed_besides(project: Path) -> list[str]:
    """Return the distributions that a fresh installation of the project's wheel brings along."""
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        _output([*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(project)])
        python = _fresh_python(Path(folder, "environment"))
        _output([python, "-m", "pip", "install", "--quiet", *map(str, wheels.glob("*.whl"))])
        listed: list[dict[str, str]] = json.loads(
            _output([python, "-m", "pip", "list", "--format", "json"])
        )
    return besides_ours(entry["name"] for entry in listed)


def besides_ours(distributions: Iterable[str]) -> list[str]:
    """Leave out the project itself and what every fresh environment holds."""
    return sorted(name for name in distributions if name.lower() not in INSTALLERS | {OURS})


def _fresh_python(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    return str(folder / scripts / "python")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return done.stdout


def _median_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 1)


def _table(times: dict[str, list[float]], brought: Sequence[str]) -> str:
    rows = [("ms a cold import", "best", "median")]
    for module, seconds in times.items():
        rows.append((module, f"{min(seconds) * 1e3:.1f}", f"{_median_ms(seconds):.1f}"))
    return f"{columns(rows)}\n\ninstalled besides ours ({len(brought)}): {', '.join(brought)}"
