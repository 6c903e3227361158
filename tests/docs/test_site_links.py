"""Every link of the documentation site leads to a file of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from scripts import docs_links
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)[^)]*\)")
PAGES = [page for page in DOCS.rglob("*.md") if "README" not in page.name]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_of_page_stay_in_the_site(page: Path) -> None:
    site_text = docs_links.on_page_markdown(page.read_text())

    outside = []
    for link in LINK.findall(site_text):
        # Not resolved: the site has the files behind docs/deploy and docs/examples as its own.
        target = Path(os.path.normpath(page.parent / link))
        if not target.is_relative_to(DOCS) or not target.exists():
            outside.append(link)

    assert not outside
