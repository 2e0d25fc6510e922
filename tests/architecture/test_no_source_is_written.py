"""No module puts text together as Python source: a stored name in it would run when it is loaded.

A thread's name, a node's name and every value of a state are text that strangers may choose. What
is printed or written from them is data (JSON, SVG, tables); never code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "milecastle"

STATEMENT = re.compile(
    r"^[ \t]*(?:(?:def|class) [\w{].*:|import [\w{]|from [\w.{}]+ import |assert )",
    flags=re.MULTILINE,
)
RUN = {"compile", "eval", "exec"}


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each text of a module that is not a docstring; what an f-string inserts is ``{}``."""
    left_out = {
        id(item.body[0].value)
        for item in ast.walk(tree)
        if isinstance(item, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and item.body
        and isinstance(item.body[0], ast.Expr)
    }
    for item in ast.walk(tree):
        if isinstance(item, ast.JoinedStr):
            left_out.update(map(id, item.values))
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in item.values)
            yield item.lineno, "".join(map(str, parts))
        elif id(item) in left_out or not isinstance(item, ast.Constant):
            continue
        elif isinstance(item.value, str):
            yield item.lineno, item.value


def source_in(text: str) -> list[str]:
    """The places where a module writes source, or runs text as source."""
    tree = ast.parse(text)
    found = [f"line {line}: {said!r}" for line, said in texts(tree) if STATEMENT.search(said)]
    calls = (item for item in ast.walk(tree) if isinstance(item, ast.Call))
    return found + [
        f"line {call.lineno}: {call.func.id}()"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in RUN
    ]


def test_no_module_writes_or_runs_source() -> None:
    """Seen to fail with the verb `export-test`, whose template held the thread's name."""
    found = {
        str(path.relative_to(SOURCE)): places
        for path in sorted(SOURCE.rglob("*.py"))
        if (places := source_in(path.read_text("utf-8")))
    }
    assert found == {}


def test_a_template_of_source_is_found() -> None:
    template = (
        "T = '''\"\"\"Made from {name}\"\"\"\\n\\ndef test_{name}() -> None:\\n    pass\\n'''\n"
    )
    assert len(source_in(template)) == 1
    assert len(source_in('def f(name):\n    return f"from {name} import app"\n')) == 1
    assert source_in("def f(text):\n    exec(text)\n") == ["line 2: exec()"]


def test_sentences_and_docstrings_are_not_source() -> None:
    text = '"""Of a module.\n\nimport this\n"""\nS = "it comes from a store, or import it"\n'
    assert source_in(text) == []
