from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from export import steps
from export.graphs.loading import SUPPORTED

CODE = "from export.graphs.loading import load_tensorflow; load_tensorflow()"


@pytest.mark.parametrize("name", SUPPORTED)
def test_load_tensorflow_of_an_unsupported_release_names_the_supported_one(
    name: str, tmp_path: Path
) -> None:
    metadata = tmp_path / f"{name.replace('-', '_')}-9.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.1.0\n")
    assert f"supports {name} {SUPPORTED[name]}; found 9.1.0" in loaded_from(tmp_path)


@pytest.mark.parametrize("name", SUPPORTED)
def test_unsupported_module_of_a_distribution_of_another_name_is_named(
    name: str, tmp_path: Path
) -> None:
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text('__version__ = "9.1.0.dev2"\n')
    code = CODE
    if name != "tensorflow":
        hooks = "export.tensorflow_models.frameworks.hooks"
        code = f"import {module}, {hooks} as h; h.HookPoint({module!r}, 'x').find()"
    told = loaded_from(tmp_path, code)
    assert f"supports {name} {SUPPORTED[name]}; found 9.1.0.dev2" in told


def test_versions_include_a_module_whose_distribution_has_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("unlisted")
    module.__version__ = "2.20.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unlisted", module)
    assert steps.versions(("unlisted", "absent")) == {"unlisted": "2.20.0"}


def loaded_from(directory: Path, code: str = CODE) -> str:
    """Returns the error of a program that finds modules and distributions in a directory first."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{directory}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr
