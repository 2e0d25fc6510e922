"""What it costs to find that nothing has to be done.

Planning is timed beside a bare loop that hashes the same files: once with every file read
(`plan_vs_hashing`), once with files that seem untouched left unread, as runs do by default
(`plan_vs_hashing_indexed`). A run with nothing to do is timed as a separate process, next to
`make`, `doit` and Snakemake on the same graph; those that are not installed are left out.
`MILECASTLE_PEERS` may name a folder with their programs.

All files are in the page cache. Figures are processor seconds, user and system, because the work
is the processor's and other work on the machine is not ours; the best of the rounds.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.incremental_work import (
    KILOBYTES,
    build_at_once,
    make_app,
    sources,
)
from benchmarks.report import Report, columns
from milecastle.builds import FileRun, Workspace

NODES, QUICK_NODES = 10_000, 1_000
RUN_NODES, QUICK_RUN_NODES = 1_000, 200
ROUNDS, QUICK_ROUNDS = 7, 3
ROOT = Path(__file__).resolve().parent.parent


def measure(*, quick: bool = False) -> Report:
    """Time planning beside hashing, and whole runs beside other tools."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with tempfile.TemporaryDirectory() as place:
        plans = plan_times(Path(place, "plan"), QUICK_NODES if quick else NODES, rounds)
        runs = run_times(Path(place, "run"), QUICK_RUN_NODES if quick else RUN_NODES, rounds)
    figures: dict[str, float | None] = {
        "plan_vs_hashing": round(plans["plan"] / plans["bare"], 3),
        "plan_vs_hashing_indexed": round(plans["indexed"] / plans["bare"], 3),
        "hashing_s": round(plans["bare"], 4),
        "plan_s": round(plans["plan"], 4),
        "plan_indexed_s": round(plans["indexed"], 4),
        "prepare_s": round(plans["prepare"], 4),
        **{f"noop_{name}_s": seconds for name, seconds in runs.items()},
    }
    return Report(figures=figures, table=_table(figures))


def plan_times(folder: Path, nodes: int, rounds: int) -> dict[str, float]:
    """Best processor seconds of hashing all files, of planning, and of making ready to plan."""
    build_at_once(folder, nodes)
    paths = [str(folder / part / str(number)) for number in range(nodes) for part in ("in", "out")]
    app, workspace = make_app(nodes), Workspace(folder / ".milecastle")
    full, indexed = FileRun(app, workspace, rehash=True), FileRun(app, workspace)
    time.sleep(2.5)  # the index trusts nothing younger
    indexed.plan()
    work: dict[str, Callable[[], object]] = {
        "bare": lambda: hash_all(paths),
        "plan": lambda: up_to_date(full),
        "indexed": lambda: up_to_date(indexed),
        "prepare": lambda: FileRun(app, workspace),
    }
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, run in work.items():
            best[name] = min(best[name], _seconds(run))
    return best


def hash_all(paths: list[str]) -> None:
    """The bare loop."""
    for path in paths:
        with open(path, "rb") as file:  # noqa: PTH123 - as bare as can be
            hashlib.sha256(file.read()).hexdigest()


def up_to_date(run: FileRun) -> None:
    """Make a plan in which nothing is executed."""
    if run.plan().executed:
        raise AssertionError("the plan executes something: the benchmark measures nothing")


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    begun = time.process_time()
    run()
    return time.process_time() - begun


# -- whole runs ----------------------------------------------------------------------------


def run_times(folder: Path, nodes: int, rounds: int) -> dict[str, float | None]:
    """Best processor seconds of a process that finds nothing to do, for each tool."""
    build_at_once(folder, nodes)
    write_makefile(folder, nodes)
    write_dodo(folder, nodes)
    write_snakefile(folder, nodes)
    ours = [sys.executable, "-m", "benchmarks.incremental_work", str(folder), str(nodes)]
    commands: dict[str, list[str] | None] = {
        "milecastle": ours,
        "make": _found("make", "-s", "-C", str(folder)),
        "doit": _found("doit", "-f", str(folder / "dodo.py"), "-d", str(folder)),
        "snakemake": _found(
            "snakemake", "-q", "all", "-c1", "-d", str(folder), "-s", str(folder / "Snakefile")
        ),
    }
    time.sleep(2.5)
    best: dict[str, float | None] = {}
    for command in commands.values():
        if command is not None:
            _process_seconds(command)  # the first time it may have to note what is there
    for name, command in commands.items():
        times = [_process_seconds(command) for _ in range(rounds)] if command else []
        best[name] = round(min(times), 3) if times else None
    return best


def _found(program: str, *arguments: str) -> list[str] | None:
    path = os.pathsep.join([os.environ.get("MILECASTLE_PEERS", ""), os.environ.get("PATH", "")])
    found = shutil.which(program, path=path)
    return [found, *arguments] if found else None


def _process_seconds(command: list[str]) -> float:
    before = os.times()
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr[-2000:]}")
    after = os.times()
    return (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )


def write_makefile(folder: Path, nodes: int) -> None:
    rules = [f"all: {' '.join(f'out/{number}' for number in range(nodes))}\n"]
    rules += [
        f"out/{number}: {' '.join(sources(number))}\n\tcat $^ | head -c {KILOBYTES * 1024} > $@\n"
        for number in range(nodes)
    ]
    (folder / "Makefile").write_text("\n".join(rules))


def write_dodo(folder: Path, nodes: int) -> None:
    table = {number: sources(number) for number in range(nodes)}
    (folder / "dodo.py").write_text(
        f"SOURCES = {table!r}\n"
        "DOIT_CONFIG = {'verbosity': 0}\n"
        "def task_join():\n"
        "    for number, reads in SOURCES.items():\n"
        "        yield {'name': str(number), 'file_dep': reads, 'targets': [f'out/{number}'],\n"
        f"               'actions': [f\"cat {{' '.join(reads)}} | head -c {KILOBYTES * 1024}"
        ' > out/{number}"]}\n'
    )


def write_snakefile(folder: Path, nodes: int) -> None:
    rules = [f"rule all:\n    input: {[f'out/{number}' for number in range(nodes)]!r}\n"]
    rules += [
        f"rule n{number}:\n    input: {sources(number)!r}\n    output: 'out/{number}'\n"
        f"    shell: 'cat {{input}} | head -c {KILOBYTES * 1024} > {{output}}'\n"
        for number in range(nodes)
    ]
    (folder / "Snakefile").write_text("\n".join(rules))


def _table(figures: dict[str, float | None]) -> str:
    rows = [("what", "figure")]
    rows += [
        (name, "not installed" if value is None else str(value)) for name, value in figures.items()
    ]
    return columns(rows)
