"""`make bench`: rowcast on workloads R and Q, beside the bare calls it is made of and what else serves them.

Groups of contestants take turns in blocks, the idle ones stopped: rowcast's own ways with the bare calls; the peers
that `make bench-peers` installed, each with rowcast beside it; what else searches. Then rows beside a loop in C, and
starts. Prints tables and aims; `--document` writes them into docs/benchmarks.md, of the last run if `--again`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.bench.cores import serve_on_few
from tests.bench.figures import Figures
from tests.bench.report import document, show
from tests.bench.run import Run

KEPT = Path("build/bench/figures.json")
PARTS = ("rowcast", "peers", "engines", "lookups", "starts")


def main() -> None:
    """Builds the workloads, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: 10 million rows and a million candidates")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block")
    options.add_argument("--only", action="append", choices=PARTS, help="a part; may be given several times")
    options.add_argument("--document", action="store_true", help="write docs/benchmarks.md and the plot")
    options.add_argument("--again", action="store_true", help="measure nothing: tell the figures of the last run")
    given = options.parse_args()
    console = Console(width=220)
    figures = Figures.read(KEPT) if given.again else measure(given, console)
    show(figures, console)
    if given.document:
        document(figures)


def measure(given: argparse.Namespace, console: Console) -> Figures:
    """Runs the parts that were asked for."""
    dealt = serve_on_few()
    console.print(f"scale {given.scale:g}, {given.rounds} rounds of {given.seconds:g} s, {dealt}")
    scratch = Path("build/bench") / f"{given.scale:g}-{os.getpid()}"
    figures = Figures(
        machine=f"{dealt}, {processor()}, Python {platform.python_version()}",
        taken=time.strftime("%Y-%m-%d"),
        scale=given.scale,
        rounds=given.rounds,
        seconds=given.seconds,
    )
    began = time.perf_counter()
    # The sockets of some peers need a short path.
    with tempfile.TemporaryDirectory(prefix="rowcast-") as short:
        tell = lambda what: console.print(f"{time.perf_counter() - began:5.0f} s  {what}")  # noqa: E731
        run = Run(scratch / "bundles", scratch, Path(short), figures, tell)
        for part in given.only or PARTS:
            getattr(run, part)()
            figures.write(KEPT)  # a part that fails leaves those before it
    for large in ("bundles", "whole"):  # its logs stay
        shutil.rmtree(scratch / large, ignore_errors=True)
    return figures


def processor() -> str:
    """Returns what the processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


if __name__ == "__main__":
    main()
