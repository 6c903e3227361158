"""The rules that no tool checks: small files, small functions, names of the field, nothing left undone."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES_MAX = 400
FUNCTION_LINES_MAX = 70
DRAWERS = {"utils", "util", "helpers", "helper", "common", "base", "misc", "handler", "handlers"}
UNDONE = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")


def files() -> list[Path]:
    """Every text file of ours that is in git or would be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    others = ("/stubs/", "docs/assets/")  # generated, or of other projects
    found = [ROOT / name for name in names if name and not any(part in name for part in others)]
    return [path for path in found if path.is_file() and b"\0" not in path.read_bytes()[:1024]]


def modules() -> list[Path]:
    return [
        path
        for path in files()
        if path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python")
    ]


@pytest.fixture(scope="module", autouse=True)
def _is_a_checkout() -> None:
    assert len(modules()) > 100


def test_module_has_at_most_400_lines() -> None:
    assert [
        name_of(path) for path in modules() if len(path.read_text().splitlines()) > LINES_MAX
    ] == []


def test_function_has_at_most_70_lines() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_module_and_package_have_names_of_the_field() -> None:
    drawers = [
        name_of(path)
        for path in modules()
        if DRAWERS & {*path.relative_to(ROOT).parts[:-1], path.stem}
    ]
    assert drawers == []


def test_nothing_is_left_undone() -> None:
    assert [
        name_of(path) for path in files() if UNDONE.search(path.read_text(errors="replace"))
    ] == []


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))
