"""Every table of a page has a header above all of its rows, and ends before the text after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository.docs.blocks import ROOT

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs").glob("*/*.md"),
    *ROOT.glob("examples/*/README.md"),
    ROOT / "client/README.md",
]
FENCED = re.compile(r"^ *(```+).*?^ *\1", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^(?:\|.*\n?)+", re.MULTILINE)
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
