"""What `import milecastle` costs and where it works: little, and everywhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "milecastle"

# Heavy, or optional, or both. A module that needs one imports it where it is needed.
HEAVY = [
    "asyncio",
    "click",
    "concurrent.futures",
    "jinja2",
    "logging",
    "multiprocessing",
    "numpy",
    "pickle",
    "pydantic",
    "sqlite3",
    "starlette",
    "subprocess",
    "uvicorn",
]
POSIX_ONLY = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios"}
NAMES_THAT_SAY_NOTHING = {"common", "helpers", "manager", "misc", "util", "utils"}


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-I", "-c", code] if installed() else [sys.executable, "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def installed() -> bool:
    """Whether an isolated interpreter, which ignores PYTHONPATH, finds the package."""
    command = [sys.executable, "-I", "-c", "import milecastle"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_importing_milecastle_imports_nothing_heavy() -> None:
    already = loaded_by("pass")
    assert "milecastle" in (loaded := loaded_by("import milecastle"))
    assert sorted((loaded - already) & set(HEAVY)) == []


@pytest.mark.parametrize("name", ["asyncio", "logging"])
def test_a_heavy_import_would_be_seen(name: str) -> None:
    assert name in loaded_by(f"import {name}")


def unguarded(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk through a module, leaving out what is under `if sys.platform ...`."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and "sys.platform" in ast.unparse(child.test)):
            yield child
            yield from unguarded(child)


def imported(text: str) -> Iterator[str]:
    """Yield the top-level names of what a module imports on every platform, wherever it stands."""
    for item in unguarded(ast.parse(text)):
        if isinstance(item, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            yield (item.module or "").partition(".")[0]


def test_nothing_works_on_posix_only() -> None:
    found = {
        str(path.relative_to(SOURCE)): bad
        for path in SOURCE.rglob("*.py")
        if (bad := POSIX_ONLY.intersection(imported(path.read_text("utf-8"))))
    }
    assert found == {}


def test_an_import_for_one_platform_may_be_what_it_likes() -> None:
    text = 'if sys.platform == "win32":\n    import msvcrt\nelse:\n    import fcntl\n'
    assert list(imported(text)) == []


def test_an_import_inside_a_function_is_seen() -> None:
    text = "def f():\n    import fcntl.x\n    from pwd import y\n"
    assert set(imported(text)) == {"fcntl", "pwd"}


def test_every_module_is_named_after_what_it_holds() -> None:
    names = {path.stem for path in SOURCE.rglob("*")}
    assert "errors" in names
    assert names & NAMES_THAT_SAY_NOTHING == set()
