"""The store of the page about writing one passes the contract, with public imports only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks, read

PAGE = "docs/how-to/write-a-store.md"


def programs() -> list[str]:
    return [block.text for block in blocks(read(PAGE)) if block.info == "python"]


def modules_of(text: str) -> set[str]:
    """The modules of the package from which a program imports."""
    return set(re.findall(r"^(?:from|import) (milecastle[\w.]*)", text, re.MULTILINE))


def test_authors_of_a_store_import_from_public_modules_only() -> None:
    """Broken on purpose: `Maintenance` imported from `milecastle.ports.maintenance`."""
    contract, *others = programs()
    assert modules_of(contract) == {"milecastle.stores", "milecastle.testing"}
    public = {"milecastle", "milecastle.stores", "milecastle.testing", "milecastle.builds"}
    assert set().union(*map(modules_of, others)) <= public


def test_store_of_the_page_passes_the_contract(tmp_path: Path) -> None:
    """Broken on purpose: `commit` of the page's store forgets the results of tasks."""
    path = tmp_path / "test_my_store.py"
    path.write_text(programs()[0], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 100


@pytest.mark.slow
@pytest.mark.parametrize("broken", [True, False])
def test_a_store_that_forgets_results_would_be_caught(tmp_path: Path, broken: bool) -> None:
    """The same run on a store that cheats: the control of the test above."""
    forgetting = """
    def commit(self, batch):
        import msgspec
        super().commit(msgspec.structs.replace(batch, results=()))
"""
    text = programs()[0]
    marker = "        super().__init__()\n"
    assert marker in text
    path = tmp_path / "test_my_store.py"
    path.write_text(text.replace(marker, marker + (forgetting if broken else "")))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)]
    command += ["-k", "result"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if broken else 0), done.stdout
