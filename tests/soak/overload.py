"""`python -m tests.soak.overload`: ten times as many calls as a service can answer, and what becomes of those answered.

An open loop of workload R, whose callers tell a deadline and do not wait for each other. Beside the goodput: the time
that refusals and probes take, and how long the service needs to be as before. Of four cores or more two serve, others
make the flood. Where there are fewer, the generator shares them, and a flood costs it, too, a large part of them:
goodput is also told as a share of what the rest could answer.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console

from tests.bench import cores
from tests.bench.load import Answers, Door, Load
from tests.bench.requests import RANK, rank_messages
from tests.bench.workloads import RankingWorkload, write_ranking
from tests.service.process import Process

SHOW = Console(highlight=False, soft_wrap=True)
PROTOBUF = "application/x-protobuf"
REFUSED = {"http": 429, "grpc": 0}
"""As the generator tells it: any failure over gRPC is 0."""
PROBES = ("/livez", "/readyz")
METRICS_EVERY = 10
"""Rounds of probes between two of metrics, which cost milliseconds and are asked for every few seconds at most."""
LATE = (504, 4)
"""Let in, and not answered in time: a few are, since how long calls take is not known beforehand."""
RECOVERY_S_MAX = 2.0
STEADY = 3
"""Times its usual latency that a call may take once the service has recovered."""


@dataclass
class Probed:
    """What probes saw during a flood."""

    latency_s: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True)
class Flood:
    """What a flood did.

    Attributes:
      peak_per_s: answers a second in a closed loop, before and after the flood.
      rate_per_s: calls a second of the flood.
      answers: of the flood.
      deadline_s: of each of its calls.
      probed: what probes saw meanwhile.
      recovery_s: from the last call of the flood until calls were answered as before.
      refused_status: how the generator tells a refusal.
      left: share of the cores that the generator left, of those it left at the peak.
      refusal_s: CPU of the service for each refusal, if an answer costs what it does at the peak.
    """

    peak_per_s: float
    rate_per_s: float
    answers: Answers
    deadline_s: float
    probed: Probed
    recovery_s: float
    refused_status: int
    left: float
    refusal_s: float

    @property
    def admitted_s(self) -> NDArray[np.float64]:
        """Latencies of the answered calls."""
        latency_s: NDArray[np.float64] = self.answers.latency_s[self.answers.status == 200]
        return latency_s

    @property
    def refused_s(self) -> NDArray[np.float64]:
        """Latencies of the refused calls."""
        latency_s: NDArray[np.float64] = self.answers.latency_s[self.answers.status == self.refused_status]
        return latency_s

    def wrong(self) -> list[str]:
        """What is not as it should be, whatever else the machine does meanwhile."""
        found = []
        if not len(self.admitted_s) or np.percentile(self.admitted_s, 99) > self.deadline_s:
            found.append("calls were let in that are not answered in time")
        if set(self.answers.status.astype(int).tolist()) - {200, self.refused_status, *LATE}:
            found.append("calls of the flood are told something else than to come again")
        if self.probed.failed:
            found.append("probes are not answered in a flood")
        if self.recovery_s > RECOVERY_S_MAX:
            found.append("a flood is felt after it has ended")
        return found

    @property
    def goodput(self) -> float:
        """Answers within the deadline, as a share of the peak."""
        return float((self.admitted_s <= self.deadline_s).sum()) / self.answers.elapsed_s / self.peak_per_s

    def show(self) -> None:
        """Prints it."""
        statuses, counts = np.unique(self.answers.status.astype(int), return_counts=True)
        told = dict(zip(statuses.tolist(), counts.tolist(), strict=True))
        SHOW.print(
            f"peak {self.peak_per_s:.0f}/s, flood {self.rate_per_s:.0f}/s for {self.answers.elapsed_s:.1f} s: {told}"
        )
        SHOW.print(
            f"goodput {self.goodput:.2f} of the peak, within {self.deadline_s * 1e3:.0f} ms; "
            f"{self.goodput / self.left:.2f} of what the cores could answer that the generator left "
            f"({self.left:.2f} of those at the peak); a refusal costs {self.refusal_s * 1e6:.0f} us of CPU"
        )
        for what, latency_s in (("admitted", self.admitted_s), ("refused", self.refused_s)):
            if len(latency_s):
                p50, p99, p999 = np.percentile(latency_s, [50, 99, 99.9]) * 1e3
                SHOW.print(f"{what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, p99.9 {p999:.1f} ms")
        p50, p99 = np.percentile(self.probed.latency_s, [50, 99]) * 1e3
        SHOW.print(
            f"probes: {len(self.probed.latency_s)}, {self.probed.failed} failed, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        )
        SHOW.print(f"recovered after {self.recovery_s:.2f} s")


def probe(port: int, probed: Probed, done: threading.Event) -> None:
    """Asks how the service is, some ten times a second, until told to end."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        for number in itertools.count():
            if done.is_set():
                return
            for path in PROBES if number % METRICS_EVERY else (*PROBES, "/metrics"):
                began = time.perf_counter()
                try:
                    fine = client.get(path).status_code == 200
                except httpx.HTTPError:
                    fine = False
                probed.latency_s.append(time.perf_counter() - began)
                probed.failed += not fine
                done.wait(0.1)


