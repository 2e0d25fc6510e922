"""What the pages say of the code is so: links, tests, error codes, generated parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from milecastle import errors
from scripts import api_reference, diagrams
from tests.docs.pages import PAGES, ROOT, read

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PATH = re.compile(r"`((?:src|docs|scripts|benchmarks|examples)/[\w/.-]+\.\w+)`")
MOST_LINES_OF_README = 200


def anchors(text: str) -> set[str]:
    """The anchors that the headings of a page give."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def dead_links(page: str, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    dead: list[str] = []
    for target, anchor in LINK.findall(text):
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text("utf-8"))):
            dead.append(f"{target}#{anchor}")
    return dead


def missing_files(text: str) -> list[str]:
    """The tests and files that a page names and that are not there."""
    missing = [name for name in PATH.findall(text) if not (ROOT / name).exists()]
    for name, test in TEST.findall(text):
        path = ROOT / name
        if not path.exists() or (test and f"def {test}(" not in path.read_text("utf-8")):
            missing.append(f"{name}::{test}")
    return missing


def cut_tables(text: str) -> list[str]:
    """The rows that are shown as text, because no head of a table is above them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^\|.*\n)+", text + "\n", flags=re.MULTILINE)
    return [rows[:60] for rows in blocks if not re.match(r".*\n\|[-:| ]+\|\n", rows)]


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_whole(page: str) -> None:
    """Fails with an empty line between two rows: docs/dependencies.md had one."""
    assert cut_tables(read(page)) == []


def test_table_that_an_empty_line_cuts_is_found() -> None:
    """The control of the test above."""
    assert cut_tables("| a |\n|---|\n| b |\n\n| c |\n") == ["| c |\n"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert dead_links(page, read(page)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if "adr/0000" not in page])
def test_files_and_tests_that_a_page_names_are_there(page: str) -> None:
    assert missing_files(read(page)) == []


def test_a_dead_link_and_a_missing_test_are_found() -> None:
    assert dead_links("README.md", "[a](nowhere.md) [b](README.md#nothing)") == [
        "nowhere.md#",
        "README.md#nothing",
    ]
    here = Path(__file__).relative_to(ROOT).as_posix()
    assert missing_files(f"`{here}::test_nothing`, `src/nothing.py`") == [
        "src/nothing.py",
        f"{here}::test_nothing",
    ]


def test_every_error_code_has_its_section_and_no_other_has_one() -> None:
    found = (getattr(errors, name) for name in errors.__all__)
    raised = {error.code for error in found if issubclass(error, errors.MilecastleError)}
    source = [path.read_text("utf-8") for path in (ROOT / "src/milecastle").rglob("*.py")]
    reported = set(re.findall(r'(?:report|Problem)\(\s*"(MC\d{3})"', "".join(source)))
    sections = re.findall(r"^#+ (MC\d{3})\b", read("docs/errors.md"), flags=re.MULTILINE)
    assert len(reported) > 10
    assert sections == sorted(raised | reported)


def test_the_index_leads_to_every_page() -> None:
    index = read("docs/index.md")
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")]
    assert [page for page in pages if f"({page})" not in index and page != "index.md"] == []


def test_the_security_page_says_where_to_report_and_what_is_fixed() -> None:
    """Seen to fail: the page had neither."""
    page = read("SECURITY.md")
    assert "## Supported versions\n\n| version | fixes |" in page
    assert re.search(r"^Contact: .*Report a vulnerability", page, flags=re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= MOST_LINES_OF_README


def test_diagrams_are_fresh() -> None:
    """Run states, and the folders and imports in ARCHITECTURE.md.

    Seen to fail with an import of ``milecastle.views`` added to ``testing/clock.py``.
    """
    assert diagrams.main(["--check"]) == 0


def test_files_named_in_the_architecture_exist() -> None:
    """Paths of the map and of "Where is it decided?". Seen to fail with `engine/statuses.py`."""
    package = diagrams.ROOT / diagrams.PACKAGE
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", read("ARCHITECTURE.md")))
    assert len(named) > 20
    places = (package, diagrams.ROOT)
    assert sorted(path for path in named if not any((at / path).exists() for at in places)) == []


def test_the_api_reference_is_fresh() -> None:
    assert api_reference.main(["--check"]) == 0


@pytest.mark.parametrize("stale", [*diagrams.PICTURES, *(at for at, _ in diagrams.TEXTS.values())])
def test_a_stale_diagram_is_reported_and_redrawn(
    stale: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if only that the file exists is compared, and if a picture that is gone is not."""
    for name, (page, _) in diagrams.TEXTS.items():
        (tmp_path / page).write_text(f"{diagrams.begin(name)}\nold\n{diagrams.END_OF_TEXT}\nb\n")
    assert diagrams.main(["--root", str(tmp_path)]) == 0
    path = tmp_path / stale
    fresh = path.read_text("utf-8")
    assert "engine" in fresh or "superseded" in fresh
    path.write_text(fresh.replace("engine", "motor").replace("superseded", "replaced"))
    assert diagrams.main(["--check", "--root", str(tmp_path)]) == 1
    assert f"{stale.as_posix()} is stale" in capsys.readouterr().err
    assert diagrams.main(["--root", str(tmp_path)]) == 0
    assert diagrams.main(["--check", "--root", str(tmp_path)]) == 0
    if path.suffix == ".svg":
        path.unlink()
    else:
        path.write_text("no place for it", encoding="utf-8")
    assert diagrams.main(["--check", "--root", str(tmp_path)]) == 1


def test_a_stale_reference_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = tmp_path / "src" / "milecastle" / "app.py"
    module.parent.mkdir(parents=True)
    package = module.parent / "__init__.py"
    package.write_text('from milecastle.app import go\n__all__ = ["go"]\n', encoding="utf-8")
    for name in api_reference.PUBLIC[1:]:
        other = (tmp_path / "src").joinpath(*name.split(".")).with_suffix(".py")
        other.parent.mkdir(exist_ok=True)
        other.write_text("__all__ = []\n", encoding="utf-8")
    module.write_text('def go(x: int = 1) -> None:\n    """Go on."""\n', encoding="utf-8")
    root = ["--root", str(tmp_path)]
    assert api_reference.main(["--check", *root]) == 1
    assert api_reference.main(root) == 0
    assert api_reference.main(["--check", *root]) == 0
    page = tmp_path / api_reference.FOLDER / "graphs-and-apps.md"
    text = page.read_text("utf-8")
    assert "def go(x: int = 1) -> None\n```\n\nGo on.\n" in text
    private = 'class Hidden: ...\nOne = int | str\ndef go(x: One) -> Hidden:\n    """Go."""\n'
    module.write_text(private, encoding="utf-8")
    with pytest.raises(api_reference.PrivateType):
        api_reference.main(root)
    module.write_text(private.replace("-> Hidden", "-> None"), encoding="utf-8")
    assert api_reference.main(root) == 0
    assert "def go(x: int | str) -> None" in page.read_text("utf-8")
    page.with_name("left-over.md").touch()
    assert api_reference.main(["--check", *root]) == 1
    assert api_reference.main(root) == 0
    assert not page.with_name("left-over.md").exists()
    module.write_text('def go(x: int = 2) -> None:\n    """Go on."""\n', encoding="utf-8")
    assert api_reference.main(["--check", *root]) == 1
    assert "is stale" in capsys.readouterr().err
