"""The parts of a run of the benchmark, each of which returns tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks import client_calls, overload, requests, workload_files
from benchmarks.bare import RepeatedCall, bare_name
from benchmarks.load import Endpoint, Load, ServiceLost
from benchmarks.peers.contenders import (
    PEERS,
    RETRIEVAL_PEERS,
    Inputs,
    OtherResults,
    Peer,
    Target,
    check_scores,
    queries,
    rankings,
    read_ids,
    read_rowcast,
    recall_of,
)
from benchmarks.peers.whole_model import write_whole_model
from benchmarks.report import Sheet
from benchmarks.rounds import CALLERS, Block, Called, Contestant, Rounds
from benchmarks.services import Checkout, NotStarted, Service
from benchmarks.subjects import Subjects
from bundle.storage.catalog import read_manifest

PARTS = ("service", "client", "peers", "overload", "start")
JSON = "HTTP JSON"
PROTOBUF = "HTTP protobuf"
GRPC = "gRPC"
MEDIA = {JSON: "application/json", PROTOBUF: "application/x-protobuf", GRPC: ""}
RANK = "/v1/models/ranking:rank"
RETRIEVE = "/v1/models/retrieval:retrieve"
OVERLOADS = (2, 10)
BARE = (
    (f"R f32, {PROTOBUF}", "f32", 2),
    (f"R int8, {PROTOBUF}", "int8", 2),
    (f"Q, {PROTOBUF}", "search", 1),
    (f"Q, {PROTOBUF}", "search", 2),
)
"""Ways to call the service, with the kind and the threads of the bare call beside each."""
BEST = 20
"""Candidates of a request whose order by int8 is compared with the order by f32."""
MEASURED_QUERIES = 100
"""Queries whose recall is measured before a contestant is timed."""
INT8_ALLOWED = 0.05
"""Absolute difference between the int8 scores of two checkouts, which convert the tower anew."""
MIB = 1 << 20
_FIGURES = ("requests/s", "p50 ms", "p99 ms", "CPU ms")
_Scores = NDArray[np.float32]


@dataclass
class Run:
    """One run.

    Attributes:
      subjects: What is measured in turns; ratios are those of the first checkout by the second.
      seconds: Of each block of load.
    """

    subjects: Subjects
    rounds: int
    seconds: float
    callers: Sequence[int] = CALLERS

    @property
    def checkouts(self) -> Sequence[Checkout]:
        """What is measured in turns."""
        return self.subjects.checkouts

    def service(self) -> list[Sheet]:
        """Measures every kind of request to each checkout's service, beside the bare calls."""
        measured = Rounds(self.seconds)
        request_names = list[str]()
        scores = dict[str, list[_Scores]]()
        for checkout in self.checkouts:
            self.subjects.files(checkout)  # nothing is compiled while a service runs
        for precision in ("f32", "int8"):
            services = [self.subjects.service(checkout, precision) for checkout in self.checkouts]
            scores[precision] = self._check_equal(services, precision)
            with ExitStack() as running:
                called = [
                    self._called(running, checkout, service, precision)
                    for checkout, service in zip(self.checkouts, services, strict=True)
                ]
                bare = self._bare_calls(running, precision)
                for request_name, first in called[0].items():
                    if any(request_name not in calls for calls in called):
                        continue
                    group: list[Contestant] = [
                        first,
                        *(calls[request_name] for calls in called[1:]),
                    ]
                    group += bare.get(request_name, [])
                    measured.run(group, self.rounds, self.callers)
                    request_names.append(request_name)
        return [
            self._service_sheet(measured, request_names),
            self._bare_sheet(measured),
            _error_sheet(scores["f32"], scores["int8"]),
            self._index_sheet(),
        ]

    def _check_equal(self, services: Sequence[Service], precision: str) -> list[_Scores]:
        """Compares the results of the checkouts; returns all scores of the first.

        Raises:
          OtherResults: A checkout has other scores, or its index has less recall.
        """
        allowed = 1e-5 if precision == "f32" else INT8_ALLOWED
        scores: list[_Scores] = []
        for checkout, service in zip(self.checkouts, services, strict=True):
            service.resume()
            bodies = self.subjects.files(checkout).bodies
            target = Target(
                Endpoint(service.http, RANK, MEDIA[JSON]), bodies["rank_json"], read_rowcast
            )
            scores = scores or [target.call(number) for number in range(len(target.bodies))]
            check_scores(target, scores, allowed)
            if precision == "f32":
                endpoint = Endpoint(service.http, RETRIEVE, MEDIA[JSON])
                recall_of(Target(endpoint, bodies["retrieve_json"], read_ids), self._exact())
            service.pause()
        return scores

    def _exact(self) -> NDArray[np.int64]:
        """Returns the nearest candidates of the first queries by exact search, [100, k]."""
        directory = self.subjects.retrieval.directory
        entry = read_manifest(directory).indexes["items"]
        vectors = np.fromfile(directory / entry.vectors, "<f4").reshape(-1, entry.dim)
        scores = self.subjects.retrieval.vectors[:MEASURED_QUERIES] @ vectors.T
        return np.argpartition(scores, -entry.recall.k, axis=1)[:, -entry.recall.k :]

    def _called(
        self, running: ExitStack, checkout: Checkout, service: Service, precision: str
    ) -> dict[str, Called]:
        """Returns the calls of a service by the name of their request."""
        ranked = {JSON: "rank_json", PROTOBUF: "rank_messages", GRPC: "rank_messages"}
        bodies = {f"R {precision}, {medium}": name for medium, name in ranked.items()}
        if precision == "f32":
            bodies |= {
                f"Q, {JSON}": "retrieve_json",
                f"Q, {PROTOBUF}": "retrieve_messages",
                f"Q, {GRPC}": "retrieve_messages",
                f"Q, {GRPC}, {workload_files.QUERIES_PER_REQUEST} queries": "several",
            }
        written = self.subjects.files(checkout).bodies
        problems = {}
        for request_name, name in bodies.items():
            if name not in written:
                continue
            media = MEDIA[request_name.split(", ")[1]]
            ranks = request_name.startswith("R")
            if media:
                endpoint = Endpoint(service.http, RANK if ranks else RETRIEVE, media)
            else:
                endpoint = Endpoint(service.grpc, requests.RANK if ranks else requests.RETRIEVE)
            load = running.enter_context(closing(Load(endpoint, written[name])))
            problems[request_name] = Called(f"{request_name}, {checkout.name}", service, load)
        return problems

    def _bare_calls(self, running: ExitStack, precision: str) -> dict[str, list[RepeatedCall]]:
        """Returns the bare calls that are measured beside a request, by the request's name."""
        calls: dict[str, list[RepeatedCall]] = {}
        for request_name, kind, threads in BARE:
            if kind in (precision, "search" if precision == "f32" else ""):
                work = self.subjects.retrieval if kind == "search" else self.subjects.ranking
                name = bare_name(kind, threads)
                call = RepeatedCall(name, "benchmarks.bare", kind, work.directory, threads)
                running.enter_context(closing(call))
                calls.setdefault(request_name, []).append(call)
        return calls

    def _service_sheet(self, measured: Rounds, request_names: Sequence[str]) -> Sheet:
        first = self.checkouts[0].name
        checkout_names = [checkout.name for checkout in self.checkouts[1:]]
        columns = ["request", "callers", *_FIGURES, "generator ms", "failed"]
        for checkout_name in checkout_names:
            columns += [
                *(f"{checkout_name}: {figure}" for figure in _FIGURES),
                f"requests/s by {checkout_name}",
                "p50",
                "CPU",
            ]
        rows = []
        for request_name in request_names:
            name = f"{request_name}, {first}"
            for callers in measured.callers(name):
                block = measured.block(name, callers)
                row = [
                    request_name,
                    str(callers),
                    *_cells(block),
                    f"{block.generator_ms:.3f}",
                    f"{block.failed:.1%}",
                ]
                for checkout_name in (
                    f"{request_name}, {checkout_name}" for checkout_name in checkout_names
                ):
                    row += _cells(measured.block(checkout_name, callers))
                    ratios = (
                        measured.ratio(name, checkout_name, callers, field)
                        for field in ("per_s", "p50_ms", "cpu_ms")
                    )
                    row += [f"{ratio:.2f}" for ratio in ratios]
                rows.append(row)
        return Sheet(f"Service, {self.subjects.workers} workers", columns, rows)

    def _bare_sheet(self, measured: Rounds) -> Sheet:
        """Returns the share of the bare calls' throughput that the service reaches."""
        rows = []
        for request_name, kind, threads in BARE:
            name = f"{request_name}, {self.checkouts[0].name}"
            for callers in self.callers:
                served = measured.block(name, callers)
                bare = measured.block(bare_name(kind, threads), callers)
                figures = (
                    f"{served.per_s:.0f}",
                    f"{bare.per_s:.0f}",
                    f"{measured.ratio(name, bare_name(kind, threads), callers):.2f}",
                    f"{bare.cpu_ms:.3f}",
                    f"{served.cpu_ms - bare.cpu_ms:.3f}",
                )
                rows.append((request_name, str(callers), str(threads), *figures))
        columns = ["request", "callers", "threads", "requests/s", "bare calls/s", "share"]
        columns += ["CPU ms of a bare call", "CPU ms beyond"]
        return Sheet("Bare tower and bare search, in process", columns, rows)

    def _index_sheet(self) -> Sheet:
        """Returns the setting of the index of Q in each checkout."""
        rows = []
        for checkout in self.checkouts:
            entry = self.subjects.index(checkout)
            setting = ", ".join(f"{name} {value}" for name, value in entry["parameters"].items())
            rows.append((checkout.name, setting, f"{entry['recall']['value']:.4f}"))
        return Sheet("Index of Q", ("service", "parameters", "recall@100"), rows)

    def client(self) -> list[Sheet]:
        """Measures what calls of the Python client cost their process, beside bare ones."""
        service = self.subjects.service(self.checkouts[0], "f32")
        service.resume()
        measured = Rounds(self.seconds)
        with ExitStack() as running:
            group = client_calls.started(running, service, self.subjects.retrieval)
            measured.run(group, self.rounds, callers=(1,))
        service.pause()
        return [client_calls.sheet(measured)]

    def peers(self) -> list[Sheet]:
        """Measures the peers that are installed, one after another, each in turns with the
        service.
        """
        absent = list[tuple[str, str]]()
        service = self.subjects.service(self.checkouts[0], "f32")
        service.resume()
        bodies = self.subjects.files(self.checkouts[0]).bodies
        ranking = Target(
            Endpoint(service.http, RANK, MEDIA[JSON]), bodies["rank_json"], read_rowcast
        )
        wanted = [ranking.call(number) for number in range(3)]
        retrieval = Target(
            Endpoint(service.http, RETRIEVE, MEDIA[JSON]), bodies["retrieve_json"], read_ids
        )
        exact = self._exact()
        own_recall = recall_of(retrieval, exact)
        service.pause()

        def check_ranking(target: Target) -> str:
            check_scores(target, wanted)
            return "equal"

        def check_retrieval(target: Target) -> str:
            return f"{recall_of(target, exact):.3f} / {own_recall:.3f}"

        model = self.subjects.scratch / "whole"
        if any(not peer.problem for peer in PEERS):
            write_whole_model(self.subjects.ranking.directory, model)
        ranking_inputs = rankings(self.subjects.ranking)
        ranked = [
            self._beside(service, ranking, peer, model, ranking_inputs, check_ranking, absent)
            for peer in PEERS
        ]
        searched = [
            self._beside(
                service,
                retrieval,
                peer,
                self.subjects.retrieval.directory,
                queries(self.subjects.retrieval),
                check_retrieval,
                absent,
            )
            for peer in RETRIEVAL_PEERS
        ]
        rates = [f"requests/s, {n} callers" for n in self.callers]
        tails = [f"p50 / p99 ms, {n}" for n in self.callers]
        best = "rowcast f32 by it, each at its best"
        sheets = []
        for title, check, rows in (
            ("Peers on R, over HTTP", "scores", ranked),
            ("Retrieval beside peers on Q, over HTTP", "recall@100, rowcast's", searched),
        ):
            columns = ("peer", *rates, best, "CPU ms", "CPU by rowcast's", *tails)
            columns += ("s to ready", "PSS MiB", check)
            present = [row for row in rows if row]
            sheets += [Sheet(title, columns, present)] if present else []
        return sheets + ([Sheet("Not measured", ("peer", "reason"), absent)] if absent else [])

    def _beside(
        self,
        service: Service,
        rowcast_target: Target,
        peer: Peer,
        model: Path,
        ranking_inputs: Sequence[Inputs],
        check: Callable[[Target], str],
        absent: list[tuple[str, str]],
    ) -> list[str]:
        """Measures a peer in turns with the service.

        Args:
          service: It is paused.
          rowcast_target: The same model, served by rowcast.
          model: What the peer serves.
          ranking_inputs: The requests.
          check: Compares the results of the peer with the model's; returns how they compare.
          absent: Gets the peer and the reason if it cannot be measured.

        Returns:
          Its row; empty if it cannot be measured.
        """
        if peer.problem:
            absent.append((peer.name, peer.problem))
            return []
        try:
            program, target = peer.start(model, ranking_inputs, self.subjects.scratch)
            with (
                closing(program),
                closing(Load(rowcast_target.endpoint, rowcast_target.bodies)) as load,
                closing(Load(target.endpoint, target.bodies)) as theirs,
            ):
                checked = check(target)
                memory_bytes = program.memory_bytes()
                measured = Rounds(self.seconds)
                group = [Called("rowcast", service, load), Called(peer.name, program, theirs)]
                measured.run(group, self.rounds, self.callers)
        except (NotStarted, OtherResults, ServiceLost) as problem:
            absent.append((peer.name, str(problem)))
            return []
        blocks = [measured.block(peer.name, callers) for callers in self.callers]
        mine = measured.best("rowcast")
        best = measured.best(peer.name)
        row = [peer.name, *(f"{block.per_s:.0f}" for block in blocks)]
        row += [f"{mine.per_s / best.per_s:.2f}"]
        row += [f"{best.cpu_ms:.3f}", f"{best.cpu_ms / mine.cpu_ms:.2f}"]
        row += [f"{block.p50_ms:.1f} / {block.p99_ms:.1f}" for block in blocks]
        return [*row, f"{program.ready_s:.1f}", f"{memory_bytes / MIB:.0f}", checked]

    def overload(self) -> list[Sheet]:
        """Measures overloads of R in f32 over HTTP protobuf."""
        rows = list[tuple[str, ...]]()
        figures = dict[str, str]()
        kind = requests.rankings(self.subjects.ranking)
        for checkout in self.checkouts:
            bodies = self.subjects.files(checkout).bodies["rank_messages"]
            rankings = replace(kind, bodies=bodies)
            service = self.subjects.service(checkout, "f32")
            for times in OVERLOADS:
                seen = overload.overload(service, rankings, times, 2 * self.seconds)
                figures = overload.figures(seen)
                rows.append((checkout.name, f"{times} x", *figures.values()))
        return [Sheet("Overload", ("service", "load", *figures), rows)]

    def start(self) -> list[Sheet]:
        """Measures time to ready, and memory before and after requests, of services with both
        models.
        """
        for checkout in self.checkouts:
            self.subjects.service(checkout, "f32")  # its modules are compiled now
        # A service that stands still shares the pages of the bundles with those that are measured.
        self.subjects.close()
        os.sync()  # what was written of the bundles is on the disk
        rows = [
            self._start_row(checkout, workers)
            for checkout in self.checkouts
            for workers in sorted({1, self.subjects.workers})
        ]
        columns = ("service", "workers", "s to ready", "PSS MiB, idle", "PSS MiB, after requests")
        return [Sheet("Start and memory, f32, R and Q loaded", columns, rows)]

    def _start_row(self, checkout: Checkout, workers: int) -> tuple[str, ...]:
        """Starts services of a checkout, one after another; returns the medians."""
        ready = list[float]()
        idle = list[float]()
        used = list[float]()
        for _ in range(self.rounds):
            with closing(self.subjects.start(checkout, "f32", workers)) as service:
                ready.append(service.ready_s)
                idle.append(service.memory_bytes() / MIB)
                endpoint = Endpoint(service.http, RANK, MEDIA[PROTOBUF])
                messages = self.subjects.files(checkout).bodies["rank_messages"]
                with closing(Load(endpoint, messages)) as load:
                    load.closed(max(self.callers), self.seconds)
                used.append(service.memory_bytes() / MIB)
        figures = f"{median(ready):.2f}", f"{median(idle):.0f}", f"{median(used):.0f}"
        return checkout.name, str(workers), *figures


def _error_sheet(exact: Sequence[_Scores], quantized: Sequence[_Scores]) -> Sheet:
    """Returns how the int8 scores of all requests of R differ from those in f32."""
    errors = np.abs(np.concatenate(quantized) - np.concatenate(exact))
    rows = [
        np.intersect1d(np.argsort(mine)[-BEST:], np.argsort(theirs)[-BEST:]).size / BEST
        for mine, theirs in zip(quantized, exact, strict=True)
    ]
    spread = float(np.std(np.concatenate(exact)))
    row = (
        f"{spread:.4f}",
        f"{errors.mean():.4f}",
        f"{np.percentile(errors, 99):.4f}",
        f"{errors.max():.4f}",
        f"{np.mean(rows):.3f}",
    )
    columns = ("standard deviation of scores", "mean error", "p99", "maximum")
    return Sheet("Error of int8 on R, by f32", (*columns, f"best {BEST} that stay"), [row])


def _cells(block: Block) -> list[str]:
    return [
        f"{block.per_s:.0f}",
        f"{block.p50_ms:.2f}",
        f"{block.p99_ms:.2f}",
        f"{block.cpu_ms:.3f}",
    ]
