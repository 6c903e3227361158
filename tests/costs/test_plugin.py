from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.costs.plugin import COLLECTION, SESSION_FIXTURES

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

CONFTEST = """
import subprocess, sys, time
import pytest

def use_cpu(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.fixture(scope="session")
def of_the_session():
    use_cpu(0.5)

@pytest.fixture(scope="module")
def of_the_file():
    use_cpu(2.4)
"""
CHEAP = """
def test_cheap(of_the_session):
    pass
"""
COSTLY = """
import subprocess, sys
import pytest
from conftest import use_cpu

PROGRAM = "import time\\nwhile time.process_time() < 1: pass"

@pytest.fixture(scope="module")
def program():
    process = subprocess.Popen([sys.executable, "-c", PROGRAM])
    yield process
    process.wait()

def test_needs_the_file_and_a_program_that_runs_on(of_the_file, program):
    while program.poll() is None:
        pass

def test_needs_the_file(of_the_file):
    use_cpu(1.0)

@pytest.mark.slow
def test_marked():
    pass
"""


@pytest.fixture(scope="module")
def measured_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose table was written by a run in two processes."""
    project = write_project(tmp_path_factory.mktemp("measured"))
    done = run(project, "--costs=write", "-n", "2", "--dist", "loadfile")
    assert done.returncode == 0, done.stdout
    return project


@pytest.fixture
def project(measured_project: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    return Path(shutil.copytree(measured_project, tmp_path / "project"))


def write_project(folder: Path) -> Path:
    (folder / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['slow: costs much']\n"
    )
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_cheap.py").write_text(CHEAP)
    (folder / "test_costly.py").write_text(COSTLY)
    return folder


def run(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.costs.plugin", *options],
        cwd=project,
        env=os.environ | {"PYTHONPATH": f"{Path(__file__).parents[2]}:{project}"},
        capture_output=True,
        text=True,
        check=False,
    )


def table_of(project: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((project / "tests/costs/costs.json").read_text())
    return content


def test_written_table_has_the_cost_of_files_and_of_each_costly_test_with_its_share(
    measured_project: Path,
) -> None:
    files = table_of(measured_project)["files"]
    assert set(files) == {"test_cheap.py", "test_costly.py", SESSION_FIXTURES, COLLECTION}
    assert files[SESSION_FIXTURES] >= 0.5
    assert files["test_costly.py"] >= 2.4 + 1.0 + 1.0
    assert set(table_of(measured_project)["tests"]) == {
        "test_costly.py::test_needs_the_file_and_a_program_that_runs_on",
        "test_costly.py::test_needs_the_file",
    }


def test_written_table_has_tests_that_are_costly_if_they_run_alone(project: Path) -> None:
    (project / "test_shared.py").write_text(
        "import pytest\nfrom conftest import use_cpu\n"
        "@pytest.fixture(scope='module')\ndef trained(): use_cpu(3)\n"
        "@pytest.mark.parametrize('number', range(3))\ndef test_reads(trained, number): pass\n"
    )
    done = run(project, "--costs=write", "test_shared.py")
    assert done.returncode == 0, done.stdout
    table = table_of(project)
    assert set(table["alone"]) == {f"test_shared.py::test_reads[{number}]" for number in range(3)}
    assert not any("test_shared" in name for name in table["tests"])


def test_costliest_file_runs_first_and_a_new_one_before_it(project: Path) -> None:
    (project / "test_new.py").write_text("def test_new(): pass\n")
    lines = run(project, "--collect-only", "-q").stdout.splitlines()
    order = [line.partition("::")[0] for line in lines if "::" in line]
    assert list(dict.fromkeys(order)) == ["test_new.py", "test_costly.py", "test_cheap.py"]


def test_run_above_the_budget_or_with_a_wrong_mark_fails_and_says_which(project: Path) -> None:
    (project / "test_new.py").write_text(
        "from conftest import use_cpu\ndef test_new(): use_cpu(1.5)\n"
    )
    done = run(project, "--costs=check", "-k", "new or marked")
    assert done.returncode == 1
    assert "test_costly.py::test_marked is marked slow, but costs less than 2 CPU s" in done.stdout
    assert "test_new.py: 0.0 CPU s in the table, 1." in done.stdout
    assert "CPU s more than" in done.stdout


def test_failed_run_writes_no_table(project: Path) -> None:
    before = table_of(project)
    (project / "test_new.py").write_text("def test_new(): assert False\n")
    assert run(project, "--costs=write", "-k", "new").returncode == 1
    assert table_of(project) == before
