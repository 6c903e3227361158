"""`scripts/check_style`: what it counts, and that counts only fall."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "check_style"

ANSWERS = "ans" + "wers"  # in two parts, so that it is not counted here

ITEMS = '''
def read(rows):
    """Reads.

    Args:
      rows: of the table.
      count: The number of them,
        of all that there are.

    Raises:
      ValueError: as above.
    """
'''


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("check_style", str(SCRIPT))
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("found = 1", "vague names", 1),
        ("for each in rows:\n    pass", "vague names", 1),
        ("rows = [place for place in rows]", "vague names", 1),
        ("def f(*, left):\n    pass", "vague names", 1),
        ("with f() as (a, _held):\n    pass", "vague names", 1),
        (ITEMS, "fragments", 6),
        (
            'class Table:\n    """A.\n\n    Attributes:\n      a, b: as it is.\n    """',
            "fragments",
            5,
        ),
        ('"""A module that\n' + ANSWERS + ' the requests."""', "banned words", 2),
        ("x = 1\n# This is where a service\n# " + ANSWERS + ".", "banned words", 3),
        ('raise ValueError(f"{a} is not what it ' + ANSWERS + '")', "banned words", 1),
        ("x = a if b else c", "conditional expressions", 1),
    ],
)
def test_each_place_is_counted_once(script: Any, source: str, kind: str, line: int) -> None:
    assert [(finding.kind, finding.line) for finding in script.findings_in(source)] == [
        (kind, line)
    ]


@pytest.mark.parametrize(
    "source",
    [
        "candidate_rows = rows[0]",
        "from a import found",
        "self.found = 1",
        ITEMS.replace("of the table", "The rows"),
        'name = "answer"',
        'text = "a `told` name in code"',
        "if a:\n    x = b\nelse:\n    x = c",
    ],
)
def test_other_code_is_not_counted(script: Any, source: str) -> None:
    assert script.findings_in(source) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the script, and three fragments in its committed counts."""
    for name in ("scripts/check_style", "scripts/check_words"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / ".vale", tmp_path / ".vale")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    write_fragments(tmp_path, 3)
    assert run(tmp_path, "--lower").returncode == 0
    return tmp_path


def write_fragments(checkout: Path, count: int) -> None:
    items = "".join(f"      {letter}: of it.\n" for letter in "abcd"[:count])
    (checkout / "service").mkdir(exist_ok=True)
    (checkout / "service" / "a.py").write_text(f'"""Has items.\n\n    Args:\n{items}    """\n')


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "scripts" / "check_style"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("count", "error"),
    [
        (3, ""),
        (4, "service: 4 fragments; at most 3 (scripts/check_style --list | grep ^service)"),
        (2, "service: 2 fragments instead of 3; commit it: scripts/check_style --lower"),
    ],
)
def test_count_must_be_the_committed_one(checkout: Path, count: int, error: str) -> None:
    write_fragments(checkout, count)
    checked = run(checkout)
    assert checked.returncode == int(bool(error))
    assert checked.stderr.strip() == error
