"""Every how-to page names what its snippets import: ``pip install 'milecastle[extras]' packages``.

A reader of the page on LangGraph had no langgraph, and that of the page on chat front ends hung.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement

from tests.docs.pages import PAGES, ROOT, blocks, read

HOW_TO = [page for page in PAGES if page.startswith("docs/how-to/")]

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
_MODULES = {
    "pydantic_ai": "pydantic-ai-slim",
    "agents": "openai-agents",
    "openai": "openai-agents",
    "opentelemetry": "opentelemetry-api",
}
"""The packages of modules with another name."""
_OF_OURS = {
    "milecastle.client": "client",
    "milecastle.server": "serve",
    "milecastle.integrations.langgraph": "langgraph",
    "milecastle.integrations.opentelemetry": "otel",
    "milecastle.integrations.openai_agents": "openai-agents",
    "milecastle.integrations.pydantic_ai": "pydantic-ai",
    "milecastle.agents.anthropic": "anthropic",
    "milecastle.agents.langchain": "langgraph",
    "milecastle.agents.mcp": "mcp",
    "milecastle.agents.openai": "openai",
    "milecastle.agents.pydantic_ai": "pydantic-ai",
    "milecastle.Keyring": "encryption",
}
"""Modules of ours that need an extra."""


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


EXTRAS = {
    extra: {_name(one) for one in needed}
    for extra, needed in _PROJECT["optional-dependencies"].items()
}
ALWAYS = {_name(one) for one in _PROJECT["dependencies"]}


def _imported(tree: ast.AST) -> Iterator[str]:
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module and not item.level:
            yield item.module
            yield from (f"{item.module}.{alias.name}" for alias in item.names)


def _snippets(page: str) -> Iterator[ast.AST]:
    for block in blocks(read(page)):
        if block.language == "python" and "no-run" not in block.info:
            try:
                yield ast.parse(block.text)
            except SyntaxError:  # the page shows a part
                continue


def named_by(text: str) -> tuple[set[str], set[str]]:
    """The extras and the packages that a page tells its reader to install."""
    extras, packages = set[str](), set[str]()
    for line in re.findall(r"pip install ([^\n`]+)", text):
        for word in line.replace("'", "").replace('"', "").split():
            found = re.fullmatch(r"milecastle\[([\w,-]+)\][.,:;]?", word)
            if found:
                extras |= set(found[1].split(","))
            else:
                packages |= {_name(word)} if re.match(r"\w", word) else set()
    return extras, packages


def not_installed(text: str) -> set[str]:
    """The modules of this environment that a page's reader does not have."""
    extras, packages = named_by(text)
    wanted = [*_PROJECT["dependencies"], *packages]
    wanted += [one for extra in extras for one in _PROJECT["optional-dependencies"][extra]]
    kept = set[str]()
    while wanted:
        requirement = Requirement(wanted.pop())
        name, wants = _name(requirement.name), ("", *requirement.extras)
        if (mark := f"{name}[{','.join(sorted(requirement.extras))}]") in kept:
            continue
        kept |= {name, mark}
        with suppress(PackageNotFoundError):
            wanted += [
                one
                for one in requires(name) or ()
                if not (marker := Requirement(one).marker)
                or any(marker.evaluate({"extra": extra}) for extra in wants)
            ]
    return {
        module
        for module, found in packages_distributions().items()
        if module != "milecastle" and not kept & {_name(one) for one in found}
    }


def missing(modules: Iterable[str], text: str) -> set[str]:
    """The packages and extras that are imported and not named."""
    extras, packages = named_by(text)
    provided = ALWAYS.union(packages, *(EXTRAS.get(extra, set()) for extra in extras))
    found = set[str]()
    for module in modules:
        top = module.partition(".")[0]
        ours = next((extra for start, extra in _OF_OURS.items() if module.startswith(start)), None)
        if ours is not None and ours not in extras:
            found.add(f"milecastle[{ours}]")
        if top in sys.stdlib_module_names or top == "milecastle":
            continue
        package = _name(_MODULES.get(top, top))
        if package not in provided:
            found.add(package)
    return found


@pytest.mark.parametrize("page", HOW_TO)
def test_a_how_to_page_names_what_it_imports(page: str) -> None:
    modules = {module for tree in _snippets(page) for module in _imported(tree)}
    local = {module for module in modules if (ROOT / "docs" / "how-to" / f"{module}.py").exists()}
    assert missing(modules - local, read(page)) == set()


def test_a_package_that_is_not_named_is_found() -> None:
    text = "`pip install 'milecastle[serve]' httpx`"
    assert missing(["httpx", "uvicorn", "milecastle.server", "json"], text) == set()
    assert missing(["langgraph_sdk", "milecastle.integrations.langgraph"], text) == {
        "langgraph-sdk",
        "milecastle[langgraph]",
    }
