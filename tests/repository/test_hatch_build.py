from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

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


@pytest.fixture(scope="module")
def hatch_build() -> ModuleType:
    spec = spec_from_file_location("hatch_build", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("of_tree", "of_wheel"),
    [
        ("from service import app", "from rowcast.service import app"),
        ("from rows import (\n    cells,\n)", "from rowcast.rows import (\n    cells,\n)"),
        ("import os, rows.a as a, rows as b", "import os, rowcast.rows.a as a, rowcast.rows as b"),
        ("def f():\n    from export import cli", "def f():\n    from rowcast.export import cli"),
        ("'é\x0c'\nfrom bundle import native", "'é\x0c'\nfrom rowcast.bundle import native"),
        ("from rowcast.programs import serve", "from rowcast.programs import serve"),
        ("from .service import a", "from .service import a"),
        ("from services import a  # from service import b", None),
        ('"""\nfrom service import a\n"""', None),
    ],
)
def test_imports_of_the_tree_name_the_package_of_the_wheel(
    hatch_build: ModuleType, of_tree: str, of_wheel: str | None
) -> None:
    assert hatch_build.moved(of_tree, Path("a.py")) == (of_wheel or of_tree)


@pytest.mark.parametrize("statement", ["import service", "import os, service.app"])
def test_import_that_would_bind_another_name_in_the_wheel_is_refused(
    hatch_build: ModuleType, statement: str
) -> None:
    with pytest.raises(hatch_build.CannotMove, match=r"a\.py:2: `import service"):
        hatch_build.moved(f"\n{statement}", Path("a.py"))


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


def test_package_has_the_page_and_the_document_of_the_service(
    hatch_build: ModuleType, tmp_path: Path
) -> None:
    hatch_build.write_package(tmp_path)
    written = {path.suffix for path in tmp_path.glob("service/http/start_page.*")}
    assert written == {".css", ".html", ".js"}
    assert (tmp_path / "service" / "openapi.json").is_file()
