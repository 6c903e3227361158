"""Jobs that are killed and begun again: then the bundle is that of an undisturbed run, and nothing
was done twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import journaled, rewritten
from tests.units.export.movies_job import Facts, facts, hidden, visible

TABLES = 5


@dataclass(frozen=True)
class Job:
    """A command without its root; it writes version 1 of a model."""

    name: str
    command: tuple[str, ...]
    model: str = "tables"

    def arguments(self, root: Path) -> list[str]:
        if self.command[0] == "tables":
            return [*self.command[:2], str(root), *self.command[2:], "--version", "1"]
        return [*self.command, "--root", str(root), "--version", "1"]


@dataclass(frozen=True)
class Expected:
    """What an undisturbed run wrote, and how long it took."""

    facts: Facts
    seconds: float


def write_tables(directory: Path, rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Writes a checkpoint of tables that are whole, sliced by rows, by columns and both, in two
    data files.
    """
    random = np.random.default_rng(7)
    third = rows // 3
    above = (0, third)
    below = (third, rows - third)
    slices: list[Any] = [
        None,
        [[above, (0, -1)], [below, (0, -1)]],
        [[(0, -1), (4, 12)], [(0, -1), (0, 4)]],
        [[below, (0, 3)], [above, (0, 3)], [above, (3, 13)], [below, (3, 13)]],
    ]
    values = {
        f"t{number}": random.standard_normal((rows, 16)).astype(np.float32)
        for number in range(TABLES)
    }
    boxes = {f"t{number}": box for number, box in enumerate(slices) if box}
    write_bundle(directory / "ckpt", values, boxes=boxes, files=2)
    return values


def tables_job(directory: Path, rows: int, *options: str) -> Job:
    values = write_tables(directory, rows)
    named = [option for name in values for option in ("--table", f"{name}={name}")]
    return Job(" ".join(["tables", *options]), ("tables", str(directory), *named, *options))


def undisturbed(forked: ForkedRuns, job: Job, directory: Path) -> Expected:
    """Runs a job to its end."""
    directory.mkdir(parents=True)
    forked.start(job.arguments(directory / "bundles"), directory / "output")
    began = time.monotonic()
    status = forked.status()
    seconds = time.monotonic() - began
    assert status == 0, (directory / "output").read_text()
    return Expected(facts(directory / "bundles" / job.model / "1"), seconds)


def resume(forked: ForkedRuns, job: Job, directory: Path, expected: Expected) -> None:
    """Runs a job that was killed again, by the same command, and compares the bundle with the
    undisturbed one.
    """
    root = directory / "bundles"
    output = directory / "output"
    bundle = root / job.model / "1"
    if bundle.is_dir():  # killed between its rename and its end
        assert forked.run(job.arguments(root), output) == 6, output.read_text()
    else:
        assert visible(root) == []
        finished = journaled(root / job.model)
        assert forked.run(job.arguments(root), output) == 0, output.read_text()
        second = rewritten(finished, bundle)
        assert second == set(), f"finished files were written again: {sorted(second)}"
    assert facts(bundle) == expected.facts
    assert hidden(root) == []
