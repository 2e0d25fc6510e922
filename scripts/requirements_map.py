"""Write `docs/requirements.md` and `docs/requirements/`: requirements and their acceptance tests.

The map is read from the tests, so it cannot drift from them. A test names its requirement::

    @pytest.mark.requirement("G1", api="StateGraph.node")
    def test_a_node_is_a_plain_function() -> None:
        "A node is a plain function of the state."

Rules:

- Tests are parsed, never imported.
- A test that is skipped or expected to fail shows nothing.
- `docs/requirements.md` has one row per requirement with two tests: those whose words are nearest
  to the requirement's. The pages of `docs/requirements/` list all tests.
- Where the project differs from a source of the requirements, `rulings.toml` says so, and why.
- `--check` writes nothing. It fails when a written page is stale, when a covered number has no
  test, and when a test names a number that does not exist.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = Path("tests/acceptance")
MAP = Path("docs/requirements.md")
PAGES = Path("docs/requirements")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

TITLES: dict[str, str] = {
    "G1": "Nodes are plain functions, sync or async, that return an update",
    "G2": "Fixed, conditional and predicate edges",
    "G3": "Entry points, exit points that end the run, START and END",
    "G4": "`compile()` reports every problem at once, with code, place and suggestion",
    "G5": "A compiled graph is immutable and has a manifest and a fingerprint",
    "G6": "State as TypedDict, dataclass or pydantic model; channels with reducers",
    "G7": "Parallel branches in one step, applied together in a fixed order",
    "G8": "Subgraphs with their own checkpoints",
    "G9": "`invoke`, `stream` and their async versions behave the same",
    "G10": "Drawing as Mermaid, SVG and terminal text, offline",
    "X1": "Execution limits: defaults, per graph, per call, field by field",
    "X2": "The step limit is checked before a node runs",
    "X3": "Cycle detection: a node that runs again with an unchanged state",
    "X4": "A failing node raises an error with node, step, path, state and cause",
    "X5": "A run can be cancelled; committed steps stay",
    "X6": "Retries and timeouts per node, counted durably",
    "X7": "The checks have no measurable cost",
    "C1": "Contents of a checkpoint",
    "C2": "Saved after a node, before the next; a failed save stops the run",
    "C3": "Checkpoint interval, preservation, stores by name or URL",
    "C4": "`seq` counts from 1 per thread, without gaps",
    "C5": "State carries its provenance: run, node, time",
    "C6": "Every read and write has a tenant and a thread",
    "S1": "One small store interface and one contract suite for all stores",
    "S2": "The operations of a store",
    "S3": "The memory store is thread-safe",
    "S4": "The JSONL store: one readable append-only file per thread",
    "S5": "History is listed without decoding any state",
    "S6": "A torn last line is distinguished from damage; repair keeps complete records",
    "S7": "A write is durable when it returns",
    "S8": "Decoding is strict, and errors name the path",
    "S9": "Two writers: one wins, the other gets `Conflict`",
    "S10": "Retention by count, age and thread",
    "S11": "Copy between stores, histories byte-equal",
    "T1": "`resume` continues from the last checkpoint in a fresh process",
    "T2": "`update_state` branches off a parent and inherits what runs next",
    "T3": "Run from any old checkpoint; history shows the branches",
    "T4": "Resuming an ended or an empty thread is a clear error",
    "T5": "The difference between two checkpoints, by path",
    "H1": "Interrupts before and after named nodes",
    "H2": "`interrupt` inside a node, answered by `resume`, the answer checked",
    "H3": "A portable file before each interrupt",
    "H4": "Save, load and resume from portable files",
    "H5": "Portable files never execute anything, and can be signed",
    "H6": "Clear errors for missing, corrupt and foreign files",
    "H7": "Portable files at parallel branches",
    "R1": "Each run leaves a record that names the previous run",
    "R2": "A run that did not complete leaves exactly one failure record",
    "R3": "The workspace on disk: strict, atomic, durable",
    "R4": "Resume is refused, with the reason, unless it is safe",
    "R5": "The previous run is named by the caller or found",
    "R6": "Modes: clean, incremental, resume-only",
    "R7": "Task hashes, and when a node checkpoint is valid",
    "R8": "The plan: what is reused, in topological order",
    "R9": "Command nodes",
    "R10": "A run is recorded even when the graph cannot be loaded",
    "O1": "Events with time, run, thread, task and attempt; observers cannot break a run",
    "O2": "Built-in observers: none, logging, JSONL trace, progress bar, OpenTelemetry",
    "O3": "Metrics and spans by OpenTelemetry's conventions",
    "F1": "Submit, answer, cancel and retry from any process, each one transaction",
    "F2": "Workers share the load; one worker runs a thread at a time",
    "F3": "Other workers take over a dead worker's runs",
    "F4": "A worker that comes back too late is refused and stops",
    "F5": "Timers fire in time",
    "F6": "Drains and rolling deploys lose nothing and repeat nothing",
    "F7": "Workers run only threads compatible with their code",
    "F8": "Limits, priorities, pauses and fairness, by tenant and by graph",
    "F9": "Schedules fire exactly once",
    "F10": "Failed runs are held, retried and cancelled",
    "F11": "Depth, age, workers and stuck runs are visible",
    "F12": "Emitted values reach readers in other processes",
    "M1": "A message is applied exactly once, in its sender's order; its key makes it the same",
    "M2": "A message can be sent at any time, and wakes a thread that waits for its topic",
    "M3": "`receive` takes one or several topics, with types and a timeout",
    "M4": "Inboxes: messages join the state at step boundaries, or start the next run",
    "M5": "A question's deadline and its answer race at the fence: one wins",
    "M6": "An answer records who gave it, and to which question as shown",
    "M7": "A run has its own typed settings, stored with its input",
    "M8": "`submit` and `send` in the caller's own transaction",
    "M9": "A run starts other runs and waits for them; cancelling it cancels them",
    "M10": "Emitted values that are kept can be read again by offset",
    "D1": "A flow continues with the first call that has no recorded result",
    "D2": "Code that makes other calls than the record is refused, with the call that differs",
    "D3": "Flows run with workers, messages, children, encryption and forks as graphs do",
    "D4": "New code is compared with recorded threads, without writing or calling steps",
    "N1": "An agent is an ordinary graph: model, tools, approvals; each tool call is a task",
    "N2": "Budgets in tokens, money and turns are part of the state and hold across crashes",
    "N4": "A graph is a tool of the Model Context Protocol, and its run a durable task",
    "N6": "Notifications about failures, questions and ends are durable, signed and repeated",
    "U1": "A command line for every verb",
    "U2": "A local web view",
    "U3": "Examples that run",
    "U4": "Documentation whose snippets run",
    "U5": "Coverage of at least 95 % of lines and branches",
}

# Verified by something else than acceptance tests. Every other number needs one.
ELSEWHERE: dict[str, str] = {
    "U4": "Every snippet is run by `tests/docs/test_snippets.py`, every command by "
    "`tests/docs/test_commands.py`; docstrings are checked by ruff (D).",
    "U5": "Lines and branches are counted over all tests, each for itself, by "
    "`scripts/coverage_bars.py`, which fails under 95 %: by `just test-all`, and by the forge "
    "for every push.",
}
COVERED = frozenset(TITLES) - ELSEWHERE.keys()


class Ruling(NamedTuple):
    """Where this project differs from a source, or decides between two of them, and why."""

    number: str
    source: str
    says: str
    ruling: str
    reason: str


RULINGS = tuple(
    Ruling(**found)
    for found in tomllib.loads((ROOT / "scripts" / "rulings.toml").read_text("utf-8"))["ruling"]
)

SECTIONS = {
    "G": "Graphs",
    "X": "Execution",
    "C": "Checkpoints",
    "S": "Stores",
    "T": "Time travel",
    "H": "Human in the loop",
    "R": "Runs and recovery",
    "O": "Observability",
    "F": "Fleet",
    "M": "Messages and waits",
    "D": "Durable functions and replay",
    "N": "Agents",
    "U": "Tools and documentation",
}
"""The title of each letter's page."""
TELLING = 2
"""Tests of a requirement in `docs/requirements.md`."""

