"""`python -m benchmarks.soak.overload`: more requests than a service can answer, rankings and
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
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
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
_MESSAGES = {"R": "rank_messages", "Q": "retrieve_messages"}
NOT_JUDGED = "no request was answered in time"
"""Over gRPC: rejecting ten times the peak can take all of the CPU time."""


@dataclass(frozen=True)
class Plan:
    """What is measured: a block for each combination.

    Attributes:
      seconds: Of each block.
      scale: Of the bundles.
      options: Of the services.
      against: Another checkout, by whose peak is judged; None: this one.
    """

    workloads: Sequence[str] = WORKLOADS
    transports: Sequence[str] = tuple(REJECTED)
    connections: Sequence[int] = CONNECTIONS
    times: Sequence[float] = TIMES
    seconds: float = SECONDS
    scale: float = SCALE
    precision: str = "f32"
    options: Sequence[str] = ("--workers", "1")
    against: Checkout | None = None


def run(plan: Plan) -> list[str]:
    """Overloads the service; prints the figures of each block, returns what is wrong."""
    _raise_file_limit()
    SHOW.print(f"load of the host before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    wrong = list[str]()
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        written = None
        if plan.against is not None:
            written = plan.against.write_workloads(scratch / "other", plan.scale)
        for name in plan.workloads:
            root = scratch / name
            kind = _kind(name, root, plan.scale)
            with ExitStack() as running:
                service = _paused(running, plan, Checkout("this"), root, scratch)
                peak_of = service, kind
                if plan.against is not None and written is not None:
                    other = _paused(running, plan, plan.against, written.root, scratch)
                    bodies = written.bodies[_MESSAGES[name]]
                    peak_of = other, replace(kind, bodies=bodies)
                for block in product(plan.transports, plan.times, plan.connections):
                    wrong += _block(plan, kind, service, peak_of, *block)
    SHOW.print(f"load of the host after: {os.getloadavg()[0]:.1f}")
    return wrong


def _kind(name: str, root: Path, scale: float) -> Kind:
    """Writes the bundle of a workload; returns its requests."""
    if name == "R":
        return rankings(write_ranking(root, scale))
    return retrievals(write_retrieval(root, scale))


def _paused(
    running: ExitStack, plan: Plan, checkout: Checkout, root: Path, scratch: Path
) -> Service:
    """Starts the service of a checkout, and pauses it."""
    service = Service(checkout, root, scratch, plan.precision, *plan.options)
    running.enter_context(closing(service))
    service.pause()
    return service


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
    shown = [f"{name} {figure}" for name, figure in figures(seen).items()]
    SHOW.print(f"{began}: {block}: {', '.join(shown)}")
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
        "--times", type=float, nargs="+", default=TIMES, help="load, by what the service can answer"
    )
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="of each block")
    arguments.add_argument("--precision", choices=("f32", "int8"), default="f32")
    arguments.add_argument("--workers", default="1", help="processes of the service")
    arguments.add_argument(
        "--against", type=Path, metavar="DIR", help="another checkout, whose peak is the measure"
    )
    given = arguments.parse_args()
    against = None if given.against is None else Checkout("other", given.against)
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
