"""The documentation site: what is copied, what is listed, and that broken links are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import site, site_links
from scripts.site import ROOT, SiteError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a page at the top, one in `docs/` and an example."""
    for name, text in {
        "README.md": "# Top\n[a](docs/a.md#b) [e](examples/e.py)\n",
        "docs/index.md": "# Index\n## One\n- [Top](../README.md)\n### Two\n- [A: it](a.md)\n",
        "docs/a.md": "# A\n```python no-run: why\n[x](y)\n```\n```text output\n```\n",
        "examples/e.py": "1\n",
        "mkdocs.yml": "site_name: x\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for asset in site.ASSETS:
        (tmp_path / asset).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / asset).touch()
    (tmp_path / site.THEME).mkdir(parents=True)
    return tmp_path


def test_pages_are_copied_with_their_links_and_listed(repository: Path) -> None:
    source = repository / "source"
    site.write_source(repository, source)
    assert (source / "pages/quickstart.md").read_text("utf-8") == (
        "# Top\n[a](a.md#b) [e](examples/e.md)\n"
    )
    assert (source / "pages/a.md").read_text("utf-8") == (
        '# A\n```python\n[x](y)\n```\n```text title="Output"\n```\n'
    )
    assert (source / "pages/examples/e.md").read_text("utf-8") == "# e.py\n\n```python\n1\n```\n"
    nav = json.loads((source / "mkdocs.yml").read_text("utf-8").partition("nav: ")[2])
    assert nav == [
        {"Home": "index.md"},
        {"One": [{"Top": "quickstart.md"}, {"Two": [{"A": "a.md"}]}]},
    ]


def test_page_that_the_index_does_not_list_fails_the_build(repository: Path) -> None:
    """Fails if the comparison in ``navigation`` is removed."""
    (repository / "docs/new.md").touch()
    with pytest.raises(SiteError, match=r"docs/index\.md does not list new\.md"):
        site.write_source(repository, repository / "source")


def test_link_to_a_file_that_is_not_on_the_site_fails_the_build(repository: Path) -> None:
    (repository / "docs/a.md").write_text("[m](../mkdocs.yml)", encoding="utf-8")
    with pytest.raises(SiteError, match=r"docs/a\.md links to \.\./mkdocs\.yml"):
        site.write_source(repository, repository / "source")


def test_mermaid_diagram_fails_the_build(repository: Path) -> None:
    """It would be shown as text, or fetch a script from another host."""
    (repository / "docs/a.md").write_text("```mermaid\nflowchart\n```\n", encoding="utf-8")
    with pytest.raises(SiteError, match=r"a\.md has a Mermaid diagram"):
        site.write_source(repository, repository / "source")


def test_every_page_of_this_repository_is_on_the_site(tmp_path: Path) -> None:
    """Fails if a page is missing from docs/index.md, as the build does."""
    where = site.write_source(ROOT, tmp_path)
    assert len(where) > 50


def test_names_are_linked_to_the_reference(tmp_path: Path) -> None:
    """In signatures and in text, but not inside links, headings and code of other pages."""
    (tmp_path / site.API).mkdir(parents=True)
    page, other = tmp_path / site.API / "x.html", tmp_path / "other.html"
    name, code = '<span class="n">App</span>', "<code>App</code>"
    page.write_text(f"<pre>{name}</pre><thead>\n<tr><th>", encoding="utf-8")
    other.write_text(f"<pre>{name}</pre><a>{code}</a><h2>{code}</h2>{code}", encoding="utf-8")
    site.finish(tmp_path, {"App": "reference/api/x.html#app"}, "1.0")
    assert page.read_text("utf-8") == (
        f'<pre><a href="x.html#app">{name}</a></pre><thead>\n<tr><th tabindex="0">'
    )
    code = '<code class="short">App</code>'
    linked = f'<a href="reference/api/x.html#app">{code}</a>'
    assert other.read_text("utf-8") == (f"<pre>{name}</pre><a>{code}</a><h2>{code}</h2>{linked}")


def test_cells_with_sentences_are_marked(tmp_path: Path) -> None:
    """Fails if markup counts as words: a cell with a short link would take the room of others."""
    page, words = tmp_path / "a.html", "a sentence that wants some room"
    link = '<a href="of/another/page/of/the/site.html">x &amp; y</a>'
    page.write_text(f"<th>yes</th><td>{link}</td><td>{words}</td>", encoding="utf-8")
    site.finish(tmp_path, {}, "1.0")
    assert page.read_text("utf-8") == (f'<th>yes</th><td>{link}</td><td class="words">{words}</td>')


def test_drawings_take_the_focus(tmp_path: Path) -> None:
    """Fails if a drawing that is wider than the screen cannot be scrolled without a mouse."""
    page, drawing = tmp_path / "a.html", '<img alt="x" src="a.svg" />'
    page.write_text(f"<p>{drawing}</p><p>and {drawing}</p>", encoding="utf-8")
    site.finish(tmp_path, {}, "1.0")
    assert page.read_text("utf-8") == (
        f'<p class="drawing" tabindex="0">{drawing}</p><p>and {drawing}</p>'
    )


def test_pictures_that_are_links_are_drawings_too(tmp_path: Path) -> None:
    """Fails if only a bare image counts: flame graphs and screenshots lead to their full size."""
    page, linked = tmp_path / "a.html", '<a href="a.png"><img alt="x" src="a.png" /></a>'
    page.write_text(f"<p>{linked}</p>", encoding="utf-8")
    site.finish(tmp_path, {}, "1.0")
    assert page.read_text("utf-8") == f'<p class="drawing" tabindex="0">{linked}</p>'


def test_versions_stay_and_the_newest_number_is_first(tmp_path: Path) -> None:
    """Fails if versions are sorted as texts."""
    built, public = tmp_path / "built", tmp_path / "public"
    built.mkdir()
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        site.publish(built, public, version)
    listed = json.loads((public / "versions.json").read_text("utf-8"))
    assert [row["version"] for row in listed] == ["0.10.0", "0.9.0", "0.2.0"]
    assert [row["aliases"] for row in listed] == [["latest"], [], []]
    assert "url=0.10.0/index.html" in (public / "index.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="b.html">', None),
        ('<a href="https://example.org/x">', None),
        ('<a href="#here">', None),
        ('<a href="c.html">', "there is no such file"),
        ('<a href="b.html#nowhere">', "there is no such anchor"),
        ('<a href="#nowhere">', "there is no such anchor"),
        (
            '<a href="/b.html">',
            "is absolute, and a version of the site is not at the top of its host",
        ),
        ('<img src="missing.png">', "there is no such file"),
        ('<script src="https://example.org/x.js">', "comes from another host"),
        ('<link href="//example.org/x.css">', "comes from another host"),
    ],
)
def test_broken_link_is_found(tmp_path: Path, link: str, wrong: str | None) -> None:
    """Each row fails if its comparison in ``site_links`` is removed."""
    (tmp_path / "a.html").write_text(f'<p id="here">{link}', encoding="utf-8")
    (tmp_path / "b.html").write_text('<p id="there">', encoding="utf-8")
    found = site_links.broken(tmp_path)
    assert [line.rpartition(": ")[2] for line in found] == ([wrong] if wrong else [])
    assert site_links.main([str(tmp_path)]) == (1 if wrong else 0)


def test_folder_without_pages_is_not_taken_for_a_site(tmp_path: Path) -> None:
    assert site_links.main([str(tmp_path)]) == 1
