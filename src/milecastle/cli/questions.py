from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import click

from milecastle.cli.printing import say
from milecastle.errors import ResumeRefused
from milecastle.model.interrupt import Interrupt
from milecastle.views.documents import QuestionLine
from milecastle.views.lines import question_lines
from milecastle.views.values import as_json

_WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


def question_text(line: QuestionLine) -> str:
    asked = line.question if isinstance(line.question, str) else as_json(line.question)
    shown = "" if line.show is None else f"  {as_json(line.show)}"
    refused = f"  (refused: {line.refused})" if line.refused else ""
    return f"{line.node} asks: {asked}{shown}  (id {line.id}){refused}"


def choose(thread: str, interrupts: Iterable[Interrupt], given: str | None) -> Interrupt:
    """The question to answer: the only one, or the one whose id is given or ends with it.

    Raises:
        ResumeRefused: the thread has no open question.
        click.UsageError: there are several, or none has this id.
    """
    asked = [one for one in interrupts if one.asks]
    if not asked:
        raise ResumeRefused(thread, ["it has no open question: `milecastle resume` continues it"])
    found = [one for one in asked if given is None or one.id == given]
    found = found or [one for one in asked if given and one.id.startswith(given)]
    if len(found) == 1:
        return found[0]
    say(*map(question_text, question_lines(asked)))
    how = f"no question has the id '{given}'" if not found else "there are several open questions"
    raise click.UsageError(f"{how}: choose one with --id")


def parse_answer(text: str, schema: Mapping[str, Any] | None) -> Any:
    wanted = (schema or {}).get("type")
    if wanted == "string":
        return text
    if wanted == "boolean" and text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    return parse_loosely(text)


def parse_loosely(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object typed by a user.

    Raises:
        click.UsageError: it is something else; the value is not repeated.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f'{what} must be a JSON object, such as \'{{"topic": "walls"}}\'')
    return cast("dict[str, Any]", found)
