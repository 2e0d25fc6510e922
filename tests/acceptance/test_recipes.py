"""Each recipe runs offline, with the packages that it names and no others, and is on its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.recipes import saga
from milecastle.testing import crash_everywhere
from tests.docs.pages import ROOT, read
from tests.docs.test_prerequisites import not_installed
from tests.docs.test_snippets import HIDING

RECIPES = ROOT / "examples" / "recipes"
PAGE = read("docs/recipes.md")

SAYS = {
    "approval_in_chat": """\
Refund 40?
401
202
202
True Actor(id='ann', how='authenticated', reason='', shown=None, on_behalf_of=None)
""",
    "chat_with_fastapi": """\
streamed: You said: hello
streamed: You said: are you there?
streamed: \n\
['hello', 'You said: hello', 'are you there?', 'You said: are you there?']
""",
    "from_langgraph": """\
waits: ['hello', 'reply to hello', 'paid', 'and now?', 'reply to and now?', 'paid']
done: ['hi', 'reply to hi', 'paid', 'and now?', 'reply to and now?', 'paid']
""",
    "handoff": "You get your money back. Goods may be returned for 30 days.\n",
    "limited_model": """\
sleeping
completed reply 2
interrupted The budget is used up. Grant more?
completed reply 3 {'input': 1800, 'output': 200}
""",
    "nightly_backfill": """\
['completed', 'failed'] 5 files
['completed', 'completed'] 6 files
""",
    "shared_limit": "WHY 49? 50 calls; all at once: False\n",
    "saga": """\
done: book, reserve, charge
undone, because the card was refused
['book rich', 'reserve rich', 'charge rich', 'book poor', 'reserve poor', 'charge poor', \
'charge poor', 'release poor', 'cancel booking of poor']
""",
}
ELSEWHERE = {"support_desk", "early_webhook"}
"""Recipes that `tests/recovery/test_examples.py` runs, as examples."""


@pytest.mark.parametrize("name", SAYS)
def test_recipe_prints_its_outcome_with_the_packages_it_names(name: str, tmp_path: Path) -> None:
    """Seen to fail with `fastapi` taken out of the text of `chat_with_fastapi`."""
    script = RECIPES / f"{name}.py"
    hidden = not_installed(script.read_text("utf-8"))
    (tmp_path / "sitecustomize.py").write_text(HIDING.format(hidden=hidden), "utf-8")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == (SAYS[name], 0), done.stderr


def test_every_recipe_is_short_tested_and_on_the_page() -> None:
    found = {path.stem: path for path in RECIPES.glob("*.py")}
    assert set(found) == set(SAYS)
    for name, path in found.items():
        assert len(path.read_text("utf-8").splitlines()) < 80, name
        assert f"(../examples/recipes/{name}.py)" in PAGE, name
    for name in ELSEWHERE:
        assert f"(../examples/{name}.py)" in PAGE, name


@pytest.mark.parametrize("trip", ["rich", "poor"])
def test_saga_ends_in_the_same_way_wherever_it_crashes(trip: str) -> None:
    given: dict[str, Any] = dict(saga.travel.input(trip))
    crash_everywhere(saga.app, given)
