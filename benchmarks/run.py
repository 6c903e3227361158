"""The parts of a run of the benchmark, each of which returns tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import overload, requests
from benchmarks.bare import QUERIES, BareCall
from benchmarks.load import Endpoint, Load, ServiceLost
from benchmarks.peers.contenders import PEERS, OtherScores, Way, check_scores, read_rowcast
from benchmarks.peers.whole_model import write_whole_model
from benchmarks.report import Sheet
from benchmarks.rounds import CALLERS, Block, Contestant, Rounds
from benchmarks.services import Checkout, NotStarted, Service
from benchmarks.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval

PARTS = ("service", "peers", "overload", "start")
JSON = "HTTP JSON"
PROTOBUF = "HTTP protobuf"
GRPC = "gRPC"
MEDIA = {JSON: "application/json", PROTOBUF: "application/x-protobuf", GRPC: ""}
QUERIES_PER_REQUEST = 16
OVERLOADS = (2, 10)
MIB = 1 << 20
_FIGURES = ("requests/s", "p50 ms", "p99 ms", "CPU ms")


@dataclass
class Run:
    """One run.

    Attributes:
      scratch: directory for bundles, models and logs.
      checkouts: what is measured in turns; ratios are those of the first by the second.
      seconds: of each block of load.
    """

    scratch: Path
    checkouts: Sequence[Checkout]
    scale: float
    rounds: int
    seconds: float
    workers: int
    callers: Sequence[int] = CALLERS

    @property
    def root(self) -> Path:
        """Directory of the bundles."""
        return self.scratch / "bundles"

    @cached_property
    def ranking(self) -> RankingWorkload:
        """Workload R."""
        return write_ranking(self.root, self.scale)

    @cached_property
    def retrieval(self) -> RetrievalWorkload:
        """Workload Q."""
        work = write_retrieval(self.root, self.scale)
        np.save(work.directory.parent / QUERIES, work.vectors)
        return work

    def service(self) -> list[Sheet]:
        """Measures every way to call the service, in each checkout, and the bare calls."""
        measured = Rounds(self.seconds)
        ways = list[str]()
        for precision in ("f32", "int8"):
            with ExitStack() as running:
                loads = [self._loads(running, checkout, precision) for checkout in self.checkouts]
                for way in loads[0]:
                    measured.run([each[way] for each in loads], self.rounds, self.callers)
                ways += loads[0]
        return [self._service_sheet(measured, ways), self._bare(measured)]

    def _loads(
        self, running: ExitStack, checkout: Checkout, precision: str
    ) -> dict[str, Contestant]:
        """Starts a service; returns by way how it is called."""
        program = running.enter_context(self._serve(checkout, precision))
        ranking = self.ranking
        retrieval = self.retrieval
        messages = requests.rank_messages(ranking)
        queries = requests.retrieve_messages(retrieval)
        ways = {
            f"R {precision}, {JSON}": (requests.RANK, requests.rank_json(ranking)),
            f"R {precision}, {PROTOBUF}": (requests.RANK, messages),
            f"R {precision}, {GRPC}": (requests.RANK, messages),
        }
        if precision == "f32":
            several = requests.retrieve_messages(retrieval, QUERIES_PER_REQUEST)
            ways |= {
                f"Q, {JSON}": (requests.RETRIEVE, requests.retrieve_json(retrieval)),
                f"Q, {PROTOBUF}": (requests.RETRIEVE, queries),
                f"Q, {GRPC}": (requests.RETRIEVE, queries),
                f"Q, {GRPC}, {QUERIES_PER_REQUEST} queries": (requests.RETRIEVE, several),
            }
        found = {}
        for way, (method, bodies) in ways.items():
            media = MEDIA[way.split(", ")[1]]
            path = (
                "/v1/models/ranking:rank"
                if method == requests.RANK
                else "/v1/models/retrieval:retrieve"
            )
            endpoint = (
                Endpoint(program.http, path, media) if media else Endpoint(program.grpc, method)
            )
            load = running.enter_context(closing(Load(endpoint, bodies)))
            found[way] = Contestant(f"{way}, {checkout.name}", program, load)
        program.pause()
        return found

    @contextmanager
    def _serve(self, checkout: Checkout, precision: str, workers: int = 0) -> Iterator[Service]:
        _ = self.ranking, self.retrieval  # both are in the root before a service looks at it
        options = ("--workers", str(workers or self.workers))
        with closing(Service(checkout, self.root, self.scratch, precision, *options)) as service:
            yield service

    def _service_sheet(self, measured: Rounds, ways: Sequence[str]) -> Sheet:
        first = self.checkouts[0].name
        others = [each.name for each in self.checkouts[1:]]
        columns = ["request", "callers", *_FIGURES, "generator ms", "failed"]
        for other in others:
            columns += [
                *(f"{other}: {figure}" for figure in _FIGURES),
                f"requests/s by {other}",
                "p50",
                "CPU",
            ]
        rows = []
        for way in ways:
            name = f"{way}, {first}"
            for callers in measured.callers(name):
                block = measured.block(name, callers)
                row = [
                    way,
                    str(callers),
                    *_cells(block),
                    f"{block.generator_ms:.3f}",
                    f"{block.failed:.1%}",
                ]
                for other in (f"{way}, {each}" for each in others):
                    row += _cells(measured.block(other, callers))
                    ratios = (
                        measured.ratio(name, other, callers, each)
                        for each in ("per_s", "p50_ms", "cpu_ms")
                    )
                    row += [f"{ratio:.2f}" for ratio in ratios]
                rows.append(row)
        return Sheet(f"Service, {self.workers} workers", columns, rows)

    def _bare(self, measured: Rounds) -> Sheet:
        """Measures what the service is made of, in process, beside its best way."""
        rows = []
        for kind, bundle, way in (
            ("f32", self.ranking.directory, f"R f32, {PROTOBUF}"),
            ("int8", self.ranking.directory, f"R int8, {PROTOBUF}"),
            ("search", self.retrieval.directory, f"Q, {PROTOBUF}"),
        ):
            with closing(BareCall(kind, bundle)) as call:
                seen = [
                    call.measure(threads, self.seconds)
                    for _ in range(self.rounds)
                    for threads in (1, 2)
                ]
            one, two = (median(each.per_s for each in seen[at::2]) for at in (0, 1))
            cpu_ms = median(each.cpu_ms for each in seen[1::2])
            best = measured.best(f"{way}, {self.checkouts[0].name}")
            beyond = f"{best.cpu_ms - cpu_ms:.3f}"
            rows.append(
                (
                    kind,
                    f"{one:.0f}",
                    f"{two:.0f}",
                    f"{cpu_ms:.3f}",
                    f"{best.per_s / two:.2f}",
                    beyond,
                )
            )
        columns = ["call", "calls/s, 1 thread", "2 threads", "CPU ms"]
        columns += [f"service over {PROTOBUF} by it", "CPU ms beyond"]
        return Sheet("Bare tower and bare search, in process", columns, rows)

    def peers(self) -> list[Sheet]:
        """Measures the peers that are installed, one after another, each in turns with
        the service.
        """
        rows = list[list[str]]()
        absent = list[tuple[str, str]]()
        with self._serve(self.checkouts[0], "f32") as service:
            endpoint = Endpoint(service.http, "/v1/models/ranking:rank", MEDIA[JSON])
            own = Way(endpoint, requests.rank_json(self.ranking), read_rowcast)
            wanted = [own.call(at) for at in range(3)]
            load = Load(endpoint, own.bodies)
            service.pause()
            for peer in PEERS:
                if peer.problem:
                    absent.append((peer.name, peer.problem))
                    continue
                try:
                    model = write_whole_model(self.ranking.directory, self.scratch / "whole")
                    program, way = peer.start(model, self.ranking, self.scratch)
                    with closing(program), closing(Load(way.endpoint, way.bodies)) as theirs:
                        check_scores(way, wanted)
                        measured = Rounds(self.seconds)
                        memory_bytes = program.memory_bytes()
                        group = [
                            Contestant("rowcast", service, load),
                            Contestant(peer.name, program, theirs),
                        ]
                        measured.run(group, self.rounds, self.callers)
                except (NotStarted, OtherScores, ServiceLost) as problem:
                    absent.append((peer.name, str(problem)))
                    continue
                blocks = [measured.block(peer.name, callers) for callers in self.callers]
                best = measured.best("rowcast").per_s / measured.best(peer.name).per_s
                row = [peer.name, *(f"{block.per_s:.0f}" for block in blocks), f"{best:.2f}"]
                row += [f"{block.p50_ms:.1f} / {block.p99_ms:.1f}" for block in blocks]
                rows.append([*row, f"{program.ready_s:.1f}", f"{memory_bytes / MIB:.0f}"])
            load.close()
        rates = (f"requests/s, {n} callers" for n in self.callers)
        tails = (f"p50 / p99 ms, {n}" for n in self.callers)
        columns = (
            "peer",
            *rates,
            "rowcast f32 by it, each at its best",
            *tails,
            "s to ready",
            "PSS MiB",
        )
        sheets = [Sheet("Peers on R, JSON over HTTP", columns, rows)] if rows else []
        return sheets + ([Sheet("Not measured", ("peer", "reason"), absent)] if absent else [])

    def overload(self) -> list[Sheet]:
        """Measures overloads of R in f32 over HTTP protobuf."""
        rows = list[tuple[str, ...]]()
        figures = dict[str, str]()
        rankings = requests.rankings(self.ranking)
        for checkout in self.checkouts:
            for times in OVERLOADS:
                with self._serve(checkout, "f32") as service:
                    seen = overload.overload(service, rankings, times, 2 * self.seconds)
                figures = overload.figures(seen)
                rows.append((checkout.name, f"{times} x", *figures.values()))
        return [Sheet("Overload", ("service", "load", *figures), rows)]

    def start(self) -> list[Sheet]:
        """Measures time to ready, and memory before and after requests, of services with both
        models.
        """
        rows = []
        for checkout in self.checkouts:
            for workers in sorted({1, self.workers}):
                os.sync()  # what was written of the bundles is on the disk
                ready = []
                idle = []
                used = []
                for number in range(self.rounds + 1):
                    with self._serve(checkout, "f32", workers) as service:
                        if not number:
                            continue  # its modules were not compiled
                        ready.append(service.ready_s)
                        idle.append(service.memory_bytes() / MIB)
                        endpoint = Endpoint(
                            service.http, "/v1/models/ranking:rank", MEDIA[PROTOBUF]
                        )
                        with closing(Load(endpoint, requests.rank_messages(self.ranking))) as load:
                            load.closed(max(self.callers), self.seconds)
                        used.append(service.memory_bytes() / MIB)
                figures = f"{median(ready):.2f}", f"{median(idle):.0f}", f"{median(used):.0f}"
                rows.append((checkout.name, str(workers), *figures))
        columns = ("service", "workers", "s to ready", "PSS MiB, idle", "PSS MiB, after requests")
        return [Sheet("Start and memory, f32, R and Q loaded", columns, rows)]


def _cells(block: Block) -> list[str]:
    return [
        f"{block.per_s:.0f}",
        f"{block.p50_ms:.2f}",
        f"{block.p99_ms:.2f}",
        f"{block.cpu_ms:.3f}",
    ]
