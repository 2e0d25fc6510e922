"""A public type name is defined in one module only, so that one name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "milecastle"

SAME_ROLE = {
    "Claims": ["stores/memory/claims.py", "stores/postgres/claiming.py"],
    "Row": ["stores/postgres/rows.py", "stores/sqlite/rows.py"],
}
"""The claims of a store; a row as its driver returns it. The stores do not share modules."""


def types_in(text: str) -> Iterator[str]:
    """The classes and type aliases of a module, without the private ones."""
    module = ast.parse(text)
    names = [item.name for item in ast.walk(module) if isinstance(item, ast.ClassDef)]
    for item in module.body:
        if isinstance(item, ast.AnnAssign):
            names.append(ast.unparse(item.target))
        elif isinstance(item, ast.Assign):
            names += [ast.unparse(target) for target in item.targets]
    return (name for name in names if name[0].isupper() and not name.isupper())


def defined_twice(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """The type names that several modules define, with the modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, text in modules.items():
        for name in types_in(text):
            found[name].add(module)
    return {name: sorted(places) for name, places in found.items() if len(places) > 1}


def test_each_type_name_is_defined_once() -> None:
    """Seen to fail: ``Place``, ``RunFacts``, ``Waits`` and seventeen others were defined twice."""
    modules = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert modules
    assert defined_twice(modules) == SAME_ROLE


def test_second_definition_is_reported() -> None:
    classes = {"a.py": "class Place: ...", "b.py": "class Place: ...", "c.py": "class _Place: ..."}
    assert defined_twice(classes) == {"Place": ["a.py", "b.py"]}
    aliases = {"a.py": "class Place: ...", "b.py": "Place = tuple[int, str]", "c.py": "PLACE = 1"}
    assert defined_twice(aliases) == {"Place": ["a.py", "b.py"]}
