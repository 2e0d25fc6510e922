"""Writes `docs/reference/api.md` and a page for each part from the docstrings of what is exported.

Rules:

- Modules are parsed, never imported, so that every Python version writes the same pages.
- `--check` writes nothing and fails when a page is stale, missing or left over.
- No private type is on a page. A private alias is written out, a private base, constructor or
  field is left out, and a method that takes or returns a private type is an error.
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeGuard, TypeVar, cast

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/reference/api.md")
SOURCE = Path("src")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.Assign | ast.AnnAssign
Signed = TypeVar("Signed", ast.FunctionDef, ast.AsyncFunctionDef, ast.AnnAssign, Function)
FOLDER = PAGE.with_suffix("")
NOTE = "<!-- Written by scripts/api_reference.py from the docstrings; do not edit it here. -->"
HEADER = f"""{NOTE}
# API

Look up a name here: every exported name, linked to its signature and description.
`invoke`, `resume`, `stream`, `state`, `history`, `update_state`, `fork` and `diff` have async
versions (`ainvoke`, `aresume` and so on) with the same arguments.
"""
PUBLIC = (
    "milecastle",
    "milecastle.stores",
    "milecastle.errors",
    "milecastle.records",
    "milecastle.testing",
    "milecastle.builds",
    "milecastle.agents",
    "milecastle.client",
    "milecastle.integrations.langgraph",
    "milecastle.server",
    "milecastle.integrations.opentelemetry",
    "milecastle.integrations.pydantic_ai",
    "milecastle.integrations.openai_agents",
)
NOT_FOR_USERS = {
    "App.runner": "runs and threads, for the layers above",
    "Buildable.runner": "runs and threads, for builds",
    "Context.ask": "what interrupt() calls",
    "Context.beat": "the time of the last heartbeat, for executors",
    "Context.counts": "what count() counts",
    "Context.data": "the task, for executors",
    "Context.over": "whether the task has ended, for executors",
    "Capabilities.file_storage": "files of a store with object storage: ours alone",
    "Keyring.sealer": "what the codec asks a keyring for",
}
"""Members of public classes that other parts of the package use, and why they are there."""
SHOWN_AS = {"_Listing": "Store"}
"""Private protocols, each with the public class that people pass."""
SECTIONS = {
    "app": "Graphs and apps",
    "stores": "Graphs and apps",
    "graph": "State and reducers",
    "model.reducers": "State and reducers",
    "model.removal": "State and reducers",
    "engine": "Inside a node",
    "model": "Data and settings",
    "codec": "Data and settings",
    "version": "Data and settings",
    "ports": "Ports",
    "observers": "Observers",
}


class Found(NamedTuple):
    """A definition, and the module that contains it."""

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

    def family(self, module: str, item: ast.ClassDef) -> list[Found]:
        """Return a class and those above it in this package, the furthest first."""
        above: list[Found] = []
        for base in item.bases:
            name = ast.unparse(base).partition("[")[0]
            known = self.find(module, name) if "." not in name else None
            if known and isinstance(known.item, ast.ClassDef):
                above += self.family(known.module, known.item)
        return [*above, Found(module, item)]

    def public(self, module: str, item: Signed) -> Signed:
        """Return a signature or a field in which no name is private to the package.

        Raises:
            PrivateType: it names a class that none of the public modules exports.
        """
        return _Public(self, module).visited(item)

    def public_bases(self, module: str, item: ast.ClassDef) -> Iterator[str]:
        """Return the bases of a class that users can name."""
        for base in item.bases:
            with suppress(PrivateType):
                yield ast.unparse(_Public(self, module).visit(base))

    def exports(self, *modules: str) -> set[ast.AST]:
        """Return the definitions that modules export."""
        return {found.item for module in modules for _, found in self.exported(module)}

    @cached_property
    def names(self) -> set[ast.AST]:
        """Return the definitions that the public modules export."""
        return self.exports(*PUBLIC)

    @cached_property
    def of_stores(self) -> set[str]:
        """Return the methods that every store has: they are documented once, at the port."""
        ports = (self.find(PUBLIC[1], name) for name in ("Store", "Capabilities"))
        return {part.name for port in ports for part in _body(port) if _is_method(part)}


class PrivateType(LookupError):
    """A type that no public module exports."""


class _Public(ast.NodeTransformer):
    """Writes private aliases out, and refuses private classes."""

    def __init__(self, package: Package, module: str) -> None:
        self._package = package
        self._module = module

    def visited(self, item: Signed) -> Signed:
        """Return a copy of a signature or a field, without its body."""
        copied = copy.copy(item)
        if isinstance(copied, Function):
            copied.args = self.visit(copy.deepcopy(copied.args))
            copied.returns = copied.returns and self.visit(copy.deepcopy(copied.returns))
        else:
            copied.annotation = self.visit(copy.deepcopy(copied.annotation))
            copied.value = copied.value and self.visit(copy.deepcopy(copied.value))
        return copied

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in SHOWN_AS:
            return ast.Name(SHOWN_AS[node.id])
        found = self._package.find(self._module, node.id)
        if found is None or found.item in self._package.names or _is_type_variable(found.item):
            return node
        if isinstance(found.item, ast.Assign) and isinstance(
            found.item.value, ast.Subscript | ast.BinOp
        ):
            inner = _Public(self._package, found.module)
            return cast("ast.AST", inner.visit(copy.deepcopy(found.item.value)))
        if isinstance(found.item, ast.ClassDef):
            raise PrivateType(node.id)
        return ast.Constant(...)  # a value of ours, such as a default


def _is_type_variable(item: Definition) -> bool:
    return isinstance(item, ast.Assign) and ast.unparse(item.value).startswith("TypeVar(")


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Return statements, and those under an `if` such as `if TYPE_CHECKING`."""
    for item in body:
        yield item
        if isinstance(item, ast.If):
            yield from _statements(item.body)