GENERATED = "Generated from the acceptance tests by `just docs`; CI fails when it is stale."
HEADER = f"""\
# Requirements

Use this page to check that a requirement is met: each row has its two most telling tests and a link
to the others. {GENERATED}
Where the project differs from a source of its requirements: [rulings](requirements/rulings.md).
"""
RULINGS_HEADER = """\
# Rulings on requirements

Read this page when the documents behind the requirements disagree with Milecastle or with each
other. They were written for other languages: 000 on safe execution, 001 on checkpoints and tenants,
002 on checkpointing and events, 003 on the recovery of file runs, 004 on interrupts and portable
files.
"""


class Proof(NamedTuple):
    """One acceptance test that shows one requirement."""

    number: str
    api: str
    file: str
    test: str
    says: str


def _mark_of(decorator: ast.expr) -> str:
    """Return `skip` for `@pytest.mark.skip(...)`, and an empty string for other decorators."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    path = ast.unparse(target)
    return path.removeprefix("pytest.mark.") if path.startswith("pytest.mark.") else ""


def _claims(decorators: Iterable[ast.expr]) -> Iterator[tuple[str, str]]:
    """Yield (number, api) for every requirement that the decorators name."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and _mark_of(decorator) == "requirement":
            named = {word.arg: ast.literal_eval(word.value) for word in decorator.keywords}
            for argument in decorator.args:
                yield str(ast.literal_eval(argument)), str(named.get("api") or "")


