"""`make bench`: the service on workloads R and Q, beside the bare calls it is made of, in one interleaved run.

The machine is noisy and the generator shares its cores, so only ratios taken in one run mean anything: every figure is
the median of rounds in which each contestant had its turn, idle ones stopped meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.bench import requests
from tests.bench.limits import BATCH, KINDS, Limit
from tests.bench.load import Door, Measured, closed_loop, open_loop
from tests.bench.services import Service
from tests.bench.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval

CALLERS = (1, 8, 32)
OPEN_SHARE = 0.7
JSON, PROTOBUF = "application/json", "application/x-protobuf"


@dataclass(frozen=True)
class Contestant:
    """A way to ask a service."""

    name: str
    service: Service
    door: Door
    bodies: list[bytes]


@dataclass(frozen=True)
class Block:
    """What one contestant did at one number of callers, the median of its rounds."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def measure(contestants: list[Contestant], rounds: int, seconds: float) -> dict[tuple[str, object], Block]:
    """Gives each contestant its turns: closed loop at each number of callers, then open loop at 70 % of its best."""
    seen: dict[tuple[str, object], list[tuple[Measured, float]]] = defaultdict(list)

    def turn(each: Contestant, key: object, run: Callable[[], Measured]) -> None:
        each.service.go_on()
        before = each.service.cpu_s()
        measured = run()
        cpu_ms = (each.service.cpu_s() - before) / measured.answered * 1e3
        each.service.pause()
        if measured.failed:
            raise RuntimeError(f"{each.name}: {measured.failed} requests failed")
        seen[each.name, key].append((measured, cpu_ms))

    for _ in range(rounds):
        for each in contestants:
            for callers in CALLERS:
                turn(
                    each,
                    callers,
                    lambda each=each, callers=callers: asyncio.run(  # type: ignore[misc]
                        closed_loop(each.door, each.bodies, callers, seconds)
                    ),
                )
    for number in range(rounds):
        for each in contestants:
            best = max(median(found.requests_per_s for found, _ in seen[each.name, callers]) for callers in CALLERS)
            turn(
                each,
                "open",
                lambda each=each, best=best, number=number: asyncio.run(  # type: ignore[misc]
                    open_loop(each.door, each.bodies, OPEN_SHARE * best, seconds, number)
                ),
            )
    return {
        key: Block(
            median(found.requests_per_s for found, _ in blocks),
            median(found.p50_ms for found, _ in blocks),
            median(found.p99_ms for found, _ in blocks),
            median(cpu_ms for _, cpu_ms in blocks),
        )
        for key, blocks in seen.items()
    }


def measure_limits(limits: dict[str, Limit], rounds: int, seconds: float) -> dict[tuple[str, int], tuple[float, float]]:
    """Returns calls per second and ms a call of each bare call, alone and by two callers: the median of the rounds."""
    seen: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, limit in limits.items():
            for callers in (1, 2):
                seen[name, callers].append(limit.measure(callers, seconds))
    return {key: (median(a for a, _ in found), median(b for _, b in found)) for key, found in seen.items()}


def report(
    console: Console,
    title: str,
    unit: str,
    per_call: int,
    contestants: dict[str, str],
    blocks: dict[tuple[str, object], Block],
    bare: dict[tuple[str, int], tuple[float, float]],
) -> None:
    """Prints one workload: bare calls first, then each contestant as a share of the bare call it is built on."""
    floor = Table("bare call, in process", f"1 caller, {unit}", f"2 callers, {unit}", "ms a call", title=title)
    for name in dict.fromkeys(name for name, _ in bare):
        one, two = bare[name, 1], bare[name, 2]
        floor.add_row(name, f"{one[0] * per_call:,.0f}", f"{two[0] * per_call:,.0f}", f"{one[1]:.3f}")
    console.print(floor)
    heads = ("service", *(f"{callers} callers, {unit}" for callers in CALLERS), "best / bare", "p50 ms, 1 caller")
    found = Table(*heads, "outside", "p50 / p99 ms, 32", "open 70 %: p50 / p99 ms", "CPU ms")
    for name, base in contestants.items():
        alone, crowd, opened = blocks[name, 1], blocks[name, CALLERS[-1]], blocks[name, "open"]
        best = max(blocks[name, callers].requests_per_s for callers in CALLERS)
        found.add_row(
            name,
            *(f"{blocks[name, callers].requests_per_s * per_call:,.0f}" for callers in CALLERS),
            f"{best / bare[base, 2][0]:.2f} of {base}",
            f"{alone.p50_ms:.2f}",
            f"{max(0.0, 1 - bare[base, 1][1] / alone.p50_ms):.0%}",
            f"{crowd.p50_ms:.1f} / {crowd.p99_ms:.1f}",
            f"{opened.p50_ms:.2f} / {opened.p99_ms:.2f}",
            f"{crowd.cpu_ms:.2f}",
        )
    console.print(found)


