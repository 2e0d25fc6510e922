"""Figures on the package: size, call path, SQL statements and wording.

    python -m scripts.measure_house [--json]

Definitions:

- Lines, functions and docstrings are read from the source. Only lines leave out `testing`.
- A function's body does not include its docstring. A private helper has one caller if its name
  occurs twice in its file: where it is defined, and once more.
- Calls, modules and SQL statements are counted with `sys.setprofile`, on SQLite, after a first call
  that warms up. Nothing of the standard library or other packages is counted.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from milecastle import END, START, StateGraph

if TYPE_CHECKING:
    from types import FrameType

    from milecastle import App

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "milecastle"
SHORT = 4
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
EXECUTE = ("execute", "executemany")
QUESTION = re.compile(r"(What|Whether|How|Who|Whoever)\b")
COMPLEXITY = "C901,PLR0911,PLR0912,PLR0913,PLR0914,PLR0915"


class Measured(NamedTuple):
    """A figure, and the most it should be."""

    name: str
    value: float
    target: float | None = None


class Trace(NamedTuple):
    """The package's calls and modules, and the SQL statements, of one operation."""

    calls: int
    modules: frozenset[str]
    statements: int


class Counter(TypedDict):
    """State of the measured graph."""

    n: int


def traced(operation: Callable[[], object]) -> Trace:
    """Run an operation and count its calls, modules and SQL statements."""
    calls, statements, modules = 0, 0, set[str]()
    base = str(PACKAGE)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls, statements
        if event == "call" and (file := frame.f_code.co_filename).startswith(base):
            calls += 1
            modules.add(file)
        elif event == "c_call" and getattr(argument, "__name__", "") in EXECUTE:
            statements += 1

    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return Trace(calls, frozenset(modules), statements)


def trace_app(folder: Path, operation: Callable[[App[Counter]], object]) -> Trace:
    """Trace an operation of an app with one node and a SQLite store."""
    graph = StateGraph(Counter)
    graph.add_node("add", lambda state: {"n": state["n"] + 1})
    graph.add_edges(START, "add", END)
    app = graph.compile(store=f"sqlite:///{folder}/runs.db")
    app.invoke({"n": 0}, thread="ended")
    app.submit({"n": 0}, thread="submitted")
    return traced(lambda: operation(app))


def trace_put(folder: Path) -> Trace:
    """Trace the second `put` of a thread by the LangGraph saver."""
    from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint

    from milecastle.integrations.langgraph import MilecastleSaver

    def put(thread: str, step: int, parent: str | None = None) -> str:
        place = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": parent}
        versions: dict[str, str | int | float] = {"n": f"{step + 1:032}"}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"n": step}, versions
        about: CheckpointMetadata = {"source": "loop", "step": step, "parents": {}}
        saver.put({"configurable": place}, checkpoint, about, versions)
        return checkpoint["id"]

    with MilecastleSaver(f"sqlite:///{folder}/saver.db") as saver:
        put("warm", 0)
        first = put("new", 0)
        return traced(lambda: put("new", 1, first))


def traces() -> dict[str, Trace]:
    """Trace `invoke` and `submit` of a new thread, `wait` for an ended run, and a saver's `put`."""
    operations: dict[str, Callable[[Path], Trace]] = {
        "invoke": lambda at: trace_app(at, lambda app: app.invoke({"n": 0}, thread="new")),
        "submit": lambda at: trace_app(at, lambda app: app.submit({"n": 0}, thread="new")),
        "wait": lambda at: trace_app(at, lambda app: app.wait("ended")),
        "put": trace_put,
    }
    with tempfile.TemporaryDirectory() as made:
        return {name: run(Path(tempfile.mkdtemp(dir=made))) for name, run in operations.items()}


def of_code(package: Path = PACKAGE) -> list[Measured]:
    """Measure lines, functions and docstrings."""
    lines, sizes, helpers, begin = 0, list[int](), 0, 0
    docstrings, words = 0, collections.Counter[str]()
    for path in sorted(package.rglob("*.py")):
        text = path.read_text("utf-8")
        lines += 0 if package / "testing" in path.parents else len(text.splitlines())
        named = collections.Counter(re.findall(r"\w+", text))
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION)):
                continue
            said = ast.get_docstring(node) or ""
            docstrings += bool(said)
            begin += bool(QUESTION.match(said))
            words.update(re.findall(r"[a-z']+", said.lower()))
            if isinstance(node, FUNCTION):
                body = node.body[bool(said) :]
                sizes.append((body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0)
                private = re.match(r"_(?!_)", node.name)
                helpers += bool(private and named[node.name] == 2 and sizes[-1] <= SHORT)
    per = {word: round(1000 * words[word] / words.total(), 1) for word in ("that", "of", "what")}
    return [
        Measured("lines of the package without testing", lines, 64_000),
        Measured("functions", len(sizes)),
        Measured("median lines of a body", statistics.median(sizes)),
        Measured(f"private helpers with one caller and {SHORT} lines or less", helpers),
        Measured("docstrings", docstrings, 2_800),
        Measured('"that" per 1,000 words of docstrings', per["that"], 12),
        Measured('"of" per 1,000 words of docstrings', per["of"], 22),
        Measured('"what" per 1,000 words of docstrings', per["what"], 2),
        Measured("docstrings that begin with What, Whether, How or Who", begin, 20),
    ]


def of_paths() -> list[Measured]:
    """Measure the call path of one `invoke`, and SQL statements of other operations."""
    found = traces()
    invoke = found["invoke"]
    return [
        Measured("invoke: Python calls", invoke.calls, 220),
        Measured("invoke: modules", len(invoke.modules), 32),
        Measured("invoke: SQL statements", invoke.statements, 14),
        Measured("submit: SQL statements", found["submit"].statements, 11),
        Measured("wait: SQL statements", found["wait"].statements, 6),
        Measured("saver's put: SQL statements", found["put"].statements, 8),
    ]


def of_complexity(package: Path = PACKAGE) -> list[Measured]:
    """Count the findings of ruff's complexity rules at their defaults. A report, not a gate."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--preview", "--exit-zero"]
    command += ["--output-format", "json", "--select", COMPLEXITY, str(package)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return [Measured(f"complexity findings ({COMPLEXITY.replace(',', ', ')})", len(found))]


def main(arguments: Sequence[str]) -> int:
    """Print the figures as a table, or with `--json` as one object."""
    parser = argparse.ArgumentParser(description="Measure the package: size, path and words.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    figures = [*of_code(), *of_complexity(), *of_paths()]
    if options.json:
        print(json.dumps({figure.name: figure.value for figure in figures}, indent=2))
        return 0
    width = max(len(figure.name) for figure in figures)
    for name, value, target in figures:
        most = "" if target is None else f"  at most {target:>6,}{'' if value <= target else '  !'}"
        print(f"{name:<{width}}  {value:>8,}{most}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
