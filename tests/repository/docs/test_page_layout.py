"""Tables and lists of a page are drawn as such, on the site (Python-Markdown) as on GitHub."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.repository.docs.blocks import ROOT

SITE_PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs").glob("*/*.md"),
    *(ROOT / "docs/examples").glob("*/README.md"),
]
PAGES = [*SITE_PAGES, *ROOT.glob("*.md"), ROOT / "client/README.md"]
FENCED = re.compile(r"^ *(```+).*?^ *\1", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^(?:\|.*\n?)+", re.MULTILINE)
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
DIVIDER = re.compile(r"\|(?: *:?-+:? *\|)+")


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_tables_have_a_header(page: Path) -> None:
    text = FENCED.sub("", page.read_text())

    rows = [table.group().splitlines() for table in TABLE.finditer(text)]
    without_header = [
        lines[0] for lines in rows if len(lines) < 2 or not DIVIDER.fullmatch(lines[1])
    ]

    assert not without_header


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_text_after_a_table_is_no_row_of_it(page: Path) -> None:
    text = FENCED.sub("", page.read_text())

    next_lines = [text[table.end() :].split("\n", 1)[0] for table in TABLE.finditer(text)]
    texts = [line for line in next_lines if line and not line.startswith("<!--")]

    assert not texts


@pytest.mark.parametrize("page", sorted(SITE_PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_begin_after_a_blank_line(page: Path) -> None:
    lines = FENCED.sub("", page.read_text()).splitlines()

    ends_paragraph = re.compile(rf"#|<!--|{ITEM.pattern}|\s|$")
    joined = [
        line
        for before, line in pairwise(lines)
        if ITEM.match(line) and not ends_paragraph.match(before)
    ]

    assert not joined


@pytest.mark.parametrize("page", sorted(SITE_PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_paragraphs_of_list_items_are_indented_by_four(page: Path) -> None:
    lines = FENCED.sub("", page.read_text()).splitlines()

    outside = [
        line for before, line in pairwise(lines) if not before and re.match(" {1,3}\\S", line)
    ]

    assert not outside
