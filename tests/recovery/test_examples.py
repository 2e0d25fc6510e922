"""Every example runs as a script, and no crash changes how its graph ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import (
    human_approval,
    looping_graph,
    parallel_research,
    per_invoke_overrides,
    resume_after_crash,
)
from milecastle import App
from milecastle.stores.memory import MemoryStore
from milecastle.testing import CrashMismatch, ManualClock, TornStore, crash_everywhere

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

SAYS = {
    "human_approval": ["interrupted before 'decide'", "completed: published", "not published"],
    "looping_graph": ["good enough after 4 steps", "limit of 20 steps", "stopped at 'polish'"],
    "parallel_research": ["two books on milecastles; a letter", "an opinion on milecastles"],
    "per_invoke_overrides": ["the default of 10 steps: 20 left", "0 left after 30"],
    "resume_after_crash": ["died in 'reserve'", "total 20, priced, reserved lamp, reserved rope"],
}

GRAPHS: dict[str, tuple[App[Any], dict[str, Any]]] = {
    "human_approval": (human_approval.app, {"topic": "walls", "approved": True}),
    "looping_graph": (looping_graph.app, {"quality": 0, "gain": 30}),
    "parallel_research": (parallel_research.app, {"question": "milecastles"}),
    "per_invoke_overrides": (per_invoke_overrides.app, {"left": 5}),
    "resume_after_crash": (resume_after_crash.app, {"items": ["lamp", "rope"]}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs_as_a_script(name: str) -> None:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words in SAYS[name]:
        assert words in done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", range(3))
def test_no_crash_changes_how_the_example_ends(name: str, seed: int) -> None:
    app, given = GRAPHS[name]
    report = crash_everywhere(app, given, seed=seed)
    assert report.crashes == 2 * report.effects > 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_commits_that_are_not_atomic_are_found_out_with_the_example(name: str) -> None:
    app, given = GRAPHS[name]
    torn = TornStore(MemoryStore(), late={"runs"})
    with pytest.raises(CrashMismatch):
        crash_everywhere(app.using(store=torn, clock=ManualClock()), given)


def test_the_examples_are_short() -> None:
    sizes = {
        name: len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) for name in EXAMPLES
    }
    assert {name: size for name, size in sizes.items() if size >= 60} == {}


def test_the_readme_lists_every_example() -> None:
    readme = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert [name for name in EXAMPLES if f"[{name}.py]({name}.py)" not in readme] == []
