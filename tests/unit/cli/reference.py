"""What the reference page says of verbs and documents, read off the code.

`python -m tests.unit.cli.reference` writes it into the page.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from milecastle.cli.main import VERBS, cli
from milecastle.views.documents import DOCUMENTS, Document
from tests.docs.pages import ROOT, read

PAGE = "docs/reference/command-line.md"
COMMON = {"store", "tenant", "as_json", "debug"}


def verbs() -> str:
    """Each verb with its options."""
    return "\n".join(line for verb in VERBS for line in _verb(verb))


def _verb(name: str) -> Iterator[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    given = [one for one in command.params if isinstance(one, click.Argument)]
    usage = [one.metavar or str(one.name).upper() for one in given]
    yield f"### milecastle {name}\n\n`milecastle {' '.join([name, *usage])}`\n"
    yield re.sub(r"\s*\n\s*(?!\n)", " ", command.help or "").replace("\n", " ").strip() + "\n"
    options = [one for one in command.params if isinstance(one, click.Option)]
    own = [one for one in options if one.name not in COMMON]
    if own:
        yield "| option | |\n|---|---|"
        for option in own:
            yield f"| `{_words(option)}` | {option.help} |"
        yield ""


def _words(option: click.Option) -> str:
    names = ", ".join(option.opts)
    if option.is_flag or (option.flag_value is not None and option.metavar is None):
        return names
    choices = getattr(option.type, "choices", None)
    return f"{names} {'/'.join(choices) if choices else option.metavar}"


def schemas() -> str:
    """Each document with its fields."""
    here = [one for one in Document.__subclasses__() if one.__module__ == Document.__module__]
    shapes = sorted(here, key=lambda kind: kind.__name__)
    used = {kind: [verb for verb, other in DOCUMENTS.items() if other is kind] for kind in shapes}
    return "\n".join(line for kind in shapes for line in _schema(kind, used[kind]))


def _schema(kind: Any, used: list[str]) -> Iterator[str]:
    yield f"### {kind.__name__}\n"
    paragraphs = inspect.cleandoc(kind.__doc__ or "").replace("``", "`").split("\n\n")
    says = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    yield says + (f" Printed by {', '.join(f'`{verb}`' for verb in used)}.\n" if used else "\n")
    yield "| field | type |\n|---|---|"
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        yield f"| `{field.name}` | {_type(hints[field.name])} |"
    yield ""


def _type(hint: Any) -> str:
    if hint is Any:
        return "any JSON"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{word}`" for word in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in inner)
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if origin is not None:
        return f"object of {_type(inner[1])}"
    if hint is type(None):
        return "null"
    plain = {str: "text", int: "whole number", float: "number", bool: "bool"}
    return plain.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"


def written(text: str) -> str:
    """The page with both parts as they are now."""
    for name, part in (("verbs", verbs()), ("documents", schemas())):
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        head, _, rest = text.partition(begin)
        text = head + begin + part.strip("\n") + "\n" + end + rest.partition(end)[2]
    return text


def main() -> None:
    """Write the page again."""
    (ROOT / PAGE).write_text(written(read(PAGE)), encoding="utf-8")


if __name__ == "__main__":
    main()
