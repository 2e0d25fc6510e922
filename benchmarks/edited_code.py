"""A workflow's code is changed while it waits: refused, right or silently wrong, beside DBOS.

Each case is a program: calls in order, with a wait among them at which it stands when its code is
edited (a call inserted, removed, renamed or moved). Then the new code continues it. Every call has
a value of its own, so a value that belongs to another call is seen.

- ``functions``: each step is a function of its own.
- ``arguments``: the steps are calls of one function with other arguments.

``stuck`` waits for a message that another call has taken. ``old_code`` counts the refused ones that
the old code can still complete.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypedDict

from benchmarks.report import Report, columns
from milecastle import App, ResumeRefused, StepFailed, flow, receive, step
from milecastle.stores.memory import MemoryStore

STOP = "stop"
"""The topic of the wait at which the code is edited."""

Kind = Literal["functions", "arguments"]
Call = tuple[Literal["step", "fail", "receive"], str]
Outcome = Literal["refused", "right", "wrong", "stuck"]
CASES = 200


class Edited(TypedDict):
    """A program before and after its edit."""

    before: list[Call]
    after: list[Call]


def cases(kind: Kind, number: int) -> list[Edited]:
    """The same programs and edits for each runtime."""
    chance = random.Random(f"{kind} 30")
    return [_case(chance, count()) for _ in range(number)]


def _case(chance: random.Random, names: count[int]) -> Edited:
    first, second = ([_call(chance, names) for _ in range(chance.randint(1, 4))] for _ in "12")
    before: list[Call] = [*first, ("receive", STOP), *second]
    return {"before": before, "after": _edited(before, chance, names)}


def _call(chance: random.Random, names: count[int]) -> Call:
    kind: Any = chance.choice(("step", "step", "fail", "receive"))
    return kind, f"{kind}{next(names)}"


def _edited(calls: list[Call], chance: random.Random, names: count[int]) -> list[Call]:
    made = list(calls)
    at = chance.choice([place for place, call in enumerate(made) if call[1] != STOP])
    match chance.randrange(4):
        case 0:
            made.insert(at, _call(chance, names))
        case 1:
            del made[at]
        case 2:
            made[at] = (made[at][0], f"{made[at][0]}{next(names)}")
        case _:
            call = made.pop(at)
            places = [place for place in range(len(made) + 1) if place != at]
            made.insert(chance.choice(places), call)
    return made


def values(calls: list[Call]) -> list[str]:
    """What the code returns if each call gets its own value."""
    return [name for _, name in calls]


def topics(calls: list[Call]) -> list[str]:
    return [name for kind, name in calls if kind == "receive" and name != STOP]


def measure(*, quick: bool = False) -> Report:
    """Edit the programs on each runtime that is installed."""
    number = 20 if quick else CASES
    figures: dict[str, float | None] = {}
    rows: list[list[str]] = [
        ["", "refused", "right", "silently wrong", "stuck", "old code completes"]
    ]
    for kind in ("functions", "arguments"):
        found = {"milecastle": ours(cases(kind, number), kind)}
        if find_spec("dbos"):
            found["dbos"] = theirs(kind, number)
        for runtime, counted in found.items():
            figures |= {f"{runtime}_{kind}_{name}": value for name, value in counted.items()}
            rows.append([f"{runtime}, {kind}", *map(str, counted.values())])
    return Report(figures=figures, table=columns(rows))


def counted(outcomes: list[Outcome], old_code: int) -> dict[str, int]:
    found = {name: outcomes.count(name) for name in ("refused", "right", "wrong", "stuck")}
    return {**found, "old_code": old_code}


def ours(edited: list[Edited], kind: Kind) -> dict[str, int]:
    """The outcomes of flows on a store in memory."""
    outcomes: list[Outcome] = []
    old_code = 0
    for case in edited:
        store = MemoryStore()
        with closing(_app(case["before"], kind, store)) as old:
            old.invoke({}, "t")
            _send(old, topics(case["before"]))
            if topics(case["before"][: case["before"].index(("receive", STOP))]):
                old.resume("t")
            with closing(_app(case["after"], kind, store)) as new:
                _send(new, [*topics(case["after"]), STOP])
                try:
                    outcomes.append(_judged(_completed(new), case["after"]))
                except ResumeRefused:
                    outcomes.append("refused")
                    old_code += _completed(old) == values(case["before"])
    return counted(outcomes, old_code)


def _judged(result: object, calls: list[Call]) -> Outcome:
    return "right" if result == values(calls) else "wrong"


def _app(calls: list[Call], kind: Kind, store: MemoryStore) -> App[Any]:
    @flow(name="edited")
    def code() -> list[Any]:
        return [_made(call, kind) for call in calls]

    return code.compile(store=store)


def same(name: str) -> str:
    return name


def fails(name: str) -> str:
    raise ValueError(name)


def _made(call: Call, kind: Kind) -> Any:
    called, name = call
    if called == "receive":
        return receive(name)
    try:
        function = same if called == "step" else fails
        return step(function, name, name=name if kind == "functions" else called)
    except StepFailed as error:
        return error.reason


def _send(app: App[Any], names: list[str]) -> None:
    for topic in names:
        app.send("t", topic, topic)


def _completed(app: App[Any]) -> list[Any]:
    while app.state("t").status != "completed":
        app.resume("t")
    found: list[Any] = app.state("t").state["result"]
    return found


def theirs(kind: Kind, number: int) -> dict[str, int]:
    """The outcomes of DBOS: its process ends while the workflows wait, and the next has new code.

    The application version is pinned: by default it is a digest of the source, and the workflows of
    another version are left alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'dbos.sqlite'}"
        for form in ("before", "after"):
            command = [sys.executable, "-m", "benchmarks.dbos_edited_code", url, kind, str(number)]
            done = subprocess.run(
                [*command, form], check=True, capture_output=True, text=True, timeout=600
            )
    outcomes: Any = done.stdout.split()[-number:]
    return counted(outcomes, 0)
