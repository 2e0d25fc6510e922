"""The "Coming from" pages show the programs of `examples/moving` whole and verbatim."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, Block, blocks, read

PEERS = ["langgraph", "dbos", "temporal"]


def shown_of(page: str, program: str) -> list[Block]:
    """The blocks of a page that say that they are part of a program."""
    parts = [block for block in blocks(page) if "part of examples/moving/" in block.info]
    return [part for part in parts if program in re.findall(r"examples/moving/\S+\.py", part.info)]


def differences(page: str, program: str, code: str) -> list[str]:
    """Which blocks are not in the program, and what of the program is in no block."""
    rest, wrong = code, list[str]()
    for block in shown_of(page, program):
        if block.text not in rest:
            wrong.append(f"line {block.line} is not in {program}")
        rest = rest.replace(block.text, "", 1)
    return [*wrong, *(line for line in rest.splitlines() if line.strip())]


PROGRAMS = [
    *(f"{peer}_{when}" for peer in PEERS for when in ("before", "after")),
    "dbos_flow",
    "temporal_flow",
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_page_shows_the_whole_program(name: str) -> None:
    """Fails if a line is changed in the page or in the program only."""
    program = f"examples/moving/{name}.py"
    page, code = read(f"docs/how-to/coming-from-{name.partition('_')[0]}.md"), read(program)
    assert len(shown_of(page, program)) == 3
    assert differences(page, program, code) == []


def test_every_program_has_its_page() -> None:
    programs = {path.stem for path in (ROOT / "examples" / "moving").glob("*.py")}
    assert programs == {*PROGRAMS}


def test_changed_line_is_reported() -> None:
    name = "examples/moving/a.py"
    page = f"```python no-run: part of {name}\nx = 1\n```\n"
    assert differences(page, name, "x = 1\n") == []
    assert differences(page, name, "x = 2\n") == [f"line 2 is not in {name}", "x = 2"]
    assert differences(page, name, "x = 1\ny = 1\n") == ["y = 1"]
