from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "hatch_build.py"


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


def test_compile_with_a_missing_compiler_names_it(tmp_path: Path) -> None:
    actual = compiled_by(tmp_path, "/no/such/compiler")
    assert actual.returncode == 1
    assert "'/no/such/compiler' does not run" in actual.stderr
    assert "set CC" in actual.stderr


@pytest.mark.parametrize("compiler", ["false", "sh -c 'echo no headers >&2; exit 1'"])
def test_compile_with_a_compiler_that_fails_prints_its_output_and_leaves_no_file(
    tmp_path: Path, compiler: str
) -> None:
    actual = compiled_by(tmp_path, compiler)
    assert actual.returncode == 1
    assert "failed:" in actual.stderr
    assert ("no headers" in actual.stderr) == ("headers" in compiler)
    assert [path.name for path in (tmp_path / "bundle" / "native").iterdir()] == ["_rows.c"]


def test_compile_publishes_the_extension_when_it_is_complete(tmp_path: Path) -> None:
    # A compiler that writes to what follows -o, as any does.
    actual = compiled_by(
        tmp_path, """sh -c 'while [ "$1" != -o ]; do shift; done; echo made > "$2"' cc"""
    )
    assert actual.returncode == 0, actual.stderr
    made = [path for path in (tmp_path / "bundle" / "native").iterdir() if path.suffix == ".so"]
    assert [path.read_text() for path in made] == ["made\n"]
