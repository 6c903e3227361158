"""`python -m benchmarks.soak.overload`: ten times the requests that a service can answer;
benchmarks/overload.py judges.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import closing
from pathlib import Path

from rich.console import Console

from benchmarks import cores
from benchmarks.overload import REJECTED, figures, overload
from benchmarks.requests import rank_messages
from benchmarks.services import Checkout, Service
from benchmarks.workloads import write_ranking

SHOW = Console(highlight=False, soft_wrap=True)
SCALE = 0.01


def run(
    transport: str, times: float, seconds: float, *options: str, precision: str = "f32"
) -> list[str]:
    """Overloads a service of its own; prints the figures, returns what is wrong."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "bundles"
        bodies = rank_messages(write_ranking(root, SCALE))
        with closing(Service(Checkout("this"), root, Path(place), precision, *options)) as service:
            seen = overload(service, bodies, times, seconds, transport)
    for name, figure in figures(seen).items():
        SHOW.print(f"{name}: {figure}")
    return seen.problems()


def main() -> None:
    """Reads the arguments and runs."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--transport", choices=sorted(REJECTED), default="http")
    options.add_argument("--precision", choices=("f32", "int8"), default="f32")
    options.add_argument(
        "--times", type=float, default=10, help="load, by what the service can answer"
    )
    options.add_argument("--seconds", type=float, default=10)
    options.add_argument("--workers", default="1", help="processes of the service")
    given = options.parse_args()
    SHOW.print(cores.serve_on_few())
    how = given.transport, given.times, given.seconds
    raise SystemExit(bool(run(*how, "--workers", given.workers, precision=given.precision)))


if __name__ == "__main__":
    main()
