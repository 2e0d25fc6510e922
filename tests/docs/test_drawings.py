"""Charts show what their pages state; drawings of concepts can be read by everybody."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts import charts
from tests.docs.pages import PAGES, ROOT, read

CONCEPTS = {
    "log-and-fence": "docs/explanation/log-and-fence.md",
    "deltas-and-rollups": "docs/explanation/deltas-and-rollups.md",
    "life-of-a-run": "docs/explanation/runs.md",
    "takeover": "docs/explanation/runs.md",
    "fleet": "docs/how-to/run-a-fleet.md",
    "tenants-and-shards": "docs/how-to/multi-tenancy.md",
}
DRAWINGS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/images").glob("*/*.svg")
)
FIGURES = """{"title": "Speed <1>", "unit": "steps", "better": "higher",
"page": "docs/evidence/a.md", "series": ["peer", "ours"],
"groups": [{"name": "x & y", "values": [1234, 5.5]}]}"""
PAGE = "1,234 and 5.5\n\n![Speed](../images/charts/speed.svg)\n"


@pytest.mark.parametrize("name", CONCEPTS)
def test_concept_page_shows_its_drawing(name: str) -> None:
    """Fails if the line is taken out of a page."""
    assert f"(../images/concepts/{name}.svg)" in read(CONCEPTS[name])


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_drawing_is_described_fits_and_loads_nothing(drawing: str) -> None:
    """Fails with a drawing of 721 pixels, without a description, or with a font from elsewhere."""
    text = read(drawing)
    root = ET.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{name}title")
    assert root.findtext(f"{name}desc")
    assert int(root.attrib["width"]) <= 720
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"@import|@font-face|href=|url\((?!#)|<script", text) == []
    shown = [page for page in PAGES if f"/{drawing.removeprefix('docs/')})" in read(page)]
    assert shown, "no page shows it"


def test_charts_are_fresh() -> None:
    """Fails if a value of a figure file is changed, or a table of its page."""
    assert charts.main(["--check"]) == 0


def test_charts_draw_what_was_measured() -> None:
    """Fails if a figure is typed: only the 1 of the peer that others are compared with may be."""
    for source in (ROOT / charts.FIGURES).glob("*.json"):
        groups: list[dict[str, list[object]]] = json.loads(source.read_bytes())["groups"]
        values = [value for group in groups for value in group["values"]]
        typed = [value for value in values if not isinstance(value, str) and value != 1]
        assert typed == [], source.name


def made(root: Path, figures: str = FIGURES, page: str = PAGE) -> list[str]:
    """A folder with one figure and its page; the arguments that name it."""
    for name, text in {"figures/speed.json": figures, "a.md": page}.items():
        path = root / "docs/evidence" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return ["--root", str(root)]


def test_chart_is_drawn_once_and_stale_when_figures_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the check does not compare."""
    here = made(tmp_path)
    assert charts.main(["--check", *here]) == 1
    assert charts.main(here) == 0
    assert charts.main(["--check", *here]) == 0
    drawn = (tmp_path / "docs/images/charts/speed.svg").read_text("utf-8")
    assert "Speed &lt;1&gt;" in drawn
    assert ">1,234<" in drawn
    made(tmp_path, FIGURES.replace("1234", "5.5"))
    assert charts.main(["--check", *here]) == 1
    assert "speed: it is stale" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (PAGE.replace("1,234", "11,234"), "does not state 1,234"),
        (PAGE.replace("5.5", "5.51"), "does not state 5.5"),
        ("1,234 and 5.5", "does not show it"),
    ],
)
def test_chart_that_does_not_fit_its_page_is_reported(
    page: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if numbers are looked for without their ends."""
    assert charts.main(made(tmp_path, page=page)) == 1
    assert problem in capsys.readouterr().err


def test_value_is_what_a_benchmark_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the number of the chart is not read from the file, and if a missing one is 0."""
    arguments = made(tmp_path, FIGURES.replace("5.5", '"steps.ratio"'))
    saved = tmp_path / "docs/evidence/figures/measured/steps.json"
    saved.parent.mkdir()
    saved.write_text('{"ratio": 5.5}')
    assert charts.main(arguments) == 0
    saved.write_text('{"ratio": 6.5}')
    assert charts.main(arguments) == 1
    assert "does not state 6.5" in capsys.readouterr().err
    saved.write_text('{"ratio": null}')
    with pytest.raises(ValueError, match="has no ratio"):
        charts.main(arguments)


@pytest.mark.parametrize("values", ["[1]", "[1, 2, 3]"])
def test_figures_of_another_shape_are_refused(values: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one value for each series"):
        charts.main(made(tmp_path, FIGURES.replace("[1234, 5.5]", values)))
