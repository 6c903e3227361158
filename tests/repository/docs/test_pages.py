"""Tables and lists of all pages are drawn as such, on the site (Python-Markdown) as on GitHub, and
every path of the code that a page names exists.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from tests.repository.docs.blocks import ROOT, pages

SITE_PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs").glob("*/*.md"),
    *(ROOT / "docs/examples").glob("*/README.md"),
]
PAGES = sorted([*SITE_PAGES, *ROOT.glob("*.md"), ROOT / "client/README.md"])
FENCED = re.compile(r"^ *(```+).*?^ *\1", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^(?:\|.*\n?)+", re.MULTILINE)
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
DIVIDER = re.compile(r"\|(?: *:?-+:? *\|)+")
FOLDERS = (
    "benchmarks",
    "bundle",
    "client",
    "docs",
    "examples",
    "export",
    "object_store",
    "proto",
    "runtime",
    "scripts",
    "service",
    "tensors",
    "tests",
)
"""Without deploy, whose pages name files that operators create."""
PATH = re.compile(rf"(?<![\w./*-])(?:{'|'.join(FOLDERS)})/[\w./*-]*\w")
MODULE_OF_DIAGRAM = re.compile(r"^ *participant \w+ as (\w+/\w+)$", re.MULTILINE)
MODULE_FOLDERS = ("", "service/", "service/engine/")
"""What diagrams leave out before the name of a module."""


def prose_of(page: Path) -> str:
    """Returns a page without its fenced blocks."""
    return FENCED.sub("", page.read_text())


def test_tables_have_a_header_and_end_before_other_text() -> None:
    wrong = []
    for page in PAGES:
        text = prose_of(page)
        for table in TABLE.finditer(text):
            rows = table[0].splitlines()
            if len(rows) < 2 or not DIVIDER.fullmatch(rows[1]):
                wrong.append((str(page), rows[0]))
            next_line = text[table.end() :].split("\n", 1)[0]
            if next_line and not next_line.startswith("<!--"):
                wrong.append((str(page), next_line))
    assert wrong == []


def test_lists_begin_after_a_blank_line_and_their_paragraphs_are_indented_by_four() -> None:
    ends_paragraph = re.compile(rf"#|<!--|{ITEM.pattern}|\s|$")
    wrong = []
    for page in SITE_PAGES:
        for before, line in pairwise(prose_of(page).splitlines()):
            joined = ITEM.match(line) and not ends_paragraph.match(before)
            outside = not before and re.match(r" {1,3}\S", line)
            if joined or outside:
                wrong.append((str(page), line))
    assert wrong == []


def test_paths_that_pages_name_exist() -> None:
    missing = []
    for page in PAGES:
        text = page.read_text()
        missing += [(str(page), path) for path in PATH.findall(text) if not any(ROOT.glob(path))]
        modules = MODULE_OF_DIAGRAM.findall(text)
        missing += [(str(page), module) for module in modules if not is_module(module)]
    assert missing == []


def is_module(name: str) -> bool:
    """Returns whether a module or a package has this path, perhaps within a folder."""
    files = [ROOT / f"{folder}{name}" for folder in MODULE_FOLDERS]
    return any(file.is_dir() or file.with_suffix(".py").is_file() for file in files)


def test_metrics_that_pages_name_exist() -> None:
    documented = {*re.findall(r"rowcast_\w+", (ROOT / "docs/reference/metrics.md").read_text())}
    modules = {"rowcast_api", "rowcast_client"}
    missing = []
    for page in pages():
        named = re.findall(r"`(rowcast_\w+)[`{]", page.read_text())
        missing += [(str(page), name) for name in {*named} - documented - modules]
    assert missing == []
