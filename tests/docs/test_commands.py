"""The commands that pages show exist, with these options."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from milecastle.cli.main import VERBS, cli
from tests.docs.pages import PAGES, blocks, read

FENCED = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(milecastle [a-z][^`\n]*)`")
CUT = re.compile(r"(?:;|\s+(?:#|\d?>|\||&&)).*")
OTHERS = {"CHANGELOG.md", "docs/reference/command-line.md"}
"""What was once, and usage lines that the program prints."""


def commands(text: str) -> list[str]:
    """The commands of a page: what follows a prompt, and what is in the text."""
    shown = [
        line.removeprefix("$ ")
        for block in blocks(text)
        for line in block.text.splitlines()
        if line.startswith("$ milecastle ")
    ]
    found = (*shown, *INLINE.findall(FENCED.sub("", text)))
    return [CUT.sub("", one) for one in found if "..." not in one]


def problem_of(command: str) -> str | None:
    """Why the program would not understand a command; an argument may be left out."""
    _, verb, *rest = shlex.split(command)
    if verb not in VERBS:
        return f"there is no verb '{verb}'"
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    try:
        found.make_context(verb, rest)
    except (click.MissingParameter, click.exceptions.Exit):  # the other is of --help
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHERS])
def test_commands_of_the_page_are_understood(page: str) -> None:
    """Fails with an option that is misspelt, or a verb that was renamed."""
    wrong = {one: problem for one in commands(read(page)) if (problem := problem_of(one))}
    assert wrong == {}


def test_commands_are_found_and_unknown_ones_reported() -> None:
    page = "Use `milecastle lss`.\n\n```console\n$ milecastle ls --state x  # all\n```\n"
    assert commands(page) == ["milecastle ls --state x", "milecastle lss"]
    option, verb = map(problem_of, commands(page))
    assert option is not None
    assert "--state" in option
    assert verb == "there is no verb 'lss'"
    assert problem_of("milecastle show") is None
