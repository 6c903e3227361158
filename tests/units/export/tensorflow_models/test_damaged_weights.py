"""Weights that lie damaged on a disk: no bundle is published of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.movies_job import export, visible, write_project
from tests.units.export.small_job import save_small_recipe


def test_weight_with_a_flipped_bit_is_rejected_with_its_checkpoint(tmp_path: Path) -> None:
    recipe = save_small_recipe(tmp_path)
    prefix = Path(recipe["checkpoint"]["path"])
    entries = open_checkpoint(prefix).entries.items()
    (kernel,) = (entry for key, entry in entries if "/kernel/" in key)
    (part,) = kernel.slices
    content = bytearray(Path(part.file).read_bytes())
    content[part.offset] ^= 1
    Path(part.file).write_bytes(content)
    project = write_project(tmp_path / "project", recipe)
    with pytest.raises(CheckpointError, match=rf"{prefix}.*[Cc]hecksum"):
        export(project)
    assert visible(tmp_path / "project/bundles") == []
