"""`python -m benchmarks.soak.overload`: more requests than a service can answer, rankings and
retrievals over both transports, from few connections to many; benchmarks/overload.py judges.

`--against DIR --against-bundles ROOT` overloads the service of another checkout in turns with this
one and takes its peak for both. ROOT holds the bundles of the workloads in the format of that
checkout.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console

from benchmarks import cores
from benchmarks.overload import REJECTED, figures, overload
from benchmarks.requests import Kind, rankings, retrievals
from benchmarks.services import Checkout, Service
from benchmarks.workloads import write_ranking, write_retrieval

SHOW = Console(highlight=False, soft_wrap=True)
SCALE = 0.01
SECONDS = 20.0
TIMES = (2.0, 10.0)
CONNECTIONS = (64, 512, 2_000)
WORKLOADS = ("R", "Q")
NOT_JUDGED = "no request was answered in time"
"""Over gRPC: rejecting ten times the peak can take all of the CPU time."""


@dataclass(frozen=True)
class Plan:
    """What is measured: a block for each combination.

    Attributes:
      seconds: Of each block.
      scale: Of the bundles of this checkout.
      options: Of the services.
      against: Another checkout, and the root of its bundles; None: there is no other.
    """

    workloads: Sequence[str] = WORKLOADS
    transports: Sequence[str] = tuple(REJECTED)
    connections: Sequence[int] = CONNECTIONS
    times: Sequence[float] = TIMES
    seconds: float = SECONDS
    scale: float = SCALE
    precision: str = "f32"
    options: Sequence[str] = ("--workers", "1")
    against: tuple[Checkout, Path] | None = None


def run(plan: Plan) -> list[str]:
    """Overloads services; prints the figures of each block, returns what is wrong with this
    checkout.
    """
    _raise_file_limit()
    SHOW.print(f"load of the host before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    wrong = list[str]()
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        for name in plan.workloads:
            root = scratch / name
            kind = _kind(name, root, plan.scale)
            with _services(plan, name, root, scratch) as services:
                for block in product(plan.transports, plan.times, plan.connections):
                    wrong += _block(plan, kind, services, *block)
    SHOW.print(f"load of the host after: {os.getloadavg()[0]:.1f}")
    return wrong


def _kind(name: str, root: Path, scale: float) -> Kind:
    """Writes the bundle of a workload; returns its requests."""
    if name == "R":
        return rankings(write_ranking(root, scale))
    return retrievals(write_retrieval(root, scale))


@contextmanager
def _services(plan: Plan, name: str, root: Path, scratch: Path) -> Iterator[list[Service]]:
    """Starts the service of this checkout, then that of the other, each paused."""
    roots = [(Checkout("this"), root)]
    if plan.against is not None:
        other, bundles = plan.against
        roots.append((other, bundles / name))
    with ExitStack() as running:
        services = list[Service]()
        for checkout, bundles in roots:
            service = Service(checkout, bundles, scratch, plan.precision, *plan.options)
            running.enter_context(closing(service))
            service.pause()
            services.append(service)
        yield services


def _block(
    plan: Plan,
    kind: Kind,
    services: Sequence[Service],
    transport: str,
    times: float,
    connections: int,
) -> list[str]:
    """Overloads each service in turn; returns what is wrong with the first."""
    wrong = list[str]()
    for service in services:
        began = time.strftime("%H:%M:%S")
        peak_of = services[-1]
        seen = overload(service, kind, times, plan.seconds, transport, connections, peak_of)
        checkout = "this" if service is services[0] else "other"
        block = f"{kind.name} {transport} {times:g} x, {connections} connections"
        shown = [f"{name} {figure}" for name, figure in figures(seen).items()]
        SHOW.print(f"{began} {checkout}: {block}: {', '.join(shown)}")
        if service is not services[0]:
            continue
        for problem in seen.problems():
            if transport == "http" or problem != NOT_JUDGED:
                wrong.append(f"{block}: {problem}")
    return wrong


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
        "--times", type=float, nargs="+", default=TIMES, help="load, by what the service can answer"
    )
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="of each block")
    arguments.add_argument("--precision", choices=("f32", "int8"), default="f32")
    arguments.add_argument("--workers", default="1", help="processes of the service")
    arguments.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    arguments.add_argument(
        "--against-bundles", type=Path, metavar="ROOT", help="its bundles, in ROOT/R and ROOT/Q"
    )
    given = arguments.parse_args()
    if (given.against is None) != (given.against_bundles is None):
        arguments.error("--against and --against-bundles must be given together")
    against = None
    if given.against is not None:
        against = Checkout("other", given.against), given.against_bundles
    SHOW.print(cores.serve_on_few())
    plan = Plan(
        workloads=given.workload or WORKLOADS,
        transports=given.transport or tuple(REJECTED),
        connections=given.connections,
        times=given.times,
        seconds=given.seconds,
        precision=given.precision,
        options=("--workers", given.workers),
        against=against,
    )
    wrong = run(plan)
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
