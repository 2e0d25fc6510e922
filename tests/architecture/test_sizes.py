"""Files stay under 800 lines and functions under 50. There are no exceptions."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "milecastle"
LONGEST_FILE = 800
LONGEST_FUNCTION = 50


def too_long(text: str) -> list[str]:
    """Return what is too long in a module: the module itself, and its functions."""
    lines = len(text.splitlines())
    found = [f"{lines} lines"] if lines > LONGEST_FILE else []
    for item in ast.walk(ast.parse(text)):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (item.end_lineno or item.lineno) - item.lineno + 1
            if length > LONGEST_FUNCTION:
                found.append(f"{item.name}, line {item.lineno}: {length} lines")
    return found


def test_files_and_functions_are_short() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert modules
    found = {str(path.relative_to(SOURCE)): too_long(path.read_text("utf-8")) for path in modules}
    assert {name: excess for name, excess in found.items() if excess} == {}


def test_a_long_function_is_reported() -> None:
    body = "    pass\n"
    assert too_long("def short():\n" + body * (LONGEST_FUNCTION - 1)) == []
    assert too_long("async def long():\n" + body * LONGEST_FUNCTION) == ["long, line 1: 51 lines"]


def test_a_long_file_is_reported() -> None:
    assert too_long("x = 1\n" * LONGEST_FILE) == []
    assert too_long("x = 1\n" * (LONGEST_FILE + 1)) == ["801 lines"]
