"""Nothing is decided by the order of clocks: ARCHITECTURE.md says so, and this reads the code.

A place that compares times of records, entries or runs to choose one of them is a place where two
hosts whose clocks differ by 50 ms delete a thread that waits for a person.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "milecastle"
TIMES = {"started_at", "ended_at", "created_at", "timestamp", "time", "wake_at", "due_at"}
DUE = (
    "wake_at, thread",
    "due_at",
    "first.due_at",
    "known.due_at",
    "tenant, limit_key, rank, due_at",
    "limit_key, rank, due_at",
    "rank, due_at",
)
"""Orders in which threads are woken or claimed."""
CHOOSERS = {"max", "min", "sorted", "sort", "merge", "nlargest", "nsmallest"}

ALLOWED = {
    ("app/threads/reading.py", "_history"): "lists several logs by time, for people",
    ("stores/sharded/claiming.py", "_take"): "lists claimed threads as they became due",
}
"""Where a clock may decide, and why."""

FILE_RUNS = ("builds/", "views/builds.py")
"""Runs over files have no log: R5 asks for the one that started last, on one machine."""


def choices_by_time(source: str) -> Iterator[str]:
    """The functions that order by a time: a ``key=`` that reads one, in a call that chooses."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _name(call.func) in CHOOSERS:
                    keys = [word.value for word in call.keywords if word.arg == "key"]
                    if any(_reads_time(key) for key in keys) or _compares_times(call):
                        yield function.name


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _reads_time(key: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in TIMES for node in ast.walk(key))


def _compares_times(call: ast.Call) -> bool:
    """Whether whole records are ordered by a tuple that begins with a time."""
    tuples = [node for argument in call.args for node in ast.walk(argument)]
    firsts = [node.elts[0] for node in tuples if isinstance(node, ast.Tuple) and node.elts]
    return any(isinstance(first, ast.Attribute) and first.attr in TIMES for first in firsts)


def sql_orders(text: str) -> list[str]:
    """The times that statements order by; comments are not read."""
    bare = re.sub(r"--[^\n]*", "", text)
    orders = re.findall(r"ORDER\s+BY\s+([^)\n;]*)", bare, re.IGNORECASE)
    return [order for order in orders if any(time in order for time in TIMES)]


def test_no_code_chooses_by_a_clock() -> None:
    """Broken on purpose: ``runs`` of the memory store sorted by ``started_at``: it was named."""
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in choices_by_time(path.read_text("utf-8"))
    }
    found = {place for place in found if not place[0].startswith(FILE_RUNS)}
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "what is not there any more needs no permission"


def test_no_statement_orders_by_a_clock() -> None:
    """But for what is due or wakes first."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.sql")
        if any(not order.startswith(DUE) for order in sql_orders(path.read_text("utf-8")))
    }
    assert found == set()


def test_what_chooses_by_a_clock_is_seen() -> None:
    """The control: each form in which it was once written."""
    forms = (
        "def f(): return max(runs, key=lambda run: run.started_at)",
        "def f(): return sorted(runs, key=lambda run: (run.started_at, run.run_id))[-1]",
        "def f(): runs.sort(key=attrgetter('x')) or max((r.ended_at, r.id) for r in runs)",
        "async def f(): return heapq.merge(a, b, key=lambda known: known.timestamp)",
    )
    assert [list(choices_by_time(form)) for form in forms] == [["f"]] * len(forms)
    assert list(choices_by_time("def f(): return max(runs, key=lambda run: run.number)")) == []
    assert sql_orders("SELECT 1 ORDER BY started_at DESC, run_id -- x\n") != []
    assert sql_orders("SELECT 1 -- ORDER BY started_at\nORDER BY seq") == []
