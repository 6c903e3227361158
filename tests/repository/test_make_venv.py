"""`scripts/make_venv`: every reason why no environment can be made is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "scripts" / "make_venv"


def make(venv: Path | str, python: str = "", *arguments: str) -> subprocess.CompletedProcess[str]:
    """Makes an environment where no index can be reached."""
    environment = {**os.environ, "PYTHON": python, "PIP_NO_INDEX": "1"}
    command = [str(PROGRAM), str(venv), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def interpreter(path: Path, version: str) -> str:
    """Writes a program that says that it is some version of Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("option", ["--upgrade", ""])
def test_option_in_place_of_the_directory_is_rejected_with_the_usage(option: str) -> None:
    done = make(option, "", "pip")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert (
        f"'{option}' does not name a directory; usage: scripts/make_venv DIRECTORY" in done.stderr
    )


@pytest.mark.parametrize(
    ("version", "message"), [("3.10", "is Python 3.10: "), ("3.15", "is Python 3.15: ")]
)
def test_other_version_of_python_is_named_with_those_that_are_supported(
    tmp_path: Path, version: str, message: str
) -> None:
    done = make(tmp_path / "venv", interpreter(tmp_path / "python", version))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert message + "install Python 3.11, 3.12, 3.13 or 3.14" in done.stderr


def test_missing_python_is_named(tmp_path: Path) -> None:
    done = make(tmp_path / "venv", "/no/such/python")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "/no/such/python does not run" in done.stderr


def test_reason_of_a_python_that_does_not_run_is_shown(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    done = make(tmp_path / "venv", str(shim))
    assert done.returncode == 1
    assert f"{shim} does not run: install Python 3.11" in done.stderr
    assert "pyenv: python3.12: command not found" in done.stderr


@pytest.mark.slow
def test_environment_without_a_network_is_continued_by_the_same_command(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    done = make(venv, sys.executable, "no-such-package")
    assert done.returncode == 1
    assert "error: pip failed, see above. Without a network, PIP_INDEX_URL" in done.stderr
    assert not (venv / ".installed").exists()
    assert make(venv, "", "pip").returncode == 0
    assert (venv / ".installed").exists()
    assert make(venv, "", "no-such-package").returncode == 0, (
        "nothing is installed where all is up to date"
    )
