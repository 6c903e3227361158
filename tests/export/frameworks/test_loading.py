from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from export.frameworks.loading import SUPPORTED

CODE = "from export.frameworks.loading import load_tensorflow; load_tensorflow()"


@pytest.mark.parametrize("name", SUPPORTED)
def test_unsupported_release_is_named_with_the_supported_one(name: str, tmp_path: Path) -> None:
    metadata = tmp_path / f"{name.replace('-', '_')}-9.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.1.0\n")
    paths = f"{tmp_path}:{Path(__file__).parents[3]}"
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"supports {name} {SUPPORTED[name]}; found 9.1.0" in done.stderr
