"""The map of requirements is read off the tests, and a gap or a stale map fails the check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.requirements_map import (
    COVERED,
    MAP,
    PAGES,
    RULINGS,
    TESTS,
    TITLES,
    collect,
    main,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A made-up repository in which every covered number has a test and the map is fresh."""
    write(tmp_path, "test_all.py", "".join(made_up(number) for number in sorted(COVERED)))
    assert main(["--root", str(tmp_path)]) == 0
    assert check(tmp_path) == 0
    return tmp_path


def made_up(number: str, extra: str = "") -> str:
    mark = f'@pytest.mark.requirement("{number}", api="App.invoke")'
    return f'{extra}{mark}\ndef test_{number.lower()}() -> None:\n    """Shows {number}."""\n\n\n'


def write(root: Path, name: str, text: str) -> None:
    (root / TESTS).mkdir(parents=True, exist_ok=True)
    (root / TESTS / name).write_text("import pytest\n\n\n" + text, encoding="utf-8")


def check(root: Path) -> int:
    return main(["--check", "--root", str(root)])


def test_fresh_map_has_a_row_for_each_requirement(tree: Path) -> None:
    text = (tree / MAP).read_text("utf-8")
    assert f"| G1 | {TITLES['G1']} | G1. | [1 tests](requirements/graphs.md#g1) |" in text
    assert f"| U5 | {TITLES['U5']} | Lines and branches are counted" in text
    assert len(re.findall(r"^\| [A-Z]\d+ \|", text, flags=re.MULTILINE)) == len(TITLES)
    assert max(len(cell) for line in text.splitlines() for cell in line.split("|")) <= 250


def test_pages_list_every_test_and_every_ruling(tree: Path) -> None:
    graphs = (tree / PAGES / "graphs.md").read_text("utf-8")
    heading = f"## G1\n\n**{TITLES['G1']}.** Public API: `App.invoke`."
    assert f"{heading}\n\n`{TESTS.as_posix()}/test_all.py`:\n\n- `test_g1`\n" in graphs
    rulings = (tree / PAGES / "rulings.md").read_text("utf-8")
    assert rulings.count("- Reason: ") == len(RULINGS)


def test_two_tests_nearest_to_the_requirement_are_shown(tree: Path) -> None:
    """Fails if the first two are shown."""
    names = ("runs", "compile_reports_every_problem", "stops", "problem_has_a_code_and_a_place")
    more = "".join(made_up("G4").replace("test_g4", f"test_{name}") for name in names)
    write(tree, "test_more.py", more)
    assert main(["--root", str(tree)]) == 0
    shown = "Compile reports every problem.<br>Problem has a code and a place."
    row = f"| G4 | {TITLES['G4']} | {shown} | [5 tests]("
    assert row in (tree / MAP).read_text("utf-8")


def test_a_ruling_has_a_known_number_and_a_reason(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the check does not look at the numbers of rulings."""
    assert all(all(ruling) for ruling in RULINGS)
    assert {"G2", "G3", "C3", "T1", "X1", "X3"} <= {ruling.number for ruling in RULINGS}
    wrong = RULINGS[0]._replace(number="G99")
    monkeypatch.setattr("scripts.requirements_map.RULINGS", (wrong,))
    assert main(["--root", str(tree)]) == 1
    assert "a ruling names G99, which is not a requirement" in capsys.readouterr().err


def test_a_stale_map_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tree, "test_more.py", made_up("G1").replace("test_g1", "test_another"))
    assert check(tree) == 1
    assert "is stale" in capsys.readouterr().err


def test_a_map_that_was_never_written_fails(tree: Path) -> None:
    (tree / MAP).unlink()
    assert check(tree) == 1


def test_page_that_is_left_over_fails_and_is_removed(tree: Path) -> None:
    (tree / PAGES / "old.md").write_text("old", encoding="utf-8")
    assert check(tree) == 1
    assert main(["--root", str(tree)]) == 0
    assert not (tree / PAGES / "old.md").exists()


def test_checking_writes_nothing(tree: Path) -> None:
    (tree / MAP).write_text("old", encoding="utf-8")
    assert check(tree) == 1
    assert (tree / MAP).read_text("utf-8") == "old"


@pytest.mark.parametrize("mark", ["skip", "xfail"])
def test_a_test_that_does_not_run_shows_nothing(
    tree: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    others = "".join(made_up(number) for number in sorted(COVERED - {"C2"}))
    write(tree, "test_all.py", others + made_up("C2", f'@pytest.mark.{mark}(reason="later")\n'))
    assert main(["--root", str(tree)]) == 1
    assert capsys.readouterr().err == "C2 is covered but no acceptance test shows it\n"


def test_a_covered_number_without_a_test_fails_even_when_the_map_is_fresh(tree: Path) -> None:
    write(tree, "test_all.py", "".join(made_up(number) for number in sorted(COVERED - {"T5"})))
    assert main(["--root", str(tree)]) == 1
    assert check(tree) == 1
    assert "**no test**" in (tree / MAP).read_text("utf-8")


def test_an_unknown_number_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tree, "test_more.py", made_up("Q7"))
    assert main(["--root", str(tree)]) == 1
    assert "Q7, which is not a requirement" in capsys.readouterr().err


def test_classes_async_tests_and_several_numbers_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_forms.py",
        '@pytest.mark.requirement("S1", "S2")\nclass TestStores:\n'
        "    async def test_a_store_keeps_what_it_is_given(self) -> None: ...\n"
        "    def helper(self) -> None: ...\n",
    )
    found = [(proof.number, proof.test, proof.says) for proof in collect(tmp_path)]
    name = "TestStores::test_a_store_keeps_what_it_is_given"
    assert found == [(n, name, "a store keeps what it is given.") for n in ("S1", "S2")]
