from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "hatch_build.py"


def compiled_by(directory: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    """Compiles a copy of the sources by some program."""
    native = directory / "bundle" / "native"
    native.mkdir(parents=True)
    (native / "_rows.c").write_text("int main;")
    (directory / PROGRAM.name).write_text(PROGRAM.read_text())
    command = [sys.executable, str(directory / PROGRAM.name)]
    return subprocess.run(
        command, env={**os.environ, "CC": compiler}, capture_output=True, text=True, check=False
    )


def test_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = compiled_by(tmp_path, "/no/such/compiler")
    assert found.returncode == 1
    assert "'/no/such/compiler' does not run" in found.stderr
    assert "set CC" in found.stderr


@pytest.mark.parametrize("compiler", ["false", "sh -c 'echo no headers >&2; exit 1'"])
def test_compiler_that_fails_is_told_with_what_it_said_and_leaves_nothing(
    tmp_path: Path, compiler: str
) -> None:
    found = compiled_by(tmp_path, compiler)
    assert found.returncode == 1
    assert "failed:" in found.stderr
    assert ("no headers" in found.stderr) == ("headers" in compiler)
    assert [path.name for path in (tmp_path / "bundle" / "native").iterdir()] == ["_rows.c"]


def test_what_is_compiled_appears_whole_under_its_name(tmp_path: Path) -> None:
    # A compiler that writes to what follows -o, as any does.
    found = compiled_by(
        tmp_path, """sh -c 'while [ "$1" != -o ]; do shift; done; echo made > "$2"' cc"""
    )
    assert found.returncode == 0, found.stderr
    made = [path for path in (tmp_path / "bundle" / "native").iterdir() if path.suffix == ".so"]
    assert [path.read_text() for path in made] == ["made\n"]
