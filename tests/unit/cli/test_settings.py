"""Where settings come from, and which wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle import InvalidRequest
from milecastle.app.settings import Setting, read_settings
from milecastle.cli.places import masked, path_of
from tests.unit.cli.commands import Desk


def test_the_environment_wins_over_the_file_name_by_name(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.milecastle]\nstore = "sqlite:///a.db"\ntenant = "acme"\n')
    found = read_settings(tmp_path, {"MILECASTLE_STORE": "sqlite:///b.db", "MILECASTLE_APP": ""})
    assert found.store == Setting("sqlite:///b.db", "MILECASTLE_STORE")
    assert found.tenant == Setting("acme", str(file), tmp_path)
    assert found.app is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sqlite:///a.db", "sqlite:////{}/a.db"),
        ("sqlite:////abs/a.db", "sqlite:////abs/a.db"),
        ("file://work", "file:///{}/work"),
        ("file:///abs/work", "file:///abs/work"),
        ("postgresql://host/db", "postgresql://host/db"),
    ],
)
def test_a_relative_place_is_relative_to_the_file(tmp_path: Path, given: str, meant: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.milecastle]\nstore = "{given}"\n')
    (tmp_path / "deep").mkdir()
    found = read_settings(tmp_path / "deep", {}).store
    assert found is not None
    assert found.value == meant.format(tmp_path.as_posix().lstrip("/"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tool.milecastle]\nstoer = "x"\n', "stoer, which is no setting"),
        ("[tool.milecastle]\nstore = 5\n", "must be a text"),
        ("[tool]\nmilecastle = 5\n", "must be a table"),
        ("[tool\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        read_settings(tmp_path, {})


def test_a_file_without_settings_is_fine(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read_settings(tmp_path, {}).store is None


def test_flag_then_app_then_environment_then_file_then_the_usual_file(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.start("of-the-app")
    given = ("run", "demo:graph", "--input", '{"topic": "w"}')
    desk.call(*given, "--thread", "of-the-flag", "--store", "sqlite:///flag.db")
    desk.write("pyproject.toml", '[tool.milecastle]\nstore = "sqlite:///file.db"\n')
    desk.call(*given, "--thread", "of-the-file")
    monkeypatch.setenv("MILECASTLE_STORE", "sqlite:///environment.db")
    desk.call(*given, "--thread", "of-the-environment")
    assert threads(desk, "--store", "sqlite:///flag.db") == ["of-the-flag"]
    assert threads(desk) == ["of-the-environment"]
    monkeypatch.delenv("MILECASTLE_STORE")
    assert threads(desk) == ["of-the-file"]
    (desk.folder / "pyproject.toml").unlink()
    assert threads(desk) == ["of-the-app"]
    monkeypatch.setenv("MILECASTLE_STORE", "sqlite:///environment.db")
    desk.start("again-of-the-app")
    assert threads(desk) == ["of-the-environment"]


def threads(desk: Desk, *arguments: str) -> list[str]:
    return [line.thread for line in desk.document("ls", *arguments).threads]


def test_the_app_of_the_settings_is_found_from_a_folder_below(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.start()
    desk.write(
        "pyproject.toml", '[tool.milecastle]\napp = "demo:app"\nstore = "sqlite:///runs.db"\n'
    )
    (desk.folder / "deep").mkdir()
    monkeypatch.chdir(desk.folder / "deep")
    assert threads(desk) == ["demo"]
    desk.call("check")


def test_the_tenant_of_the_settings_holds_unless_the_app_has_its_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILECASTLE_TENANT", "acme")
    desk.start("a")
    assert threads(desk) == ["a"]
    assert threads(desk, "--tenant", "default") == []
    desk.call("run", "demo:graph", "--thread", "g", "--input", '{"topic": "w"}', "--store",
              "sqlite:///runs.db")  # fmt: skip
    assert threads(desk) == ["a", "g"]


def test_a_store_can_be_that_of_the_app(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.start()
    (desk.folder / "runs.db").rename("moved.db")
    desk.write(
        "other.py", "from demo import graph\napp = graph.compile(store='sqlite:///moved.db')"
    )
    assert desk.document("show", "demo", "--app", "other:app").thread == "demo"
    monkeypatch.setenv("MILECASTLE_APP", "other:app")
    (desk.folder / "runs.db").unlink(missing_ok=True)
    assert desk.document("show", "demo").thread == "demo"


def test_a_password_is_never_shown() -> None:
    assert masked("postgresql://u:secret@host/db?x=1") == "postgresql://u:***@host/db?x=1"
    assert masked("postgresql://host/db?password=secret&x=1").endswith("?password=***&x=1")
    assert masked("postgresql://u:p@ss@host/db") == "postgresql://u:***@host/db"
    assert masked("sqlite:///a.db") == "sqlite:///a.db"


def test_the_path_of_a_store() -> None:
    assert path_of("sqlite:///a%20b.db?synchronous=normal") == Path("a b.db").absolute()
    assert path_of("sqlite:////tmp/a.db") == Path("/tmp/a.db")
    assert path_of("file:///tmp/a") == Path("/tmp/a")
    assert path_of("postgresql://host/db") is None
    assert path_of("sqlite://") is None
