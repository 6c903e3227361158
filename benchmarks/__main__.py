"""`make bench`: the service on workloads R and Q, in process calls, peers, overload, start and
memory.

`--against DIR` measures the service of another checkout, such as a git worktree, in turns with this
one, and prints the ratios: the way to judge a regression. `--document` writes the tables to
benchmarks/results, and without `--against` a summary to docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console

from benchmarks import cores
from benchmarks.report import RESULTS, document, write_tables
from benchmarks.run import PARTS, Run
from benchmarks.services import Checkout
from benchmarks.subjects import Subjects


def main() -> None:
    """Writes the workloads, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument(
        "--scale", type=float, default=0.1, help="1: 10 million rows and a million candidates"
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block of load")
    options.add_argument("--workers", type=int, default=2, help="of the services")
    options.add_argument("--callers", type=int, nargs="+", default=[1, 8, 32])
    options.add_argument("--only", action="append", choices=PARTS, help="a part; repeatable")
    options.add_argument(
        "--against", type=Path, metavar="DIR", help="another checkout; peers are left out"
    )
    options.add_argument(
        "--deltas",
        type=int,
        metavar="N",
        help="N deltas for each segment, in turns with the same tables without; peers are left out",
    )
    options.add_argument(
        "--document",
        action="store_true",
        help="write the results and, of this checkout alone, their summary in the docs",
    )
    arguments = options.parse_args()
    console = Console(width=250)
    split = cores.serve_on_few()
    checkouts = [Checkout("this")]
    if arguments.against:
        checkouts.append(Checkout("other", arguments.against))
    if arguments.deltas:
        checkouts = [Checkout("deltas", deltas=arguments.deltas), *checkouts]
    commits = ", ".join(f"{checkout.commit()} ({checkout.name})" for checkout in checkouts)
    description = (
        f"{time.strftime('%Y-%m-%d')}, commit {commits}, on {cores.host()}, Python "
        f"{platform.python_version()}: {split}, load {os.getloadavg()[0]:.0f} before it; "
        f"scale {arguments.scale:g}, {arguments.rounds} rounds of {arguments.seconds:g} s."
    )
    console.print(description)
    began = time.perf_counter()
    sheets = []
    # Not in /tmp, which may be memory; the sockets of some peers need a short path.
    Path("build/bench").mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir="build/bench"))
    parts = arguments.only or [part for part in PARTS if part != "peers" or len(checkouts) == 1]
    with closing(Subjects(scratch, checkouts, arguments.scale, arguments.workers)) as subjects:
        run = Run(subjects, arguments.rounds, arguments.seconds, arguments.callers)
        for part in parts:
            for sheet in getattr(run, part)():
                sheet.show(console)
                sheets.append(sheet)
            console.print(f"{part}: after {time.perf_counter() - began:.0f} s")
    for large in ("bundles", "bundles-other", "bundles-deltas", "whole"):  # its logs stay
        shutil.rmtree(scratch / large, ignore_errors=True)
    if arguments.document and len(checkouts) > 1:
        subject = f"against-{checkouts[-1].commit()}"
        if arguments.deltas:
            subject = f"{arguments.deltas}-deltas"
        write_tables(description, sheets, RESULTS / f"{description[:10]}-{subject}.md")
    elif arguments.document:
        document(description, sheets)


if __name__ == "__main__":
    main()
