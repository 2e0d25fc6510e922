"""The pages that ``benchmarks server`` asks for come, from rows as the store writes them."""

from __future__ import annotations

import pytest

from benchmarks import server_pages


@pytest.mark.parametrize("build", ["_thread", "_list"])
def test_every_page_comes(build: str) -> None:
    """Was broken: rows without the column of limit keys, and a page behind a name by time."""
    with server_pages._built(getattr(server_pages, build), 40) as pages:  # pyright: ignore[reportPrivateUsage]
        assert all(pages.ask(number) > 1_000 for number in range(len(pages.paths)))


def test_the_overview_comes() -> None:
    with server_pages._overview_of(200) as ask:  # pyright: ignore[reportPrivateUsage]
        ask()
