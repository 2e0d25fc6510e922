"""Writes `docs/reference/api.md` from the docstrings of what the package exports.

Rules:

- Modules are parsed, never imported, so that every Python version writes the same page.
- `--check` writes nothing and fails when the page is stale.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/reference/api.md")
SOURCE = Path("src")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.Assign | ast.AnnAssign
HEADER = """# Reference: what is exported

Written by `scripts/api_reference.py` from the docstrings; do not edit it here.
`invoke`, `resume`, `stream`, `state`, `history`, `update_state`, `fork` and `diff` have async twins
(`ainvoke`, `aresume` and so on) with the same arguments.
"""
SECTIONS = {
    "app": "Graphs and apps",
    "graph": "Reducers",
    "engine": "Inside a node",
    "model": "Data and settings",
    "ports": "Ports",
    "codec": "Types",
    "observers": "Observers",
    "version": "Version",
    "errors": "Errors",
}


class Found(NamedTuple):
    """A definition, and the module that it stands in."""

    module: str
    item: Definition


class Package:
    """The package's modules, parsed once."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._trees: dict[str, ast.Module] = {}

    def tree(self, module: str) -> ast.Module:
        """Return a module, parsed."""
        if module not in self._trees:
            path = self._source / Path(*module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self._trees[module] = ast.parse(path.read_text("utf-8"))
        return self._trees[module]

    def find(self, module: str, name: str) -> Found | None:
        """Return the definition that a name means in a module, wherever it stands."""
        for item in _statements(self.tree(module).body):
            if isinstance(item, ast.ClassDef | Function) and item.name == name:
                return Found(module, item)
            if isinstance(item, ast.Assign) and name in map(ast.unparse, item.targets):
                return Found(module, item)
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == name:
                return Found(module, item)
            if isinstance(item, ast.ImportFrom) and name in {alias.name for alias in item.names}:
                origin = item.module or ""
                return self.find(origin, name) if origin.startswith("milecastle") else None
        return None

    def exported(self, module: str) -> Iterator[tuple[str, Found]]:
        """Return what `__all__` of a module lists."""
        for item in self.tree(module).body:
            if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__all__":
                for name in ast.literal_eval(item.value):
                    found = self.find(module, name)
                    if found is None:
                        raise LookupError(f"{module} exports {name}, which is not found")
                    yield name, found

    def family(self, module: str, item: ast.ClassDef) -> list[ast.ClassDef]:
        """Return a class and those above it in this package, the furthest first."""
        above: list[ast.ClassDef] = []
        for base in item.bases:
            name = ast.unparse(base).partition("[")[0]
            known = self.find(module, name) if "." not in name else None
            if known and isinstance(known.item, ast.ClassDef):
                above += self.family(known.module, known.item)
        return [*above, item]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Return statements, and those under an `if` such as `if TYPE_CHECKING`."""
    for item in body:
        yield item
        if isinstance(item, ast.If):
            yield from _statements(item.body)


def render(package: Package) -> str:
    """Return the text of the page."""
    parts = [HEADER]
    exported = list(package.exported("milecastle"))
    for layer, title in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        mine = [pair for pair in exported if pair[1].module.split(".")[1] == layer]
        parts += [_entry(package, name, found) for name, found in mine]
    parts.append("\n## milecastle.testing\n\nImport these from `milecastle.testing`.\n")
    parts += [_entry(package, *pair) for pair in package.exported("milecastle.testing")]
    return "".join(parts)


def _entry(package: Package, name: str, found: Found) -> str:
    item = found.item
    if isinstance(item, ast.ClassDef):
        known = {found.item for _, found in package.exported("milecastle.testing")} - {item}
        return _class(item, [cls for cls in package.family(found.module, item) if cls not in known])
    if isinstance(item, Function):
        return f"\n### {name}\n\n{_code(_signature(item))}{_prose(item)}"
    return f"\n### {name}\n\n{_code(ast.unparse(item))}"


def _class(item: ast.ClassDef, family: Sequence[ast.ClassDef]) -> str:
    fields: dict[str, str] = {}
    methods: dict[str, Function] = {}
    for part in (part for member in family for part in member.body):
        if isinstance(part, ast.AnnAssign):
            fields[ast.unparse(part.target)] = ast.unparse(part)
        elif isinstance(part, Function) and not _is_overload(part):
            methods[part.name] = part
    bases = ", ".join(ast.unparse(base) for base in item.bases)
    lines = [f"class {item.name}({bases})" if bases else f"class {item.name}"]
    lines += [f"    {text}" for field, text in fields.items() if not _is_hidden(field)]
    made = methods.get("__init__")
    if made in item.body:
        lines += [f"    {line}" for line in _signature(made).splitlines()]
    text = f"\n### {item.name}\n\n{_code(chr(10).join(lines))}{_prose(item)}"
    for method in methods.values():
        if not _is_hidden(method.name) and method.name[1:] not in methods:
            head = f"\n#### {item.name}.{method.name}\n\n"
            text += f"{head}{_code(_signature(method))}{_prose(method)}"
    return text


def _is_hidden(name: str) -> bool:
    """Whether a member is of no interest: private, a test of the contract, an error's code."""
    return name.startswith(("_", "test_")) or name == "code"


def _is_overload(item: Function) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in item.decorator_list)


def _signature(item: Function) -> str:
    prefix = "async def" if isinstance(item, ast.AsyncFunctionDef) else "def"
    if any(ast.unparse(decorator) == "property" for decorator in item.decorator_list):
        prefix = "property"
    arguments = [_argument(text) for text in _split(ast.unparse(item.args))]
    arguments = [text for text in arguments if text not in ("self", "cls")]
    returns = f" -> {ast.unparse(item.returns)}" if item.returns else ""
    line = f"{prefix} {item.name}({', '.join(arguments)}){returns}"
    if len(line) <= 96 or not arguments:
        return line
    inner = ",\n".join(f"    {argument}" for argument in arguments)
    return f"{prefix} {item.name}(\n{inner},\n){returns}"


def _argument(text: str) -> str:
    """Return an argument as the formatter writes it: spaces around `=` if it is annotated."""
    name, colon, rest = text.partition(": ")
    return f"{name}: {re.sub(r'(?<! )=(?! )', ' = ', rest, count=1)}" if colon else text


def _split(text: str) -> list[str]:
    """Return arguments one by one; commas inside brackets part nothing."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _prose(item: ast.ClassDef | Function) -> str:
    """Return a docstring as Markdown."""
    text = inspect.cleandoc(ast.get_docstring(item) or "").replace("``", "`")
    text = re.sub(r"^Raises:\n", "Raises:\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return f"\n{text}\n" if text else ""


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with `--check` compare it; 1 if it is stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference/api.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    page: Path = options.root / PAGE
    fresh = render(Package(options.root / SOURCE))
    if not options.check:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(fresh, encoding="utf-8", newline="\n")
    elif not page.exists() or page.read_text("utf-8") != fresh:
        print(f"{PAGE.as_posix()} is stale: run scripts/api_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
