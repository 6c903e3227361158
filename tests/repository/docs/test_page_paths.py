"""Every path of the code that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository.docs.blocks import ROOT

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
SECTIONS = ("", "adr", "explanation", "how-to", "reference", "tutorials")
PAGES = [
    *ROOT.glob("*.md"),
    *(page for section in SECTIONS for page in (ROOT / "docs" / section).glob("*.md")),
    *ROOT.glob("examples/*/README.md"),
    ROOT / "client" / "README.md",
    ROOT / "deploy" / "README.md",
]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_page_exist(page: Path) -> None:
    text = page.read_text()

    missing = [path for path in PATH.findall(text) if not any(ROOT.glob(path))]
    missing += [name for name in MODULE_OF_DIAGRAM.findall(text) if not is_module(name)]

    assert not missing


def is_module(name: str) -> bool:
    """Returns whether a module or a package has this path, perhaps within a folder."""
    files = [ROOT / f"{folder}{name}" for folder in MODULE_FOLDERS]
    return any(file.is_dir() or file.with_suffix(".py").is_file() for file in files)
