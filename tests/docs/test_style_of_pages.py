"""Pages are easy to read: short table cells, an opening sentence, plain words, true figures."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.pages import PAGES, ROOT, read

LONGEST_CELL = 250
FINDINGS = {"docs/evidence/audit.md", "docs/evidence/bugs.md"}
"""Registers of findings: a row is one finding."""
GENERATED = "docs/reference/api/"
"""Pages made from docstrings."""
HISTORY = {"CHANGELOG.md", "docs/evidence/model.md", *FINDINGS}
NO_OPENING = {"README.md", "docs/contributing/tests.md", *HISTORY}
OPENINGS = "Read|Use|Look up|Start here|Follow|Work through"
FENCED = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
ODD = (
    "goes? on with|for ever|once more|anew|any more|comes? to rest|(?:is|are) told|stands? under",
    "leaves? aside|brings? over|hands? over|whoever|somebody|what (?:becomes|became|came) of",
)
DIALECT = re.compile(rf"\b(?:{'|'.join(ODD)})\b", flags=re.IGNORECASE)
"""Phrases with a plainer word: resume, forever, again, no longer, stop, is reported, is stored."""
FIGURE = re.compile(r"\| ([\d.]+)[^|]*\| `python -m benchmarks (\w+)`: `(\w+)` \|")


def long_cells(text: str) -> list[int]:
    """Lengths of the table cells above the limit."""
    rows = [line for line in FENCED.sub("", text).splitlines() if line.lstrip().startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    return [len(cell) for cell in cells if len(cell) > LONGEST_CELL]


def says_when_to_read_it(text: str) -> bool:
    """True if the first sentence of a page tells a reader what to use it for."""
    return re.match(rf"(?:<!--.*-->\n)?# .+\n+(?:{OPENINGS})\b.*\w", text) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FINDINGS])
def test_no_table_cell_is_long(page: str) -> None:
    """A row of run-a-fleet had 150 words in one cell."""
    assert long_cells(read(page)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NO_OPENING])
def test_page_says_first_when_to_read_it(page: str) -> None:
    assert says_when_to_read_it(read(page))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in HISTORY and not page.startswith(GENERATED)]
)
def test_page_uses_plain_words(page: str) -> None:
    assert DIALECT.findall(FENCED.sub("", read(page))) == []


def test_figures_of_the_readme_are_those_measured() -> None:
    """Fails if a benchmark was saved again and the README still has the old figure."""
    found = FIGURE.findall(read("README.md"))
    assert len(found) == 4
    for shown, benchmark, name in found:
        saved = ROOT / "docs/evidence/figures/measured" / f"{benchmark}.json"
        places = len(shown.partition(".")[2])
        assert f"{json.loads(saved.read_text('utf-8'))[name]:.{places}f}" == shown, name


# -- the tests themselves ------------------------------------------------------------------


def test_long_cell_is_found() -> None:
    wide = "x" * (LONGEST_CELL + 1)
    assert long_cells(f"| a | {wide} |\n```\n| {wide} |\n```\n{wide}\n") == [LONGEST_CELL + 1]


def test_page_without_an_opening_is_found() -> None:
    assert says_when_to_read_it("# Title\n\nUse this page to see it.\n")
    for opening in ("## Use", "| Use |", "```python", "A thread is a log.", "![Use](b.svg)"):
        assert not says_when_to_read_it(f"# Title\n\n{opening}\n")


def test_odd_phrase_is_found() -> None:
    assert DIALECT.findall("It is kept for ever, and what became of it") == [
        "for ever",
        "what became of",
    ]
