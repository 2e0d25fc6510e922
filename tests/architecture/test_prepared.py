"""Every class that msgspec reads into is prepared: support/prepared.py says why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "milecastle"
READERS = {"convert", "decode", "Decoder"}
PLAIN = {
    "Any",
    "Raw",
    "_Question",
    "_Send",
    "_Topics",
    "bool",
    "bytes",
    "dict",
    "int",
    "list",
    "msgspec",
    "str",
    "tuple",
}
"""Types without fields, and names that stand for such a type."""
PASSED_ON = {
    ("agents/tools.py", "made"),  # prepared where it is made
    ("builds/records.py", "shape"),  # checked where it is called
    ("cli/session.py", "chain"),  # another function of that name
    ("client/calls.py", "kind"),  # prepared where they are defined
    ("codec/answers.py", "_forms"),
    ("codec/answers.py", "form"),
    ("codec/answers.py", "wanted"),  # the user's: its convert prepares it
    ("model/manifest.py", "cls"),
    ("support/prepared.py", "shape"),
    ("support/prepared.py", "prepared"),
    ("server/oidc/fetching.py", "shape"),  # prepared where they are defined
    ("server/oidc/issuer.py", "shape"),  # prepared where they are defined
    ("server/request.py", "kind"),  # prepared with the table of routes
    ("server/pages/forms.py", "kind"),  # prepared with the table of pages
    ("server/service.py", "chain"),  # another function of that name
    ("stores/offloading/segments.py", "Entry"),  # by its decoder, when the module is imported
    ("views/values.py", "annotation"),
    ("views/values.py", "channel"),
}


def read_into(tree: ast.Module) -> Iterator[str]:
    """The names of the types that the calls of one module read into."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func).removeprefix("msgspec.").removeprefix("json.")
        name = name.removeprefix("msgpack.")
        if name not in READERS:
            continue
        types = [word.value for word in call.keywords if word.arg == "type"]
        types += call.args[:1] if name == "Decoder" else call.args[1:2]
        for node in (inner for type_ in types for inner in ast.walk(type_)):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr


def prepared_in(tree: ast.Module) -> Iterator[str]:
    """The names of the classes that one module prepares."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            if any(ast.unparse(mark) == "prepared" for mark in node.decorator_list):
                yield node.name
        elif isinstance(node, ast.Expr) and ast.unparse(node).startswith("prepared("):
            yield ast.unparse(node).removeprefix("prepared(").removesuffix(")")


def test_what_is_read_into_is_prepared() -> None:
    """Seen to fail without ``@prepared`` at ``RunRecord``: two runs then crash a worker."""
    trees = {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in SOURCE.rglob("*.py")
    }
    ready = {name for tree in trees.values() for name in prepared_in(tree)}
    assert {"RunRecord", "Manifest", "NodeCheckpoint"} <= ready
    found = {(place, name) for place, tree in trees.items() for name in read_into(tree)}
    known = ready | PLAIN
    assert {pair for pair in found if pair[1] not in known} == PASSED_ON
