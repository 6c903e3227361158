"""`make bench-export`: the exporter beside `cp`, beside TensorFlow's own path, and its memory by the size of a table.

The machine is noisy, so only ratios taken in one run mean anything: contestants take turns, each figure is a median.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from export.figures import size_text
from tests.bench.exporter import contests

GIB = 1 << 30
ENTRIES = 100_000
DIMS = 128, 32, 16, 8
SIZES = {"1 GiB": GIB, "16 GiB": 16 * GIB, "1 TiB": 1 << 40}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the tables that are copied (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant (default 3)")
    parser.add_argument("--items", type=int, default=10_000_000, help="candidates of the corpus (default 10 million)")
    parser.add_argument("--dir", type=Path, help="where to work; a temporary directory by default")
    parser.add_argument(
        "--only", choices=("copies", "types", "tensorflow", "sizes", "inspect", "corpus"), help="one of the contests"
    )
    asked = parser.parse_args()
    size = int(asked.gib * GIB) >> 26 << 26
    console = Console(width=120, highlight=False)
    with tempfile.TemporaryDirectory(dir=asked.dir) as name:
        directory = Path(name)
        contests.warm_up(directory)
        if asked.only in (None, "copies"):
            _print_copies(console, directory, size, asked.rounds)
        if asked.only in (None, "types"):
            _print_types(console, directory, size, asked.rounds)
        if asked.only in (None, "tensorflow"):
            _print_tensorflow(console, directory, size, asked.rounds)
        if asked.only in (None, "sizes"):
            _print_sizes(console, directory)
        if asked.only in (None, "inspect"):
            _print_inspect(console, directory, asked.rounds)
        if asked.only == "corpus":  # minutes, and 20 GB of disk
            _print_corpus(console, directory, asked.items)


def _print_copies(console: Console, directory: Path, size: int, rounds: int) -> None:
    limits = contests.limits(directory, size)
    cores = len(os.sched_getaffinity(0))
    told = ", ".join(f"{what} {size_text(int(rate))}/s" for what, rate in limits.items())
    console.print(f"the machine's limits, {cores} cores: {told}")
    page = Table(
        "layout", "bytes", "cp and sync", "copy", "whole command", "cp / copy", "largest process", title="copies"
    )
    for name, found in contests.contest_copies(directory, size, (8, 256, 4096), rounds).items():
        page.add_row(
            name,
            size_text(int(found["bytes"])),
            f"{found['cp']:.2f} s",
            f"{found['copy']:.2f} s",
            f"{found['command']:.2f} s",
            f"{found['ratio']:.2f}",
            size_text(int(found["peak"])),
        )
        share = found["bytes"] / found["copy"] / limits["write and sync"]
        console.print(f"{name}: {share:.2f} of what the disk takes, sums of every byte included", style="dim")
    console.print(page)


def _print_types(console: Console, directory: Path, size: int, rounds: int) -> None:
    columns = "values a row", "written as", "copy", "plain copy / this", "largest process"
    page = Table(*columns, title="row types")
    for dim in DIMS:
        for dtype, found in contests.contest_types(directory, size, rounds, dim).items():
            told = f"{found['copy']:.2f} s", f"{found['ratio']:.2f}", size_text(int(found["peak"]))
            page.add_row(str(dim), dtype, *told)
    console.print(page)


def _print_tensorflow(console: Console, directory: Path, size: int, rounds: int) -> None:
    takes = contests.limits(directory, size)["write and sync"]
    console.print(f"the disk takes {size_text(int(takes))}/s, which makes {size / takes:.2f} s of {size_text(size)}")
    columns = "way", "seconds", "sync behind it", "of what the disk takes", "largest process"
    page = Table(*columns, "time / rowcast's", "memory / rowcast's", title="whole exports")
    found = contests.contest_tensorflow(directory, size, rounds)
    own = found["rowcast-export tables"]
    for name, each in found.items():
        times = f"{each.seconds:.2f}", f"{each.sync_s:.2f}", f"{size / each.whole_s / takes:.2f}"
        ratios = f"{each.whole_s / own.whole_s:.1f}", f"{each.peak_bytes / own.peak_bytes:.1f}"
        page.add_row(name, *times, size_text(each.peak_bytes), *ratios)
    console.print(page)


def _print_sizes(console: Console, directory: Path) -> None:
    page = Table("table", "step", "seconds", "largest process", title="memory by size")
    for name, steps in contests.contest_sizes(directory, SIZES).items():
        for step, ran in steps.items():
            page.add_row(name, step, f"{ran.seconds:.2f}", size_text(ran.peak_bytes))
    console.print(page)


def _print_inspect(console: Console, directory: Path, rounds: int) -> None:
    ways = {
        "table": "inspect",
        "json": "inspect --json",
        "start": "its imports",
        "python": "python -c pass",
        "tensorflow": "TensorFlow's reader",
    }
    page = Table("seconds", *ways.values(), title=f"inspect, {ENTRIES} entries")
    for name, found in contests.contest_inspect(directory, ENTRIES, rounds).items():
        page.add_row(name, *(f"{found[way]:.2f}" if way in found else "" for way in ways))
    console.print(page)


def _print_corpus(console: Console, directory: Path, items: int) -> None:
    few, _ = contests.export_corpus(directory, items // 100)
    ran, vectors = contests.export_corpus(directory, items)
    more = (ran.peak_bytes - few.peak_bytes) / vectors
    console.print(
        f"{items} candidates: {size_text(vectors)} of vectors, {ran.seconds:.0f} s; largest process "
        f"{size_text(ran.peak_bytes)}, of a hundredth of them {size_text(few.peak_bytes)}: "
        f"{more:.2f} of the vectors' bytes more"
    )


if __name__ == "__main__":
    main()