def recovery_s(load: Load, usual_s: float) -> float:
    """Asks on one connection until a call is answered as fast as usual; returns how long that took."""
    began = time.perf_counter()
    while True:
        seen = load.closed(1, 0.05)
        fine = seen.status == 200
        if fine.any() and np.median(seen.latency_s[fine]) < STEADY * usual_s:
            return time.perf_counter() - began
        if time.perf_counter() - began > 30:
            return float("inf")


def cpu_s(process: int) -> float:
    """Returns the CPU seconds that a process and its children used."""
    root = psutil.Process(process)
    return sum(sum(each.cpu_times()[:2]) for each in (root, *root.children()))  # of user and system


def left_by(generator: Answers) -> float:
    """Returns how many of the cores that serve the generator left: all, where it has others."""
    serving = os.sched_getaffinity(0)
    with cores.loading():
        shared = serving & os.sched_getaffinity(0)
    return len(serving) - (generator.generator_s / generator.elapsed_s if shared else 0.0)


def flood(service: Process, door: str, bodies: list[bytes], times: float, seconds: float, deadline_s: float) -> Flood:
    """Measures what a service can answer, and then asks so many times as much of it."""
    ports, pid = service.ports, service.process.pid
    headers = {"x-request-timeout-ms": f"{deadline_s * 1e3:.0f}"}
    if door == "http":
        ways = [Door(ports["http"], "/v1/models/ranking:rank", PROTOBUF, more) for more in ({}, headers)]
    else:
        ways = [Door(ports["grpc"], RANK, "", more) for more in ({}, {"grpc-timeout": f"{deadline_s * 1e3:.0f}m"})]
    calm, pressing = (Load(way, bodies) for way in ways)
    try:
        calm.closed(8, 1.0)  # so that the service knows how long a call takes
        usual_s = float(np.median(calm.closed(1, 0.5).latency_s))
        calm_s = -cpu_s(pid)
        before = calm.closed(16, seconds / 2)
        calm_s += cpu_s(pid)
        probed, done = Probed(), threading.Event()
        prober = threading.Thread(target=probe, args=(ports["http"], probed, done))
        prober.start()
        try:
            rate = times * before.requests_per_s
            flood_s = -cpu_s(pid)
            answers = pressing.open(rate, seconds, seed=7)
            flood_s += cpu_s(pid)
        finally:
            done.set()
            prober.join()
        recovered_s = recovery_s(calm, usual_s)
        after = calm.closed(16, seconds / 2)
    finally:
        calm.close()
        pressing.close()
    peak = (before.requests_per_s + after.requests_per_s) / 2
    left = left_by(answers) / left_by(before)
    refused = max(1, int((answers.status == REFUSED[door]).sum()))
    refusal_s = (flood_s - answers.answered * calm_s / before.answered) / refused
    return Flood(peak, rate, answers, deadline_s, probed, recovered_s, REFUSED[door], left, refusal_s)


def write_workload(root: Path) -> RankingWorkload:
    """Writes R, small: what a call costs hardly depends on the size of its tables."""
    return write_ranking(root, 0.01)


def press(door: str, times: float, seconds: float, deadline_s: float, *options: str) -> list[str]:
    """Floods a service of its own, started with these options, and prints what became of it; returns what is wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "bundles"
        root.mkdir()
        bodies = rank_messages(write_workload(root))
        service = Process(root, *options)
        try:
            with service.client() as client:
                while client.get("/readyz").status_code != 200:
                    time.sleep(0.05)
            seen = flood(service, door, bodies, times, seconds, deadline_s)
        finally:
            service.kill()
    seen.show()
    return seen.wrong()


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--door", choices=sorted(REFUSED), default="http")
    arguments.add_argument("--precision", choices=("f32", "int8"), default="f32")
    arguments.add_argument("--times", type=float, default=10, help="calls of the flood, in what the service can answer")
    arguments.add_argument("--seconds", type=float, default=10, help="of the flood")
    arguments.add_argument("--deadline-ms", type=float, default=250, help="that callers wait")
    arguments.add_argument("--workers", default="1", help="processes that serve")
    told = arguments.parse_args()
    SHOW.print(cores.serve_on_few())
    options = ("--precision", told.precision, "--workers", told.workers)
    for problem in press(told.door, told.times, told.seconds, told.deadline_ms / 1e3, *options):
        SHOW.print("WRONG:", problem)


if __name__ == "__main__":
    main()
