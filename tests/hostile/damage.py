"""Whole checkpoints, of any kind, damaged and endured; the same for the same seed."""

from __future__ import annotations

import random
from pathlib import Path

from tests.hostile.mutations import Files, flip, mutated
from tests.hostile.ordeal import deadline, endure

BESIDE = ("values.npz", "facts.json")


def case_files(case: Path) -> Files:
    """Returns the files of a case, without what a test knows of it."""
    found = [path for path in sorted(case.rglob("*")) if path.is_file() and path.name not in BESIDE]
    return {path.relative_to(case).as_posix(): path.read_bytes() for path in found}


def damaged(seed: int, files: Files) -> Files:
    """Returns a case with some damage, the same for the same seed."""
    rng = random.Random(seed)
    bundle = {name: data for name, data in files.items() if "/" not in name}
    if any(name.endswith(".index") for name in bundle) and rng.random() < 0.9:
        return files | mutated(seed, bundle)
    name = rng.choice(sorted(files))
    return files | {name: flip(rng, files[name])}


def trial(seed: int, files: Files, directory: Path) -> None:
    """Writes and endures one damaged case."""
    for name, data in damaged(seed, files).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    single = sorted(name for name in files if name.endswith((".h5", ".keras")))
    with deadline():
        endure(directory / single[0] if single else directory)