def rankers(services: dict[str, Service], ranking: RankingWorkload) -> list[Contestant]:
    """Returns each way to ask each service for workload R."""
    path = f"/v1/models/{ranking.model}:rank"
    json, messages = requests.rank_json(ranking), requests.rank_messages(ranking)
    return [
        contestant
        for precision, service in services.items()
        for contestant in (
            Contestant(f"HTTP JSON {precision}", service, Door(service.http, path, JSON), json),
            Contestant(f"HTTP protobuf {precision}", service, Door(service.http, path, PROTOBUF), messages),
            Contestant(f"gRPC {precision}", service, Door(service.grpc, requests.RANK), messages),
        )
    ]


def retrievers(service: Service, retrieval: RetrievalWorkload) -> list[Contestant]:
    """Returns each way to ask a service for workload Q."""
    path = f"/v1/models/{retrieval.model}:retrieve"
    json, messages = requests.retrieve_json(retrieval), requests.retrieve_messages(retrieval)
    return [
        Contestant("HTTP JSON", service, Door(service.http, path, JSON), json),
        Contestant("HTTP protobuf", service, Door(service.http, path, PROTOBUF), messages),
        Contestant("gRPC", service, Door(service.grpc, requests.RETRIEVE), messages),
    ]


def main() -> None:
    """Builds the workloads, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: 10 million rows and a million candidates")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block")
    given = options.parse_args()
    console = Console(width=160)
    scratch = Path("build/bench") / f"{given.scale:g}-{os.getpid()}"
    root = scratch / "bundles"
    console.print(
        f"workloads at scale {given.scale:g}, {given.rounds} rounds of {given.seconds:g} s, {os.cpu_count()} cores"
    )
    ranking, retrieval = write_ranking(root, given.scale), write_retrieval(root, given.scale)
    np.save(retrieval.directory.parent / "queries.npy", retrieval.vectors)
    services = {precision: Service(root, precision, scratch) for precision in ("f32", "int8")}
    limits = {kind: Limit(kind, ranking.directory) for kind in KINDS} | {"ScaNN": Limit("scann", retrieval.directory)}
    try:
        memory = {precision: service.memory_bytes() for precision, service in services.items()}
        for service in services.values():
            service.pause()
        bare = measure_limits(limits, given.rounds, given.seconds)
        rank, retrieve = rankers(services, ranking), retrievers(services["f32"], retrieval)
        ranked, retrieved = measure(rank, given.rounds, given.seconds), measure(retrieve, given.rounds, given.seconds)
    finally:
        for limit in limits.values():
            limit.close()
        for service in services.values():
            service.close()
    bases = {each.name: "litert-int8" if each.name.endswith("int8") else "litert-f32" for each in rank}
    towers = {key: value for key, value in bare.items() if key[0] != "ScaNN"}
    report(console, f"R: rank {BATCH} candidates (DCN v2)", "candidates/s", BATCH, bases, ranked, towers)
    search = {key: value for key, value in bare.items() if key[0] == "ScaNN"}
    report(
        console,
        f"Q: retrieve {retrieval.k} nearest",
        "queries/s",
        1,
        {each.name: "ScaNN" for each in retrieve},
        retrieved,
        search,
    )
    for precision, service in services.items():
        console.print(
            f"service {precision}: ready {service.ready_s:.2f} s after process start, "
            f"{memory[precision] / 2**20:,.0f} MiB (PSS) before the first request"
        )


if __name__ == "__main__":
    main()
