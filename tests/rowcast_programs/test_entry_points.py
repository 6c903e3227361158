"""Programs beside a user's packages that have the names of rowcast's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rowcast_programs
from tests.repository.docs.blocks import ROOT

SHARED = ("bundle", "object_store", "rows", "runtime", "tensors")
CASES = [
    *(("serve", name) for name in (*SHARED, "service")),
    *(("export", name) for name in (*SHARED, "export")),
]


def run(folder: Path, code: str, *, by_variable: bool) -> subprocess.CompletedProcess[str]:
    """Runs code with a folder on Python's path: by PYTHONPATH, or as the working directory."""
    path = [str(ROOT), str(ROOT / "client")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *path])}
    if not by_variable:
        environment["PYTHONPATH"] = os.pathsep.join(["", *path])
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "--version"],
        cwd=folder if not by_variable else ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("by_variable", [True, False], ids=["variable", "directory"])
@pytest.mark.parametrize("kind", ["package", "module"])
@pytest.mark.parametrize(("program", "name"), CASES)
def test_package_that_hides_one_of_ours_is_named_by_its_file(
    tmp_path: Path, program: str, name: str, kind: str, by_variable: bool
) -> None:
    file = tmp_path / name / "__init__.py" if kind == "package" else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('the package of the user was imported')")
    code = f"import rowcast_programs; rowcast_programs.{program}()"
    done = run(tmp_path, code, by_variable=by_variable)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"rowcast-{program}: {file} hides the package {name!r} of rowcast; rename it"
    )


def test_packages_that_a_program_does_not_import_are_no_concern_of_it(tmp_path: Path) -> None:
    for name in ("client", "export"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "service").mkdir()  # without a module: rowcast's own is found
    done = run(tmp_path, "import rowcast_programs; rowcast_programs.serve()", by_variable=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("bundle", "runtime", "service"):
        (tmp_path / f"{name}.py").touch()
    program = "from rowcast_client.commands import main; main()"
    done = run(tmp_path, program, by_variable=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_scripts_begin_where_packages_are_checked() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() == {"rowcast-export", "rowcast-serve"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert module == rowcast_programs.__name__
        assert callable(getattr(rowcast_programs, function))
