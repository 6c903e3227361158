from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

COSTLY = """
import subprocess, sys, time

PROGRAM = "import time\\nwhile time.process_time() < 1: pass"

def test_runs_a_program():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    while time.process_time() < 1:
        pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a file that costs nothing, and one that costs two seconds."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "test_cheap.py").write_text("def test_cheap(): pass\n")
    (tmp_path / "test_costly.py").write_text(COSTLY)
    return tmp_path


def run(project: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.costs.plugin", *options],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_costs_of_files_are_written_printed_and_decide_the_order(project: Path) -> None:
    printed = run(project, "--costs", "-n", "2", "--dist", "loadfile")
    table = project / "tests/costs/costs.json"
    costs = json.loads(table.read_text())
    assert set(costs) == {"test_cheap.py", "test_costly.py"}
    assert costs["test_costly.py"] >= 1.0
    assert "test_costly.py" in printed.partition("CPU seconds")[2]

    (project / "test_new.py").write_text("def test_new(): assert False\n")
    lines = run(project, "--collect-only", "-q").splitlines()
    order = [line.partition("::")[0] for line in lines if "::" in line]
    assert order == ["test_new.py", "test_costly.py", "test_cheap.py"]

    run(project, "--costs")
    assert json.loads(table.read_text()) == costs, "a run that fails writes no table"
