"""Towers that PyTorch itself wrote: torch_graphs.tar.xz, by tests/golden/write_torch_graphs.py."""

from __future__ import annotations

import tarfile
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"


def extract(folder: Path, name: str) -> Path:
    """Extracts an archive of golden files, and returns the folder in it."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name