def render(package: Package) -> dict[Path, str]:
    """Return the texts of the pages, by their paths."""
    pages: dict[Path, str] = {}
    rows: list[str] = []
    for title, pairs in _parts(package):
        path = FOLDER / f"{_name(title)}.md"
        whence = title if title in PUBLIC else "milecastle"
        head = f"{NOTE}\n# {title}\n\nLook up a signature here. Import these from `{whence}`.\n"
        pages[path] = head + "".join(_entry(package, *pair) for pair in pairs)
        there = f"{FOLDER.name}/{path.name}"
        links = ", ".join(f"[{name}]({there}#{name.lower()})" for name, _ in pairs)
        rows.append(f"\n## [{title}]({there})\n\n{links}\n")
    return {PAGE: HEADER + "".join(rows), **pages}


def _parts(package: Package) -> Iterator[tuple[str, list[tuple[str, Found]]]]:
    """Return the title of each page, and what is exported there."""
    exported = [pair for pair in package.exported("milecastle") if _section(pair[1])]
    for title in dict.fromkeys(SECTIONS.values()):
        yield title, [pair for pair in exported if _section(pair[1]) == title]
    shown = {name for name, _ in exported}
    for module in PUBLIC[1:]:
        yield module, [pair for pair in package.exported(module) if pair[0] not in shown]


def _section(found: Found) -> str | None:
    """Return the page of a name that ``milecastle`` exports; ``None``: that of its own module."""
    parts = found.module.split(".")[1:]
    if found.module in PUBLIC:
        return None
    return SECTIONS.get(".".join(parts)) or SECTIONS.get(parts[0])


def _name(title: str) -> str:
    """Return the name of a page: that of the module, or the title in small letters."""
    return re.sub(r"[\W_]+", "-", title.rpartition(".")[2].lower())


def _entry(package: Package, name: str, found: Found) -> str:
    item = found.item
    if isinstance(item, ast.ClassDef):
        known = package.exports("milecastle.testing", "milecastle.stores") - {item}
        family = [pair for pair in package.family(found.module, item) if pair.item not in known]
        return _class(package, found.module, item, family)
    if isinstance(item, Function):
        shown = package.public(found.module, item)
        return f"\n## {name}\n\n{_code(_signature(shown))}{_prose(item)}"
    shown_name = name.replace("__", r"\_\_")  # not bold
    return f"\n## {shown_name}\n\n{_code(ast.unparse(item))}"


def _class(package: Package, module: str, item: ast.ClassDef, family: Sequence[Found]) -> str:
    fields: dict[str, str] = {}
    methods: dict[str, Function] = {}
    elsewhere = package.of_stores if module.startswith("milecastle.stores.") else set[str]()
    for member in family:
        for part in _body(member):
            if isinstance(part, ast.AnnAssign):
                with suppress(PrivateType):
                    shown = package.public(member.module, part)
                    fields[ast.unparse(part.target)] = ast.unparse(shown)
            elif _is_method(part) and part.name not in elsewhere and not _is_overload(part):
                methods[part.name] = _method(package, member.module, item.name, part)
    bases = ", ".join(package.public_bases(module, item))
    lines = [f"class {item.name}({bases})" if bases else f"class {item.name}"]
    lines += [f"    {text}" for field, text in fields.items() if not _is_hidden(item.name, field)]
    made = next((part for part in item.body if getattr(part, "name", "") == "__init__"), None)
    if isinstance(made, Function):
        with suppress(PrivateType):
            shown_init = package.public(module, _without_private(package, module, made))
            lines += [f"    {line}" for line in _signature(shown_init).splitlines()]
    text = f"\n## {item.name}\n\n{_code(chr(10).join(lines))}{_prose(item)}"
    for method in methods.values():
        if not _is_hidden(item.name, method.name) and method.name[1:] not in methods:
            head = f"\n### {item.name}.{method.name}\n\n"
            text += f"{head}{_code(_signature(method))}{_prose(method)}"
    return text


def _without_private(package: Package, module: str, made: Function) -> Function:
    """Return a constructor without the options whose types are private."""
    made = copy.deepcopy(made)
    kept: list[tuple[ast.arg, ast.expr | None]] = []
    for option in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
        with suppress(PrivateType):
            _Public(package, module).visit(copy.deepcopy(option[0]))
            kept.append(option)
    made.args.kwonlyargs = [one for one, _ in kept]
    made.args.kw_defaults = [default for _, default in kept]
    return made


def _body(found: Found | None) -> Sequence[ast.stmt]:
    return found.item.body if found and isinstance(found.item, ast.ClassDef) else ()


def _is_method(item: ast.stmt) -> TypeGuard[Function]:
    return isinstance(item, Function)


def _method(package: Package, module: str, owner: str, method: Function) -> Function:
    """Return a method with public types only; a public one with a private type is an error."""
    if _is_hidden(owner, method.name):
        return method
    try:
        return package.public(module, method)
    except PrivateType as error:
        raise PrivateType(f"{owner}.{method.name}: {error} is not exported") from None


def _is_hidden(owner: str, name: str) -> bool:
    """Whether a member is of no interest: private, a test of the contract, an error's code."""
    is_private = name.startswith(("_", "test_")) or name == "code"
    return is_private or f"{owner}.{name}" in NOT_FOR_USERS


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
    """Write the pages, or with `--check` compare them; 1 if one is stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference/api.md and its parts.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    root: Path = options.root
    fresh = {root / path: text for path, text in render(Package(root / SOURCE)).items()}
    there = {root / PAGE, *(root / FOLDER).glob("*.md")}
    stale = [path for path in sorted(there | set(fresh)) if _read(path) != fresh.get(path)]
    if options.check:
        for path in stale:
            name = path.relative_to(root).as_posix()
            print(f"{name} is stale: run scripts/api_reference.py", file=sys.stderr)
        return 1 if stale else 0
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in stale:
        if path in fresh:
            path.write_text(fresh[path], encoding="utf-8", newline="\n")
        else:
            path.unlink()
    return 0


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
