"""Mutation testing of engine, codec and stores: ``python -m scripts.mutation``.

Method and results: docs/evidence/mutation.md.

pytest collects the tests once. For each mutant a fork of that process gets the changed code of its
functions and runs the tests that reach the changed lines, those that killed others nearby first,
then the cheapest, until one fails. Times are CPU times, so that a busy machine changes no result.
Results are appended to a file; what is in it is not run again.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn, TypedDict, cast

import coverage
import pytest
from _pytest.runner import runtestprotocol

from scripts.mutation.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGES = ("engine", "codec", "stores")
TESTS = (
    "tests/unit/engine",
    "tests/unit/codec",
    "tests/unit/jsonl",
    "tests/unit/memory",
    "tests/contract/test_memory.py",
    "tests/contract/test_jsonl.py",
    "tests/contract/test_sqlite.py",
    "tests/recovery/test_jsonl_faults.py",
    "tests/recovery/test_jsonl_damage.py",
    "tests/recovery/test_sqlite_ahead.py",
    "tests/recovery/test_sqlite_rows.py",
    "tests/migration/test_encrypted.py",
    "tests/migration/test_jsonl.py",
    "tests/migration/test_sqlite.py",
    "tests/unit/fleet",
    "tests/unit/drivers",
    "tests/acceptance/scenarios",
    "tests/acceptance/test_checkpoints.py",
    "tests/acceptance/test_emitting_to_observers.py",
    "tests/acceptance/test_encryption.py",
    "tests/acceptance/test_events.py",
    "tests/acceptance/test_failures.py",
    "tests/acceptance/test_observing.py",
    "tests/acceptance/test_recovery.py",
    "tests/acceptance/test_run_records.py",
)
INCLUDED = [f"{SOURCE}/milecastle/{package}/*" for package in PACKAGES]
LEFT_OUT = (
    "not test_audit and not test_fuzz and not RowSecurity and not gigabytes and not real_process"
    " and not (acceptance and (jsonl or sqlite or postgres or asynchronous))"
)
CASES = 12
CHUNK = 20
"""Tests that one fork traces."""


class Reach(TypedDict):
    """Which test reaches which line, and what it costs."""

    names: list[str]
    times: dict[str, float]
    left_out: list[str]
    lines: dict[str, list[int]]


@dataclass
class Traced:
    """What a fork has traced."""

    times: dict[str, float]
    lines: dict[str, list[int]]
    passed: list[str]
    failed: list[str]

    def read(self, data: coverage.CoverageData) -> None:
        """Take over which lines the tests that passed have reached."""
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                self.lines[f"{file}:{line}"] = [int(each) for each in tests if each in self.passed]

    def add_to(self, reach: Reach) -> None:
        """Add it to what others have traced."""
        reach["times"] |= self.times
        reach["left_out"] += self.failed
        for line, tests in self.lines.items():
            reach["lines"].setdefault(line, []).extend(tests)


class Mutation:
    """A pytest plugin: instead of the tests it runs the mutants."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._results = Path(chosen.results)
        self._items: dict[str, pytest.Item] = {}

    def pytest_configure(self) -> None:
        """Make the generated examples few, and the same for each mutant."""
        from hypothesis import HealthCheck, settings  # after pytest has seen its plugins

        health = list(HealthCheck)
        settings.register_profile(
            "mutation",
            derandomize=True,
            deadline=None,
            max_examples=20,
            suppress_health_check=health,
        )
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which test reaches which line, then run the mutants."""
        self._items = {item.nodeid: item for item in session.items}
        print(len(self._items), "tests", flush=True)
        everything = [mutant for path in _modules() for mutant in _mutants(path)]
        reach = self._reach(self._results.with_suffix(".reach.json"))
        if self._chosen.names:
            names = {*Path(self._chosen.names).read_text(encoding="utf-8").split()}
            mutants = [mutant for mutant in everything if mutant.name in names]
        else:
            mutants = sampled(everything, self._chosen.sample, self._chosen.seed)
        Runs(self._items, reach, self._chosen).run(mutants)
        return True

    def _reach(self, path: Path) -> Reach:
        """What is known of the tests, from the file; those that are not in it are traced."""
        reach = Reach(names=[], times={}, left_out=[], lines={})
        if path.exists():
            reach = cast("Reach", json.loads(path.read_text(encoding="utf-8")))
        known = {*reach["times"], *reach["left_out"]}
        first = len(reach["names"])
        reach["names"] += [name for name in some_cases(self._items) if name not in known]
        numbers = list(range(first, len(reach["names"])))
        todo = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
        running: dict[int, tuple[Path, list[int]]] = {}
        while running or todo:
            while todo and len(running) < self._chosen.processes:
                numbers = todo.pop(0)
                part = Path(tempfile.mkstemp(prefix="mutant-")[1])
                running[forked(partial(self._trace, reach["names"], numbers, part))] = part, numbers
            pid, status = os.wait()
            part, numbers = running.pop(pid)
            found = json.loads(part.read_text())
            part.unlink()
            if status == 0:
                Traced(**found).add_to(reach)
            else:
                reach["left_out"].append(reach["names"][int(found)])
                todo += [others] if (others := [each for each in numbers if each != found]) else []
            if len(todo) % 5 == 0:
                path.write_text(json.dumps(reach), encoding="utf-8")
        return reach

    def _trace(self, names: list[str], numbers: list[int], part: Path) -> int:
        """In a fork: trace tests. One that is too expensive ends the fork; its number is left."""
        tracing = coverage.Coverage(data_file=None, config_file=False, include=INCLUDED)
        traced = Traced({}, {}, [], [])
        tracing.start()
        for number in numbers:
            part.write_text(str(number))
            tracing.switch_context(str(number))
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, self._chosen.cheap)
            signal.alarm(60)
            if passes(self._items[names[number]], None):
                traced.times[names[number]] = round(time.process_time() - began, 3)
                traced.passed.append(str(number))
            else:
                traced.failed.append(names[number])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        tracing.stop()
        traced.read(tracing.get_data())
        part.write_text(json.dumps(asdict(traced)))
        return 0


class Runs:
    """Runs mutants in forks, two at a time."""

    def __init__(
        self, items: dict[str, pytest.Item], reach: Reach, chosen: argparse.Namespace
    ) -> None:
        self._items = items
        self._times = reach["times"]
        self._names = reach["names"]
        self._cases = by_function(items.keys() - {*reach["left_out"]})
        self._lines = reach["lines"]
        self._chosen = chosen
        self._killers: dict[str, Counter[str]] = defaultdict(Counter)
        self._functions = functions_by_file()
        gc.freeze()
        self._running: dict[int, tuple[Mutant, Path, list[str]]] = {}

    def run(self, mutants: list[Mutant]) -> None:
        """Run those that have no result yet."""
        done = {
            name
            for name, result in read_results(Path(self._chosen.results)).items()
            if not self._chosen.again or result["outcome"].startswith("killed")
        }
        for mutant in mutants:
            if mutant.name in done:
                continue
            while len(self._running) >= self._chosen.processes:
                self._wait()
            self._start(mutant)
        while self._running:
            self._wait()

    def _start(self, mutant: Mutant) -> None:
        tests = self._tests_of(mutant)
        if not tests:
            self._note(mutant, "not reached", "", 0)
            return
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        limit = 10 + 5 * sum(map(self._time, tests))
        code = compiled(mutant)
        pid = forked(lambda: self._try(mutant.file, code, tests, folder, limit))
        self._running[pid] = (mutant, folder, tests)

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that reach its lines, most promising first, up to the budget."""
        reaching = {
            self._names[test]
            for line in mutant.lines
            for test in self._lines.get(f"{mutant.file}:{line}", ())
        } & self._items.keys()
        if self._chosen.again:  # cases that were not traced may reach them too
            reaching = {each for test in reaching for each in self._cases[test.partition("[")[0]]}
        killers = self._killers[mutant.file]
        order = sorted(reaching, key=lambda test: (-min(killers[test], 3), self._time(test)))
        chosen: list[str] = []
        left: float = self._chosen.budget
        for test in order:
            left -= self._time(test)
            if left < 0 and chosen:
                break
            chosen.append(test)
        return chosen

    def _time(self, test: str) -> float:
        """Its processor time, or that of another case of it."""
        if test not in self._times:
            cases = self._cases[test.partition("[")[0]]
            self._times[test] = max((self._times.get(case, 0.0) for case in cases), default=0.0)
        return self._times[test]

    def _try(self, file: str, code: CodeType, tests: list[str], folder: Path, limit: float) -> int:
        """In the fork: install the mutant, run the tests; 1 and the name of the one that fails."""
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(int(45 + limit))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        install(code, self._functions[file])
        for index, test in enumerate(tests):
            following = self._items[tests[index + 1]] if index + 1 < len(tests) else None
            if not passes(self._items[test], following):
                (folder / "killer").write_text(test)
                return 1
        return 0

    def _wait(self) -> None:
        pid, status = os.waitpid(-1, 0)
        if pid not in self._running:
            return
        mutant, folder, tests = self._running.pop(pid)
        end_group(pid)
        killer = folder / "killer"
        name = killer.read_text() if killer.exists() else ""
        outcome = {0: "survived", 1: "killed"}.get(
            os.waitstatus_to_exitcode(status), "killed by a limit"
        )
        if name:
            self._killers[mutant.file][name] += 1
        self._note(mutant, outcome, name, len(tests))
        shutil.rmtree(folder, ignore_errors=True)

    def _note(self, mutant: Mutant, outcome: str, killer: str, tests: int) -> None:
        line = {
            "name": mutant.name,
            "outcome": outcome,
            "before": mutant.before[:200],
            "after": mutant.after[:200],
            "killer": killer,
            "tests": tests,
        }
        with Path(self._chosen.results).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def by_function(names: Iterable[str]) -> dict[str, list[str]]:
    """The cases of each parametrized test."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[name.partition("[")[0]].append(name)
    return groups


def some_cases(names: Iterable[str]) -> Iterator[str]:
    """At most ``CASES`` of the cases of each parametrized test, evenly spread."""
    for group in by_function(names).values():
        step = max(1, len(group) / CASES)
        yield from (group[int(at * step)] for at in range(min(CASES, len(group))))


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test, without a word."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def forked(work: Callable[[], int]) -> int:
    """Run something in a fork, in a process group of its own and without output; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        code = work()
    finally:
        os._exit(code)


