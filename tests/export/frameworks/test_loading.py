from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from export.frameworks.loading import SUPPORTED

CODE = "from export.frameworks.loading import load_tensorflow; load_tensorflow()"


@pytest.mark.parametrize("name", SUPPORTED)
def test_release_that_is_not_supported_is_named_beside_the_one_that_is(name: str, tmp_path: Path) -> None:
    told = tmp_path / f"{name.replace('-', '_')}-9.1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.1.0\n")
    paths = f"{tmp_path}:{Path(__file__).parents[3]}"
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"supports {name} {SUPPORTED[name]}; found 9.1.0" in done.stderr
