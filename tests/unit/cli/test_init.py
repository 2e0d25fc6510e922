"""``milecastle init``: what it writes, and what it never overwrites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.commands import Desk

FILES = {"orders.py", "test_orders.py", "pyproject.toml"}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_project_passes_its_own_tests(desk: Desk) -> None:
    """In this environment; tests/docs/test_new_user.py does the same in an empty one.

    Seen to fail with a ``price`` that adds an item to the state in place, which a crash loses.
    """
    assert set(desk.document("init", "new").files) == names_in(Path("new")) == FILES
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd="new", capture_output=True, text=True, timeout=300, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_agent_is_written_out_as_a_graph(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if its edited arguments are not passed on, or if a crash changes what is said."""
    files = {"desk.py", "test_desk.py", "pyproject.toml"}
    assert set(desk.document("init", "--agent", "new").files) == names_in(Path("new")) == files
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd="new", capture_output=True, text=True, timeout=300, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    monkeypatch.chdir("new")
    asked = '{"messages": [{"role": "user", "content": "My lamp arrived broken."}]}'
    desk.out("run", "--thread", "t-1", "--input", asked, code=3)
    assert desk.document("show", "t-1").status == "interrupted"


def test_what_init_prints_can_be_pasted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the project name its graph and its store."""
    assert "\n  cd 'a b'\n" in desk.out("init", "a b")
    assert "\n  cd ./-b\n" in desk.out("init", "--", "-b")  # `cd -b` is an option
    monkeypatch.chdir("a b")
    assert "\n  cd " not in desk.err("init", code=2)
    desk.call("run", "--thread", "order-1", "--input", '{"items": ["lamp"]}')
    assert desk.document("show", "order-1").state["log"] == ["paid 10", "shipped lamp"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_is_overwritten_and_none_is_written_beside_it(desk: Desk, name: str) -> None:
    """Fails if init skips files that exist, or writes over them."""
    folder = desk.folder / "new"
    folder.mkdir()
    (folder / name).write_text("mine")
    assert f"already has {name}: nothing was written" in desk.err("init", "new", code=2)
    assert names_in(folder) == {name}
    assert (folder / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_a_file_that_is_there(desk: Desk) -> None:
    """Fails if links are followed: two files were written before the third was refused."""
    folder = desk.folder / "new"
    folder.mkdir()
    (folder / "test_orders.py").symlink_to(desk.folder / "nowhere")
    assert "nothing was written" in desk.err("init", "new", code=2)
    assert names_in(folder) == {"test_orders.py"}


def test_a_place_that_is_not_a_folder_is_refused(desk: Desk) -> None:
    desk.write("new", "a file")
    assert "cannot be written" in desk.err("init", "new", code=2)
    assert (desk.folder / "new").read_text() == "a file"
