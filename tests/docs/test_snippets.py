"""Every Python snippet of the pages runs, and prints what the page says that it prints.

A page is turned into one script: its `python` blocks, in order, at the lines at which they stand
in the page. A `text output` block says what was printed since the one before it (or since the
start). A block that cannot run is tagged `python no-run: the reason`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, read
from tests.docs.test_prerequisites import HOW_TO, not_installed

MARK = "-- here ends the block at line"
WITH_PYTHON = [page for page in PAGES if "```python" in read(page)]


HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hiding())
"""


def script_of(found: list[Block]) -> str:
    """The script of a page: blank lines where the prose was, a mark after each block."""
    lines: list[str] = []
    for block in found:
        if block.info == "python":
            lines += [""] * (block.line - 1 - len(lines))
            lines += [*block.text.splitlines(), f"print({f'{MARK} {block.line}'!r})"]
    return "\n".join(lines) + "\n"


def problems_of(text: str, folder: Path, hidden: Collection[str] = ()) -> list[str]:
    """Run a page's snippets in a folder; what is wrong with them.

    ``hidden`` are modules that are not installed for them.
    """
    found = list(blocks(text))
    folder.joinpath("page.py").write_text(script_of(found), encoding="utf-8")
    aside = folder / "aside"
    aside.mkdir(exist_ok=True)
    (aside / "sitecustomize.py").write_text(HIDING.format(hidden=set(hidden)), encoding="utf-8")
    paths = [str(aside), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", "page.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    if done.returncode:
        return [done.stderr]
    return _wrong_outputs(found, done.stdout)


def _wrong_outputs(found: list[Block], printed: str) -> list[str]:
    pieces = iter(re.split(rf"^{MARK} \d+\n", printed, flags=re.MULTILINE))
    since, wrong = "", list[str]()
    for block in found:
        if block.info == "python":
            since += next(pieces)
        elif block.info == "text output":
            if _bare(since) != _bare(block.text):
                wrong.append(f"line {block.line} should be\n{since}")
            since = ""
    return wrong


def _bare(text: str) -> list[str]:
    """Lines without the blanks at their ends, which no reader sees."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_snippets_of_the_page_run(page: str, tmp_path: Path) -> None:
    """A how-to page has nothing but what it tells its reader to install."""
    text = read(page)
    hidden = not_installed(text) if page in HOW_TO else ()
    problems = problems_of(text, tmp_path, hidden)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", PAGES)
def test_a_snippet_is_left_out_only_for_a_reason(page: str) -> None:
    for block in blocks(read(page)):
        if block.language == "python" and block.info != "python":
            assert re.fullmatch(r"python no-run: \w.{9,}", block.info), f"line {block.line}"


@pytest.mark.parametrize("page", PAGES)
def test_every_install_line_names_a_package_or_a_pinned_file(page: str) -> None:
    for block in blocks(read(page)):
        for line in block.text.splitlines():
            command, found, given = line.partition("pip install ")
            if found and command in ("", "$ ", "python -m ", "$ python -m "):
                names = [word for word in given.split() if not word.startswith("-")]
                assert names, line
                assert set(names) <= {".", *_installable(given)}, line


def _installable(given: str) -> list[str]:
    pinned = re.findall(r"-r (constraints/\w+\.txt)", given)
    assert all((ROOT / name).exists() for name in pinned)
    named = re.findall(r"\"?milecastle(?:\[[a-z,-]+\])?\"?", given)
    return [*pinned, *named]


# -- the test itself -----------------------------------------------------------------------


def test_a_snippet_that_fails_is_reported_with_its_line(tmp_path: Path) -> None:
    page = "# Page\n\n```python\nx = 1\n```\n\nProse.\n\n```python\nassert x == 2\n```\n"
    (problem,) = problems_of(page, tmp_path)
    assert "line 10" in problem
    assert "AssertionError" in problem


def test_an_output_that_is_not_printed_is_reported(tmp_path: Path) -> None:
    page = "```python\nprint('one')\n```\n\n```text output\n{}\n```\n"
    assert problems_of(page.format("one"), tmp_path) == []
    assert problems_of(page.format("two"), tmp_path) == ["line 6 should be\none\n"]


def test_a_package_that_is_not_named_cannot_be_imported(tmp_path: Path) -> None:
    """Was broken: pages ran with every package that the tests have."""
    page = "{}\n```python\nimport starlette\n```\n"
    bare, named = page.format(""), page.format("`pip install 'milecastle[serve]'`")
    (problem,) = problems_of(bare, tmp_path, not_installed(bare))
    assert "No module named 'starlette'" in problem
    assert "starlette" not in not_installed(named)
    assert "pytest" in not_installed(named)


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    page = "```python\nimport warnings\nwarnings.warn('old')\n```\n"
    assert "UserWarning" in problems_of(page, tmp_path)[0]
