"""Imports go down only: the contract in pyproject.toml holds, and would catch a breach."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=root,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_imports_go_down_only() -> None:
    outcome = lint(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_contract_has_no_exceptions() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    assert {contract["type"] for contract in contracts} == {
        "layers",
        "forbidden",
        "acyclic_siblings",
    }
    assert all(one["exhaustive"] for one in contracts if one["type"] == "layers")
    assert not [option for contract in contracts for option in contract if "ignore" in option]


def test_only_the_command_line_imports_click() -> None:
    """``views``, and so the server, imported it for the errors of options."""
    package = ROOT / "src" / "milecastle"
    found = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import|from) click\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert [path for path in found if not path.startswith("cli/")] == []


BREACHES = [
    ("engine", "stores"),
    ("stores", "observers"),
    ("observers", "engine"),
    ("engine", "drivers"),
    ("codec", "engine"),
    ("graph", "codec"),
    ("codec", "graph"),
    ("ports", "graph"),
    ("model", "ports"),
    ("app", "testing"),
    ("views", "cli"),
    ("fleet", "server"),
    ("server", "cli"),
    ("builds", "app"),
    ("disk", "ports"),
    ("errors", "model"),
    ("cli", "stores.jsonl"),
]


def test_each_breach_is_caught(tmp_path: Path) -> None:
    """Fails if one of these layers may import the other: then its line is not in the report."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    imports: list[str] = []
    for number, (low, high) in enumerate(BREACHES):
        package = tmp_path / "src" / "milecastle" / low
        is_folder = package.is_dir()
        module = package / f"breach_{number}.py" if is_folder else package.with_suffix(".py")
        with module.open("a", encoding="utf-8") as file:
            file.write(f"\nimport milecastle.{high}\n")
        name = f"milecastle.{low}.{module.stem}" if is_folder else f"milecastle.{low}"
        imports.append(f"{name} -> milecastle.{high} (l.")
    outcome = lint(tmp_path)
    assert outcome.returncode != 0
    assert [line for line in imports if line not in outcome.stdout] == []


def test_a_type_only_import_is_held_to_the_contract(tmp_path: Path) -> None:
    """Fails with ``exclude_type_checking_imports = true`` in the contract."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    lines = ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", "    import milecastle.ports"]
    module = tmp_path / "src" / "milecastle" / "model" / "breach.py"
    module.write_text("\n".join([*lines, ""]), encoding="utf-8")
    outcome = lint(tmp_path)
    assert outcome.returncode != 0
    assert "milecastle.model is not allowed to import milecastle.ports" in outcome.stdout


def test_a_circle_inside_a_folder_is_caught(tmp_path: Path) -> None:
    """Seen to fail without the contract ``circles``."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    keys = tmp_path / "src" / "milecastle" / "model" / "keys.py"
    keys.write_text(f"{keys.read_text('utf-8')}\nfrom milecastle.model import run\n", "utf-8")
    outcome = lint(tmp_path)
    assert outcome.returncode != 0
    assert "No circle among siblings BROKEN" in outcome.stdout


def test_a_package_without_a_layer_is_caught(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src" / "milecastle" / "afterthought.py").write_text('"""New."""\n', "utf-8")
    outcome = lint(tmp_path)
    assert outcome.returncode != 0
    assert "afterthought" in outcome.stdout
