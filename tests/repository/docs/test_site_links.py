"""Every link of the documentation site leads to a file of the site, and to a heading of a page."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import docs_links
from tests.repository.docs.blocks import ROOT

DOCS = ROOT / "docs"
PAGES = [page for page in DOCS.rglob("*.md") if "README" not in page.name]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
CODE = re.compile(r"^ *(```+).*?^ *\1", re.MULTILINE | re.DOTALL)
ID = re.compile(r'\bid="([^"]+)"')


@cache
def anchors_of(page: Path) -> set[str]:
    """Returns the anchors of a page, as mkdocs derives them from its headings."""
    text = page.read_text()
    anchors = set(ID.findall(text))
    for heading in HEADING.findall(CODE.sub("", text)):
        words = re.sub(r"\]\([^)]*\)", "", heading)
        words = re.sub(r"[^\w\s-]", "", words).strip().lower()
        anchors.add(re.sub(r"[-\s]+", "-", words))
    return anchors


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_of_page_stay_in_the_site(page: Path) -> None:
    site_text = CODE.sub("", docs_links.on_page_markdown(page.read_text()))

    broken = []
    for path, anchor in LINK.findall(site_text):
        # Not resolved: the site has the files behind docs/deploy and docs/examples as its own.
        target = page
        if path:
            target = Path(os.path.normpath(page.parent / path))
        if not target.is_relative_to(DOCS) or not target.exists():
            broken.append(path)
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            broken.append(f"{path}#{anchor}")

    assert not broken


def test_link_to_a_file_that_the_site_lacks_is_dead(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="folder/page.html#part">page</a> <a href="recipe.toml">lost</a>'
        '<a href="https://example.com/x">elsewhere</a> <a href="#here">here</a>'
    )
    (tmp_path / "folder/page.html").write_text('<a href="../index.html"></a> <img src="/no.svg">')

    assert docs_links.dead_links(tmp_path) == [
        (Path("folder/page.html"), "/no.svg"),
        (Path("index.html"), "recipe.toml"),
    ]


@pytest.mark.parametrize(
    ("repository", "named"),
    [
        (
            "https://git.example/shop/rowcast/",
            "[dcn](https://git.example/shop/rowcast/blob/main/examples/zoo/tfrs/dcn/recipe.toml)",
        ),
        ("", "dcn"),
    ],
)
def test_file_of_the_repository_is_linked_where_the_repository_is_published(
    repository: str, named: str
) -> None:
    text = docs_links.on_page_markdown(
        "[dcn](../../examples/zoo/tfrs/dcn/recipe.toml), "
        "[Deploy](../../deploy/README.md#with-compose)",
        config=SimpleNamespace(repo_url=repository),
    )

    assert text == f"{named}, [Deploy](../deploy/README.md#with-compose)"
