from __future__ import annotations

from pathlib import Path

import pytest

from tests.units.runtime.tower_files import write_tower_files


@pytest.fixture(scope="session")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of `<tower>/compiled-f32.tflite` and friends, with `weights.npz` beside them."""
    directory = tmp_path_factory.mktemp("towers")
    write_tower_files(directory)
    return directory
