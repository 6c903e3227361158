"""`make soak`: a service under load while its versions change, callers hang up, and in overload;
ends by itself.

What a short test cannot see: memory, descriptors, maps and metrics that grow with every version or
every lost caller.
"""

from __future__ import annotations

import argparse
import signal
import socket
import tempfile
import time
from contextlib import closing
from pathlib import Path

import grpc
import httpx
from rich.console import Console

from benchmarks import cores
from benchmarks.services import Checkout
from benchmarks.soak import overload, switches
from benchmarks.soak.publishing import MODEL
from benchmarks.soak.switches import REQUESTS
from benchmarks.subjects import Subjects
from service.grpc_api.servicer import SERVICE
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, Process

ALL_S_MAX = 3600
SHOW = Console(highlight=False, soft_wrap=True)


def lose_callers(callers: int, towers: Path) -> list[str]:
    """Runs a service whose callers hang up, and drains it; returns what is wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "bundles"
        root.mkdir()
        write_small_bundle(root, towers, MODEL, 1)
        service = Process(root, "--max-concurrent-requests", "16")
        try:
            with service.client() as client:
                service.event("version_available")
                wrong = hang_up(service, callers, client)
            if service.stop(signal.SIGTERM) != 0:
                wrong.append("the service did not drain")
        finally:
            service.kill()
    return wrong


def hang_up(service: Process, callers: int, client: httpx.Client) -> list[str]:
    """Callers that leave: over HTTP with a reset, over gRPC by a deadline and by cancelling."""
    body = REQUESTS["recommend"].SerializeToString()
    start = (
        f"POST /v1/models/{MODEL}:recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        "application/x-protobuf\r\n"
    )
    request = start.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    for number in range(callers):
        with socket.create_connection(("127.0.0.1", service.ports["http"])) as connection:
            connection.sendall(request if number % 2 else request[:-1])
            # Closing sends a reset instead of an orderly end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
        method = channel.unary_unary(f"/{SERVICE}/Recommend")
        calls = [
            method.future(body, timeout=0.001 if number % 2 else 10) for number in range(callers)
        ]
        for call in calls[::2]:
            call.cancel()
        for call in calls[1::2]:
            call.exception()
    end = time.monotonic() + WAIT_S
    while (requests_left := inflight(client)) and time.monotonic() < end:
        time.sleep(0.05)
    SHOW.print(f"{2 * callers} callers hung up: {requests_left:g} requests in flight")
    return ["requests of callers that hung up stay in flight"] if requests_left else []


def inflight(client: httpx.Client) -> float:
    """Returns the requests that the service reports as in flight."""
    lines = client.get("/metrics").text.splitlines()
    return float(
        next(line.split()[1] for line in lines if line.startswith("rowcast_inflight_requests "))
    )


def soak(versions: int, workers: int, callers: int, seconds: float) -> int:
    """Runs all of it; returns the exit code."""
    SHOW.print(cores.serve_on_few())
    towers = switches.kept_towers()
    wrong = switches.run(versions, workers, switches.Pace(), towers)
    wrong += lose_callers(callers, towers)
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(Subjects(Path(scratch), [Checkout("this")], overload.SCALE, workers=1)) as subjects,
    ):
        wrong += overload.run(overload.Plan(seconds=seconds), subjects)
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    SHOW.print("soak:", "failed" if wrong else "passed")
    return 1 if wrong else 0


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--versions", type=int, default=144, help="versions published under load: 200 switches"
    )
    arguments.add_argument("--workers", type=int, default=1, help="processes that serve them")
    arguments.add_argument(
        "--callers", type=int, default=2000, help="callers that hang up, over each transport"
    )
    arguments.add_argument(
        "--overload-s", type=float, default=20, help="seconds of each block of overload"
    )
    options = arguments.parse_args()
    signal.alarm(ALL_S_MAX)  # whatever hangs ends here
    raise SystemExit(soak(options.versions, options.workers, options.callers, options.overload_s))


if __name__ == "__main__":
    main()
