"""The code of the README and of the tutorial passes `mypy --strict`, as a user would run it."""

from __future__ import annotations

import pytest

from tests.docs.pages import blocks, read
from tests.docs.test_demo import demo
from tests.docs.typing_check import errors_of


def programs(page: str) -> list[str]:
    """The programs of a page: what runs in order is one, what is not run is one each."""
    found = [block for block in blocks(read(page)) if block.language == "python"]
    in_order = "\n".join(block.text for block in found if block.info == "python")
    return [in_order, *(block.text for block in found if block.info != "python")]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_code_of_the_page_passes_mypy(page: str) -> None:
    """Seen to fail with the pages as they were: nodes returned a bare ``dict``."""
    for program in programs(page):
        assert errors_of(program) == []


def test_code_of_a_new_project_passes_mypy() -> None:
    """Fails with a node that returns a bare ``dict``."""
    assert errors_of(read("src/milecastle/cli/template/orders.py.txt")) == []


def test_code_of_the_demo_passes_mypy() -> None:
    assert errors_of(demo()) == []


def test_every_program_of_the_readme_is_checked() -> None:
    (in_order,) = programs("README.md")
    assert "interrupt(" in in_order
    assert errors_of(in_order + "\napp.nothing") != []
