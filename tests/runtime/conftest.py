from __future__ import annotations

import runpy
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of `<tower>/compiled-f32.tflite` and friends, with `weights.npz` beside them."""
    directory = tmp_path_factory.mktemp("towers")
    runpy.run_path(str(Path(__file__).with_name("tower_files.py")))["write_tower_files"](directory)
    return directory