def _tests(
    body: Sequence[ast.stmt], prefix: str = "", outer: Sequence[ast.expr] = ()
) -> Iterator[tuple[str, list[ast.expr], ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield name, decorators (its class's too) and definition of every test."""
    for item in body:
        if isinstance(item, ast.ClassDef) and item.name.startswith("Test"):
            yield from _tests(item.body, f"{item.name}::", item.decorator_list)
        elif isinstance(item, FUNCTION) and item.name.startswith("test_"):
            yield prefix + item.name, [*outer, *item.decorator_list], item


def _sentence(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the first line of the docstring, or the name read as a sentence."""
    said = (ast.get_docstring(definition) or "").partition("\n")[0]
    return said or definition.name.removeprefix("test_").replace("_", " ") + "."


def collect(root: Path) -> list[Proof]:
    """Return what the acceptance tests under `root` show, in order of file and line."""
    proofs: list[Proof] = []
    for path in sorted((root / TESTS).rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        for name, decorators, definition in _tests(ast.parse(path.read_text("utf-8")).body):
            if {"skip", "xfail"} & {_mark_of(decorator) for decorator in decorators}:
                continue
            says = _sentence(definition)
            proofs += [Proof(number, api, file, name, says) for number, api in _claims(decorators)]
    return proofs


def render(proofs: Sequence[Proof], covered: frozenset[str] = COVERED) -> dict[Path, str]:
    """Return the text of every page: the map, a page for each letter, and the rulings."""
    pages = {MAP: HEADER, PAGES / "rulings.md": _rulings()}
    for letter, title in SECTIONS.items():
        name = title.lower().replace(" ", "-") + ".md"
        pages[MAP] += (
            f"\n## {title}\n\n| | requirement | two of its tests | all |\n|---|---|---|---|\n"
        )
        pages[PAGES / name] = (
            f"# {title}: requirements and their tests\n\n"
            f"Use this page to find every test of a requirement. {GENERATED}\n"
        )
        for number in (number for number in TITLES if number[0] == letter):
            mine = [proof for proof in proofs if proof.number == number]
            if mine:
                tests = [f"{_title(proof.test)}." for proof in _telling(number, mine, proofs)]
                every = f"[{len(mine)} tests]({PAGES.name}/{name}#{number.lower()})"
            else:
                tests = ["**no test**" if number in covered else ELSEWHERE[number]]
                every = ""
            pages[MAP] += _cells([number, TITLES[number], "<br>".join(tests), every])
            pages[PAGES / name] += _all_tests(number, mine, tests)
    return pages


def _telling(number: str, mine: Sequence[Proof], proofs: Sequence[Proof]) -> list[Proof]:
    """Return the tests nearest to the requirement by the words they share, rare words first."""
    common = Counter(word for proof in proofs for word in _words(proof))
    wanted = _words(TITLES[number])
    near = [sum(common[word] ** -0.5 for word in wanted & _words(proof)) for proof in mine]
    best = sorted(range(len(mine)), key=lambda at: -near[at])[:TELLING]
    return [mine[at] for at in sorted(best)]


def _title(test: str) -> str:
    """Return the name of a test as a sentence."""
    return test.rpartition("::")[2].removeprefix("test_").replace("_", " ").capitalize()


def _words(text: str | Proof) -> set[str]:
    """Return the words that matter: four letters or more, cut after six."""
    text = text if isinstance(text, str) else f"{text.test} {text.says}"
    return {word[:6] for word in re.findall(r"[a-z]{4,}", text.lower())}


def _all_tests(number: str, proofs: Sequence[Proof], instead: Sequence[str]) -> str:
    """Return the section of a requirement: its public API and every test, by file."""
    apis = ", ".join(dict.fromkeys(f"`{proof.api}`" for proof in proofs if proof.api))
    title = f"**{TITLES[number]}.**" + (f" Public API: {apis}." if apis else "")
    lines = [f"\n## {number}", title, *(() if proofs else instead)]
    for file in dict.fromkeys(proof.file for proof in proofs):
        tests = [f"- `{proof.test}`" for proof in proofs if proof.file == file]
        lines += [f"`{file}`:", "\n".join(tests)]
    return "\n\n".join(lines) + "\n"


def _rulings() -> str:
    text = RULINGS_HEADER
    for number in (number for number in TITLES if number in {found.number for found in RULINGS}):
        text += f"\n## {number}: {TITLES[number]}\n"
        for ruling in (found for found in RULINGS if found.number == number):
            text += (
                f"\n**In {ruling.source}:** {ruling.says}\n\n"
                f"- Milecastle: {ruling.ruling}\n- Reason: {ruling.reason}\n"
            )
    return text


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def problems(
    proofs: Sequence[Proof], written: Mapping[Path, str], covered: frozenset[str] = COVERED
) -> list[str]:
    """Return everything that is wrong with the tests' marks and with the written pages."""
    shown = {proof.number for proof in proofs}
    found = [
        f"{proof.file}::{proof.test} names {proof.number}, which is not a requirement"
        for proof in proofs
        if proof.number not in TITLES
    ]
    found += [
        f"{n} is covered but no acceptance test shows it" for n in TITLES if n in covered - shown
    ]
    found += [
        f"a ruling names {ruling.number}, which is not a requirement"
        for ruling in RULINGS
        if ruling.number not in TITLES
    ]
    fresh = render(proofs, covered)
    found += [
        f"{path.as_posix()} is stale: run `just docs`"
        for path in sorted(fresh.keys() | written.keys())
        if fresh.get(path) != written.get(path)
    ]
    return found


def written_pages(root: Path) -> dict[Path, str]:
    """Return the pages that are there, by their path in the repository."""
    paths = [root / MAP, *sorted((root / PAGES).glob("*.md"))]
    return {path.relative_to(root): path.read_text("utf-8") for path in paths if path.exists()}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` compare them; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description="Write docs/requirements from the tests.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    proofs = collect(options.root)
    if not options.check:
        for old in written_pages(options.root):
            (options.root / old).unlink()
        (options.root / PAGES).mkdir(parents=True, exist_ok=True)
        for path, text in render(proofs).items():
            (options.root / path).write_text(text, encoding="utf-8", newline="\n")
    found = problems(proofs, written_pages(options.root))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