def end_group(pid: int) -> None:
    """End what a fork has left behind."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def compiled(mutant: Mutant) -> CodeType:
    """The code of the module with the change."""
    tree = TREES[mutant.file]
    was = mutant.put(mutant.new)
    try:
        return compile(tree, mutant.file, "exec", dont_inherit=True)
    finally:
        mutant.put(was)


def functions_by_file() -> dict[str, list[FunctionType]]:
    """Every function that exists, by the file that defines it; decorated ones too."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found[each.__code__.co_filename].append(each)
    return found


def install(code: CodeType, functions: Iterable[FunctionType]) -> None:
    """Give the functions of a module their changed code."""
    changed = {(each.co_qualname, each.co_firstlineno): each for each in codes(code)}
    for function in functions:
        old = function.__code__
        new = changed[old.co_qualname, old.co_firstlineno]
        if new != old:
            function.__code__ = new


def codes(code: CodeType) -> Iterator[CodeType]:
    """Every code object inside another."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from codes(each)


TREES: dict[str, ast.Module] = {}


def _modules() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((SOURCE / "milecastle" / package).rglob("*.py"))
        if path.parent.name != "postgres"  # each mutant would need tables on a server
    ]


def _mutants(path: Path) -> list[Mutant]:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    if path.name != "__init__.py":
        importlib.import_module(name)  # noqa: TID251 - its functions must exist before the fork
    tree = TREES[str(path)] = ast.parse(path.read_text(encoding="utf-8"))
    return mutants_of(path, tree, name.removeprefix("milecastle."))


def sampled(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """As many of each package, at random but the same for a seed; all if the size is 0."""
    if not size:
        return mutants
    chosen: list[Mutant] = []
    for number, package in enumerate(PACKAGES):
        of_it = [each for each in mutants if each.name.startswith(package)]
        share = size // len(PACKAGES) + (number < size % len(PACKAGES))
        chosen += random.Random(seed).sample(of_it, min(share, len(of_it)))  # noqa: S311 - a sample
    random.Random(seed).shuffle(chosen)  # noqa: S311 - an order
    return chosen


def read_results(path: Path) -> dict[str, dict[str, str]]:
    """The last result of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {each["name"]: each for each in map(json.loads, lines)}


