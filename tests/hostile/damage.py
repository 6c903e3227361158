"""Whole checkpoints, of any kind, damaged and endured; the same for the same seed."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.mutations import Files, damaged
from tests.hostile.ordeal import deadline, endure

BESIDE = ("values.npz", "facts.json")


def case_files(case: Path) -> Files:
    """Returns the files of a case, without what a test knows of it."""
    actual = [
        path for path in sorted(case.rglob("*")) if path.is_file() and path.name not in BESIDE
    ]
    return {path.relative_to(case).as_posix(): path.read_bytes() for path in actual}


def trial(seed: int, files: Files, directory: Path) -> None:
    """Writes and endures one damaged case."""
    for name, data in damaged(seed, files).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    single = sorted(name for name in files if name.endswith((".h5", ".keras")))
    with deadline():
        endure(directory / single[0] if single else directory)
