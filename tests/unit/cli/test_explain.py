"""explain: the page of each code, also for users who have the wheel and not the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from milecastle import errors
from milecastle.cli.verbs.explain import error_pages
from tests.docs.pages import ROOT, read
from tests.unit.cli.commands import Desk

SECTIONS = re.findall(r"^#+ (MC\d{3}) (.*)$", read("docs/errors.md"), flags=re.MULTILINE)


@pytest.mark.parametrize(("code", "title"), SECTIONS)
def test_every_code_is_explained(desk: Desk, code: str, title: str) -> None:
    """The text stands alone: it has no links to pages that only the repository has."""
    lines = desk.out("explain", code).splitlines()
    assert lines[0] == f"{code} {title}"
    assert len(lines) > 2
    assert ".md" not in "".join(lines)
    assert not any(line.startswith(("## MC", "### MC")) for line in lines)


def test_every_code_that_is_raised_has_a_page() -> None:
    """Seen to fail with the section of MC206 left out."""
    found = (getattr(errors, name) for name in errors.__all__)
    raised = {error.code for error in found if issubclass(error, errors.MilecastleError)}
    assert raised - error_pages().keys() == set()


@pytest.mark.parametrize("typed", ["mc301", "MC301", "301"])
def test_a_code_is_found_however_it_is_typed(desk: Desk, typed: str) -> None:
    document = desk.document("explain", typed)
    assert (document.code, document.title) == ("MC301", error_pages()["MC301"].title)
    assert "MC301" in desk.err("explain", "MC999", code=2)


def test_an_error_says_how_to_read_its_page(desk: Desk) -> None:
    """Seen to fail: the message named a file that only the repository has."""
    desk.start()
    text = desk.err("show", "nothing", code=2)
    assert "`milecastle explain MC306` explains it" in text


def test_no_message_names_a_file_of_the_repository() -> None:
    """Seen to fail with "is explained in docs/errors.md" in `cli/verb.py`."""
    source = ROOT / "src" / "milecastle"
    named = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"""["'].*\bdocs/\w""", line) and '"""' not in line
    ]
    assert named == []


def test_the_wheel_holds_the_page_and_prints_it(tmp_path: Path) -> None:
    """From the wheel alone; seen to fail without force-include in pyproject.toml."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
    ]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
        shipped = archive.read("milecastle/cli/errors.md").decode()
    assert shipped == read("docs/errors.md")
    done = subprocess.run(
        [sys.executable, "-m", "milecastle", "explain", "MC301"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("MC301 ")
