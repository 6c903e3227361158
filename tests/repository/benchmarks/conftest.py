"""Benchmarks, run as `make` runs them, at 1/5000 of their size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCALE = 0.0002


def printed_by(module: str, *options: str) -> str:
    """Runs a benchmark in a process of its own, which must succeed; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def printed_rows(output: str) -> list[list[str]]:
    """Returns the cells of the rows of all tables that a benchmark has printed."""
    lines = [line for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
