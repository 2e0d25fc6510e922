"""Questions that nodes asked, and answers that people type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from milecastle.cli.documents import QuestionLine
from milecastle.cli.values import as_json, parse_loosely, plain
from milecastle.errors import ResumeRefused
from milecastle.model.interrupt import Interrupt

__all__ = ["choose", "parse_answer", "question_lines", "question_text"]

_WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


def question_lines(interrupts: Iterable[Interrupt]) -> tuple[QuestionLine, ...]:
    """The questions among what a run waits for."""
    return tuple(
        QuestionLine(
            id=one.id,
            node=one.node,
            question=plain(one.question),
            show=plain(one.show),
            answer=plain(one.answer),
            refused=one.refused,
        )
        for one in interrupts
        if one.asks
    )


def question_text(line: QuestionLine) -> str:
    """A question as people read it."""
    asked = line.question if isinstance(line.question, str) else as_json(line.question)
    shown = "" if line.show is None else f"  {as_json(line.show)}"
    refused = f"  (refused: {line.refused})" if line.refused else ""
    return f"{line.node} asks: {asked}{shown}  (id {line.id}){refused}"


def choose(thread: str, interrupts: Iterable[Interrupt], given: str | None) -> Interrupt:
    """The question that is meant: the only one, or the one whose id is given or ends so.

    Raises:
        ResumeRefused: the thread waits for no answer.
        click.UsageError: there are several, or none has this id.
    """
    asked = [one for one in interrupts if one.asks]
    if not asked:
        raise ResumeRefused(thread, ["it waits for no answer: `milecastle resume` goes on with it"])
    found = [one for one in asked if given is None or one.id == given]
    found = found or [one for one in asked if given and one.id.startswith(given)]
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"  {question_text(line)}" for line in question_lines(asked))
    how = f"no question has the id '{given}'" if not found else "several questions are open"
    raise click.UsageError(f"{how}: say which with --id\n{listed}")


def parse_answer(text: str, schema: Mapping[str, Any] | None) -> Any:
    """What was typed, as the question takes it: text as it is, yes and no where those are meant."""
    wanted = (schema or {}).get("type")
    if wanted == "string":
        return text
    if wanted == "boolean" and text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    return parse_loosely(text)