def report(path: Path) -> None:
    """Print the score of each package, and the mutants that no test killed."""
    results = [*read_results(path).values()]
    for package in PACKAGES:
        outcomes = Counter(each["outcome"] for each in results if each["name"].startswith(package))
        killed = outcomes["killed"] + outcomes["killed by a limit"]
        total = sum(outcomes.values())
        print(
            f"{package}: {killed} of {total} killed, {100 * killed / max(total, 1):.1f} %;",
            dict(outcomes),
        )
    for each in sorted(results, key=lambda each: each["name"]):
        if not each["outcome"].startswith("killed"):
            print(f"{each['name']} {each['outcome']}: {each['before']} -> {each['after']}")


def _stop(*_: object) -> NoReturn:
    sys.exit(1)


def main() -> int:
    """Run the sample, then print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", default="build/mutation.jsonl")
    parser.add_argument("--sample", type=int, default=1200, help="mutants in all; 0: every one")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--budget", type=float, default=20, help="CPU seconds of tests per mutant")
    parser.add_argument(
        "--cheap",
        type=float,
        default=0.4,
        help="CPU seconds, traced, that a test may take; others are left out",
    )
    parser.add_argument("--names", help="a file with the names of the mutants to run")
    parser.add_argument("--left-out", default=LEFT_OUT, help="the -k of pytest")
    parser.add_argument(
        "--again",
        action="store_true",
        help="run those that survived again, with every case of the tests",
    )
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--report", action="store_true", help="print, run nothing")
    chosen = parser.parse_args()
    Path(chosen.results).parent.mkdir(parents=True, exist_ok=True)
    if not chosen.report:
        signal.signal(signal.SIGTERM, _stop)
        options = [
            "-q",
            "-s",
            "-p",
            "no:cacheprovider",
            "-n",
            "0",
            "-m",
            "not slow",
            "-k",
            chosen.left_out,
        ]
        pytest.main([*options, *chosen.tests], plugins=[Mutation(chosen)])
    report(Path(chosen.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
