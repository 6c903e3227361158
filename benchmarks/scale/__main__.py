"""`make bench-scale`: routers and shards, the ways of rows between them, and Ray Serve as control
plane, in one run.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks import cores
from benchmarks.cores import host
from benchmarks.scale import control_plane, paths, routers
from benchmarks.services import Checkout
from benchmarks.workloads import write_ranking, write_retrieval
from tests.bundles.towers import compiled_towers


def main() -> None:
    """Writes the workloads, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    options.add_argument(
        "--scale", type=float, default=0.1, help="1: 10 million rows and a million candidates"
    )
    options.add_argument("--shards", type=int, default=4)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0, help="of each block of load")
    arguments = options.parse_args()
    console = Console(width=250)
    split = cores.serve_on_few()
    commit = Checkout("this").commit()
    console.print(
        f"{time.strftime('%Y-%m-%d')}, commit {commit}, on {host()}: {split}; scale "
        f"{arguments.scale:g}"
    )
    Path("build/bench").mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scale-", dir="build/bench")).resolve()
    root = scratch / "bundles"
    turns = (arguments.rounds, arguments.seconds)
    rank = write_ranking(root, arguments.scale)
    retrieve = write_retrieval(root, arguments.scale)
    routers.compare(rank, retrieve, scratch, arguments.shards, *turns).show(console)
    paths.compare(rank, arguments.shards, *turns).show(console)
    towers = compiled_towers(scratch / "towers")
    control_plane.compare(scratch, towers, *turns).show(console)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
