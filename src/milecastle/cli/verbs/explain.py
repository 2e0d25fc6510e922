"""Explain an error code.

There is one source, ``docs/errors.md``; the wheel contains a copy in the folder ``cli``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import click

from milecastle.cli.session import Session
from milecastle.cli.verb import verb
from milecastle.views.documents import ExplainDocument

_SHIPPED = Path(__file__).parents[1] / "errors.md"
_SOURCE = Path(__file__).parents[4] / "docs" / "errors.md"


class ErrorPage(NamedTuple):
    code: str
    title: str
    text: str


def error_pages() -> dict[str, ErrorPage]:
    page = (_SHIPPED if _SHIPPED.is_file() else _SOURCE).read_text("utf-8")
    sections = re.split(r"^#+ (MC\d{3}) (.*)\n", page, flags=re.MULTILINE)[1:]
    parts = zip(sections[::3], sections[1::3], sections[2::3], strict=True)
    return {code: ErrorPage(code, title, _alone(text).strip("\n")) for code, title, text in parts}


def find_page(code: str) -> ErrorPage | None:
    pages = error_pages()
    return pages.get(code.upper()) or pages.get(f"MC{code}")


def _alone(text: str) -> str:
    link = r"\[([^\]]+)\]\([^)]*\)"
    text = re.sub(rf"\s*\bSee {link}(?:(?:,| and|, and) {link})*\.", "", text)
    return re.sub(link, r"\1", text)


@click.command("explain")
@click.argument("code", metavar="CODE")
@verb
def command(session: Session, code: str) -> None:
    """Explain an error code and how to fix it.

    Every error has a code at the end of its message, such as MC301; 301 is enough.
    """
    page = find_page(code)
    if page is None:
        known = ", ".join(error_pages())
        raise click.UsageError(f"unknown error code '{code}': the codes are {known}")
    session.report(
        ExplainDocument(code=page.code, title=page.title, text=page.text),
        [f"{page.code} {page.title}", "", *page.text.split("\n")],
    )
