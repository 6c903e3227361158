"""`python -m benchmarks.soak.overload`: more requests than a service can compute, rankings and
retrievals over both transports, from few connections to many; benchmarks/overload.py judges.

`--against DIR` takes the peak of another checkout, whose service is measured before and after each
block with the bundles and the requests that it writes. Its service is not overloaded.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console

from benchmarks import cores
from benchmarks.overload import REJECTED, figures, overload
from benchmarks.requests import Kind, rankings, retrievals
from benchmarks.services import Checkout, Service
from benchmarks.subjects import Subjects

SHOW = Console(highlight=False, soft_wrap=True)
SCALE = 0.01
SECONDS = 20.0
TIMES = (2.0, 10.0)
CONNECTIONS = (64, 512, 2_000)
WORKLOADS = ("R", "Q")
_MESSAGES = {"R": "rank_messages", "Q": "retrieve_messages"}
NOT_JUDGED = "no request succeeded in time"
"""Over gRPC: rejecting ten times the peak can take all of the CPU time."""


@dataclass(frozen=True)
class Plan:
    """What is measured: a block for each combination.

    Attributes:
      seconds: Of each block.
    """

    workloads: Sequence[str] = WORKLOADS
    transports: Sequence[str] = tuple(REJECTED)
    connections: Sequence[int] = CONNECTIONS
    times: Sequence[float] = TIMES
    seconds: float = SECONDS
    precision: str = "f32"


def run(plan: Plan, subjects: Subjects) -> list[str]:
    """Overloads the service of the first checkout, and judges by the peak of the last; prints the
    figures of each block, returns what is wrong.
    """
    _raise_file_limit()
    SHOW.print(f"load of the host before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    wrong = list[str]()
    for name in plan.workloads:
        kinds = [_kind(name, subjects, checkout) for checkout in subjects.checkouts]
        services = [subjects.service(checkout, plan.precision) for checkout in subjects.checkouts]
        peak_of = services[-1], kinds[-1]
        for block in product(plan.transports, plan.times, plan.connections):
            wrong += _block(plan, kinds[0], services[0], peak_of, *block)
    SHOW.print(f"load of the host after: {os.getloadavg()[0]:.1f}")
    return wrong


def _kind(name: str, subjects: Subjects, checkout: Checkout) -> Kind:
    """Returns the requests of a workload as a checkout writes them."""
    kind = rankings(subjects.ranking) if name == "R" else retrievals(subjects.retrieval)
    return replace(kind, bodies=subjects.files(checkout).bodies[_MESSAGES[name]])


def _block(
    plan: Plan,
    kind: Kind,
    service: Service,
    peak_of: tuple[Service, Kind],
    transport: str,
    times: float,
    connections: int,
) -> list[str]:
    """Overloads the service; returns what is wrong."""
    began = time.strftime("%H:%M:%S")
    seen = overload(service, kind, times, plan.seconds, transport, connections, peak_of)
    block = f"{kind.name} {transport} {times:g} x, {connections} connections"
    lines = [f"{name} {figure}" for name, figure in figures(seen).items()]
    SHOW.print(f"{began}: {block}: {', '.join(lines)}")
    return [
        f"{block}: {problem}"
        for problem in seen.problems()
        if transport == "http" or problem != NOT_JUDGED
    ]


def _raise_file_limit() -> None:
    """Lets the load generator open its connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.soak.overload")
    arguments.add_argument("--workload", action="append", choices=WORKLOADS, help="repeatable")
    arguments.add_argument(
        "--transport", action="append", choices=sorted(REJECTED), help="repeatable"
    )
    arguments.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    arguments.add_argument(
        "--times",
        type=float,
        nargs="+",
        default=TIMES,
        help="load, as multiples of the service's peak",
    )
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="of each block")
    arguments.add_argument("--precision", choices=("f32", "int8"), default="f32")
    arguments.add_argument("--workers", type=int, default=1, help="processes of the service")
    arguments.add_argument(
        "--against", type=Path, metavar="DIR", help="another checkout, whose peak is the measure"
    )
    options = arguments.parse_args()
    checkouts = [Checkout("this")]
    if options.against is not None:
        checkouts.append(Checkout("other", options.against))
    SHOW.print(cores.serve_on_few())
    plan = Plan(
        workloads=options.workload or WORKLOADS,
        transports=options.transport or tuple(REJECTED),
        connections=options.connections,
        times=options.times,
        seconds=options.seconds,
        precision=options.precision,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Subjects(Path(folder), checkouts, SCALE, options.workers)) as subjects,
    ):
        wrong = run(plan, subjects)
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
