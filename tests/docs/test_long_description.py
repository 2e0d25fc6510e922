"""The page of the package index: README.md without links that only work in the repository."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("hatchling", reason="only where packages are built")
from scripts.long_description import ReadmeHook, for_index
from scripts.site import ROOT

TEXT = (
    "![a b](docs/x.svg) [t](docs/y.md#z) [w](https://w.org)\n```python no-run: why\n[k](v)\n```\n"
)
CODE = "```python\n[k](v)\n```\n"
RELATIVE = re.compile(r"\]\((?!https:|#)[^)]*\)")


TAGGED = "![a b](https://r.org/m/raw/v1.2/docs/x.svg) [t](https://r.org/m/blob/v1.2/docs/y.md#z)"


@pytest.mark.parametrize(
    ("repository", "links"),
    [
        (None, "*a b* t [w](https://w.org)\n"),
        ("https://r.org/m", f"{TAGGED} [w](https://w.org)\n"),
    ],
)
def test_links_lead_to_the_tag_or_become_text(repository: str | None, links: str) -> None:
    """Fails if code is changed, or a link to another host."""
    assert for_index(TEXT, repository, "1.2") == links + CODE


def test_picture_in_two_colours_is_the_light_one() -> None:
    """Tried: left as it is, with two pictures that only the repository has."""
    text = (
        '<picture><source media="m" srcset="docs/d.png"><img alt="a b" src="docs/l.png"></picture>'
    )
    assert for_index(text, None, "1.2") == "*a b*"
    moved = for_index(text, "https://r.org/m", "1.2")
    assert moved == "![a b](https://r.org/m/raw/v1.2/docs/l.png)"


@pytest.mark.parametrize(
    "urls",
    [
        {},
        {"urls": {"Repository": "https://r.org/m"}},
        {"urls": {"Repository": "https://r.invalid/m"}},
    ],
)
def test_no_link_of_the_readme_leads_nowhere_on_an_index(urls: dict[str, object]) -> None:
    """Fails with README.md as it is: hatchling takes what the hook sets."""
    assert RELATIVE.search((ROOT / "README.md").read_text("utf-8"))
    metadata: dict[str, object] = {"version": "1.2", **urls}
    ReadmeHook(str(ROOT), {}).update(metadata)
    assert RELATIVE.search(str(metadata["readme"])) is None
    assert ".invalid" not in str(metadata["readme"])
