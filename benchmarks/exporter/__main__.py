"""`make bench-export`: the exporter beside `cp`, beside TensorFlow's own path, its memory by the
size of a table, and the time from a checkpoint with changed rows to a service that has them.

Hosts are noisy, so only ratios taken in one run mean anything: contestants take turns, each figure
is a median.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.exporter import big_checkpoints, contests
from benchmarks.report import Sheet
from export.report_text import size_text

GIB = 1 << 30
CORES = 8, 256, 4096
SIZES = {"1 GiB": GIB, "16 GiB": 16 * GIB, "1 TiB": 1 << 40}
CHANGED_ROWS = 100_000
PARTS = ("copies", "tensorflow", "sizes", "delta")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exporter", description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the tables (default 2)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of each contestant (default 3)"
    )
    parser.add_argument("--dir", type=Path, help="where to work; a temporary directory by default")
    parser.add_argument("--only", choices=PARTS, help="one of the contests")
    arguments = parser.parse_args()
    size = int(arguments.gib * GIB) >> 26 << 26
    console = Console(width=160, highlight=False)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        directory = Path(name)
        contests.warm_up(directory)
        for part in [arguments.only] if arguments.only else PARTS:
            for sheet in sheets(part, directory, size, arguments.rounds):
                sheet.show(console)


def sheets(part: str, directory: Path, size: int, rounds: int) -> Iterator[Sheet]:
    """Yields the tables of a part."""
    rows: list[list[str]] = []
    if part == "copies":
        for name, measurements in contests.contest_copies(directory, size, CORES, rounds).items():
            figures = [measurements[key] for key in ("cp", "copy", "command", "ratio")]
            sizes = [size_text(int(measurements[key])) for key in ("bytes", "peak")]
            rows.append([name, *(f"{figure:.2f}" for figure in figures), *sizes])
        columns = ["layout", "cp s", "copy s", "command s", "cp / copy", "bytes", "largest process"]
    elif part == "tensorflow":
        measured_by_exporter = contests.contest_tensorflow(directory, size, rounds)
        by_rowcast = measured_by_exporter["rowcast-export tables"]
        for name, measured in measured_by_exporter.items():
            figures = [
                measured.seconds,
                measured.seconds / by_rowcast.seconds,
                measured.peak_bytes / by_rowcast.peak_bytes,
            ]
            rows.append(
                [name, *(f"{each:.2f}" for each in figures), size_text(measured.peak_bytes)]
            )
        columns = [
            "exporter",
            "s until synced",
            "time by rowcast's",
            "memory by rowcast's",
            "largest process",
        ]
    elif part == "delta":
        changed_rows = min(CHANGED_ROWS, size // big_checkpoints.ROW_BYTES // 20)
        timed = contests.time_delta(directory, size, changed_rows)
        durations = [f"{timed[step]:.1f}" for step in ("export", "served")]
        rows.append(
            [f"{changed_rows:,}", size_text(size), *durations, size_text(int(timed["bytes"]))]
        )
        columns = ["changed rows", "table", "export s", "until served s", "written"]
    else:
        for name, steps in contests.contest_sizes(directory, SIZES).items():
            rows += [
                [name, step, f"{ran.seconds:.2f}", size_text(ran.peak_bytes)]
                for step, ran in steps.items()
            ]
        columns = ["table", "step", "s", "largest process"]
    yield Sheet(part, columns, rows)


if __name__ == "__main__":
    main()
