"""The parts of a run of the benchmark, each of which adds its figures."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from bundle.staging import read_manifest
from tests.bench import ceilings, lookups, requests
from tests.bench.figures import Figures, Footprint, Group
from tests.bench.goals import AT_RAY, GRPC, GRPC_ECHO, HTTP_ECHO, JSON, OVERLOAD, PROTOBUF, RAY, best
from tests.bench.limits import KINDS, Bare, Limit
from tests.bench.load import Door, Load, ServiceLost
from tests.bench.peers import contenders, engines
from tests.bench.peers.contenders import GROUPS, OtherScores, Peer, Way, check_scores, free_ports
from tests.bench.peers.whole_model import write_whole_model
from tests.bench.rounds import Block, Contestant, Rounds
from tests.bench.services import NotStarted, Program, Service
from tests.bench.variants import write_fewer_rows, write_whole_tower
from tests.bench.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval

WORKERS = (1, 2)
PRECISIONS = ("f32", "int8")
CHECKED = 3
"""Requests whose scores a peer has to have."""
ECHO_BYTES = 1200
"""About an answer of workload Q."""
MEDIA = {JSON: "application/json", PROTOBUF: "application/x-protobuf"}
STARTS = 5
WHOLE = "ranking-whole"

Blocks = dict[str, dict[str, Block]]


class Run:
    """One run: workloads that are written when they are first needed, and the parts."""

    def __init__(self, root: Path, scratch: Path, short: Path, figures: Figures, tell: Callable[[str], object]) -> None:
        """Adds to `figures` what its parts find.

        Args:
          root: of the bundles.
          scratch: for models and logs.
          short: for sockets, which need a short path.
          figures: they say how much is measured.
          tell: hears what is going on.
        """
        self._root, self._scratch, self._short = root, scratch, short
        self._figures, self._tell = figures, tell

    @cached_property
    def ranking_work(self) -> RankingWorkload:
        """Workload R."""
        self._tell("writing workload R")
        return write_ranking(self._root, self._figures.scale)

    @cached_property
    def whole_work(self) -> RankingWorkload:
        """Workload R with a ranking tower that runs whole for each candidate; its files are those of R."""
        return write_whole_tower(self.ranking_work, self._root, WHOLE)

    @cached_property
    def retrieval_work(self) -> RetrievalWorkload:
        """Workload Q."""
        self._tell("writing workload Q")
        work = write_retrieval(self._root, self._figures.scale)
        np.save(work.directory.parent / "queries.npy", work.vectors)
        return work

    def rowcast(self, workers: Sequence[int] = WORKERS, kinds: Sequence[str] = KINDS) -> None:
        """Measures the service's own ways, the bare calls and the transports."""
        ranking, retrieval, _ = self.ranking_work, self.retrieval_work, self.whole_work
        tables = read_manifest(ranking.directory).tables.values()
        self._figures.table_bytes = sum(table.rows * table.dim * 4 for table in tables)
        services: dict[str, Service] = {}
        echoes: dict[str, Program] = {}
        limits: dict[str, Limit] = {}
        try:
            for precision in PRECISIONS:
                for number in workers:
                    name = f"rowcast {precision} x {number}"
                    self._figures.ranking.footprints[name] = self._alone(precision, number)
            for precision in PRECISIONS:
                for number in workers:
                    service = Service(self._root, precision, self._scratch, "--workers", str(number))
                    services[f"rowcast {precision} x {number}"] = service
            # After the services: one of these imports TensorFlow, which slows every start beside it.
            limits |= {kind: Limit(kind, ranking.directory) for kind in kinds}
            limits["scann"] = Limit("scann", retrieval.directory)
            asked = [each for name, service in services.items() for each in rankers(name, service, ranking)]
            for precision in PRECISIONS:
                name = f"rowcast {precision} x {workers[0]}"
                (parted,) = rankers(name, services[name], self.whole_work, (PROTOBUF,))
                asked.append(replace(parted, name=f"{parted.name}, tower whole"))
            self._figures.bare = self._bare(limits)
            self._figures.ranking.blocks = self._measure(asked, overload=True)
            asked = [
                each
                for name, service in services.items()
                if "f32" in name
                for each in retrievers(name, service, retrieval)
            ]
            doors = {"http": (HTTP_ECHO, Door(0, "/", MEDIA[JSON])), "grpc": (GRPC_ECHO, Door(0, ceilings.METHOD))}
            for kind, (name, door) in doors.items():
                (port,) = free_ports(1)
                echoes[name] = ceilings.start(kind, port, ECHO_BYTES, self._scratch / f"{kind}-echo.log")
                load = Load(Door(port, door.path, door.content_type), requests.retrieve_messages(retrieval))
                asked.append(Contestant(name, echoes[name], load))
            self._figures.retrieval.blocks = self._measure(asked)
        finally:
            close(services | echoes, limits)

    def _alone(self, precision: str, workers: int) -> Footprint:
        # While no other service maps the same files, and what was written of them is on the disk: as each peer starts.
        os.sync()
        seen = []
        for _ in range(self._figures.rounds):
            service = Service(self._root, precision, self._scratch, "--workers", str(workers))
            try:
                scores(service, self.ranking_work)
                seen.append(Footprint.of(service))
            finally:
                service.close()
        return replace(seen[-1], ready_s=median(each.ready_s for each in seen))

    def _bare(self, limits: Mapping[str, Limit]) -> dict[str, dict[int, Bare]]:
        self._tell("bare calls")
        seen: dict[tuple[str, int], list[Bare]] = defaultdict(list)
        for _ in range(self._figures.rounds):
            for name, limit in limits.items():
                for callers in (1, 2):
                    seen[name, callers].append(limit.measure(callers, self._figures.seconds))
        return {name: {callers: engines.middle(seen[name, callers]) for callers in (1, 2)} for name in limits}

    def _measure(self, asked: Sequence[Contestant], overload: bool = False, beside: str = "") -> Blocks:
        self._tell(f"taking turns: {', '.join(each.name for each in asked)}")
        rounds = Rounds(self._figures.seconds)
        problems = rounds.warm_up(asked)
        self._figures.absent |= problems
        asked = [each for each in asked if each.name not in problems]
        rounds.closed(asked, self._figures.rounds)
        rates = rounds.shares(asked)
        for name in rates:
            if overload and JSON in name:
                rates[name][OVERLOAD] = 2 * rounds.capacity(name)
            if beside and name != beside:
                rates[name][AT_RAY] = rates[beside]["open 0.7"]
        rounds.opened(rates, asked, self._figures.rounds)
        for each in asked:
            each.load.close()
        return rounds.blocks()

    def peers(self, groups: Sequence[Sequence[Peer]] = GROUPS) -> None:
        """Measures the peers that are installed, each group with rowcast's references, and tells why others are not."""
        work = self.ranking_work
        for group in groups:
            installed = [peer for peer in group if not peer.problem]
            self._figures.absent |= {peer.name: peer.problem for peer in group if peer.problem}
            if installed:
                self._figures.peers.append(self._peers(installed, work))

    def _peers(self, peers: Sequence[Peer], work: RankingWorkload) -> Group:
        model = write_whole_model(work.directory, self._scratch / "whole")
        name = best(self._figures.ranking, JSON, "f32") or "x 1"
        workers = name.rpartition(" ")[2]
        programs: dict[str, Program] = {}
        found, asked = Group({}, {f"rowcast f32 x {workers}": self._alone("f32", int(workers))}), []
        try:
            for precision in PRECISIONS:
                service = Service(self._root, precision, self._scratch, "--workers", workers)
                programs[f"rowcast {precision} x {workers}"] = service
                asked += rankers(f"rowcast {precision} x {workers}", service, work, (JSON,))
                if precision == "f32":
                    wanted = scores(service, work)
                service.pause()
            for peer in peers:
                self._tell(f"starting {peer.name}")
                try:
                    program, ways = self._start(peer, model, work)
                    programs[peer.name] = program
                    for way in ways:
                        check_scores(way, wanted)
                except (NotStarted, OtherScores) as problem:
                    self._figures.absent[peer.name] = str(problem)
                    if peer.name in programs:
                        programs.pop(peer.name).close()
                    continue
                asked += contenders.contestants(peer.name, program, ways)
                found.footprints[peer.name] = Footprint.of(program)
                program.pause()
            found.blocks = self._measure(asked, beside=RAY if any(peer.name == RAY for peer in peers) else "")
        except ServiceLost as problem:
            self._figures.absent |= {peer.name: str(problem) for peer in peers}
        finally:
            close(programs, {})
        return found

    def _start(self, peer: Peer, model: Path, work: RankingWorkload) -> tuple[Program, list[Way]]:
        # Some give up when the machine keeps one of their processes waiting: they have a second chance.
        try:
            return peer.start(model, work, self._scratch, self._short)
        except NotStarted:
            return peer.start(model, work, self._scratch, self._short)

    def engines(self) -> None:
        """Measures what else searches workload Q."""
        work = self.retrieval_work
        self._tell("other engines on workload Q")
        scann = Limit("scann", work.directory)
        try:
            place = self._scratch / "engines"
            self._figures.engines = dict(
                engines.measure(work, scann, place, self._figures.rounds, self._figures.seconds)
            )
        finally:
            scann.close()
            shutil.rmtree(self._scratch / "engines", ignore_errors=True)

    def lookups(self) -> None:
        """Measures rows of a mapped table beside a loop in C; from a million rows on they do not fit any cache."""
        self._tell("rows beside a loop in C")
        rows = max(lookups.CHUNK, round(self._figures.scale * 10_000_000))
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            root = Path(place)
            program = lookups.compile_loop(root)
            block_s = min(0.1, self._figures.seconds / 10)
            plain: list[float] = []
            for case, threads, found in lookups.rates(
                root, program, rows, 400_000, self._figures.rounds, block_s, "wall"
            ):
                what = "bags" if case.bags else "single"
                self._figures.lookups[f"{case.dtype} {what}, {case.ids}, {threads} threads"] = (
                    found["compiled"] / found["loop"]
                )
                if (case.dtype, case.ids, case.bags) == ("float32", "uniform", False):
                    plain.append(found["compiled"])
            self._figures.lookups_two_by_one = plain[1] / plain[0]

    def starts(self, repeats: int = STARTS) -> None:
        """Measures the time to ready with the rows of workload R and with a quarter of them, in turns."""
        self._tell("starts")
        roots = {times: self._scratch / f"rows-{times}" for times in (1, 4)}
        for times, root in roots.items():
            root.mkdir(parents=True, exist_ok=True)
            write_fewer_rows(self.ranking_work, root, 4 // times)
        seen: dict[int, list[float]] = defaultdict(list)
        for _ in range(repeats):
            for times, root in roots.items():
                service = Service(root, "f32", self._scratch)
                seen[times].append(service.ready_s)
                service.close()
        self._figures.starts = {times: median(found) for times, found in seen.items()}
        for root in roots.values():
            shutil.rmtree(root)


def rankers(
    name: str, service: Service, work: RankingWorkload, doors: Sequence[str] = (JSON, PROTOBUF, GRPC)
) -> list[Contestant]:
    """Returns ways to ask a service for workload R."""
    path = f"/v1/models/{work.model}:rank"
    bodies = {JSON: requests.rank_json(work), PROTOBUF: requests.rank_messages(work)}
    return _contestants(name, service, (path, requests.RANK), bodies, doors)


def retrievers(name: str, service: Service, work: RetrievalWorkload) -> list[Contestant]:
    """Returns each way to ask a service for workload Q."""
    path = f"/v1/models/{work.model}:retrieve"
    bodies = {JSON: requests.retrieve_json(work), PROTOBUF: requests.retrieve_messages(work)}
    return _contestants(name, service, (path, requests.RETRIEVE), bodies, (JSON, PROTOBUF, GRPC))


def _contestants(
    name: str, service: Service, at: tuple[str, str], bodies: Mapping[str, list[bytes]], doors: Sequence[str]
) -> list[Contestant]:
    path, method = at
    found = []
    for door in doors:
        media = MEDIA.get(door, "")
        to = Door(service.http, path, media) if media else Door(service.grpc, method)
        load = Load(to, bodies.get(door, bodies[PROTOBUF]))
        found.append(Contestant(f"rowcast {door} {name.removeprefix('rowcast ')}", service, load))
    return found


def scores(service: Service, work: RankingWorkload) -> list[contenders.Scores]:
    """Returns the scores of the first requests, which a peer's are held against."""
    door = Door(service.http, f"/v1/models/{work.model}:rank", MEDIA[JSON])
    way = Way("rowcast", door, requests.rank_json(work), contenders.scores_of_rowcast)
    return [way.ask(at) for at in range(CHECKED)]


def close(programs: Mapping[str, Program], limits: Mapping[str, Limit]) -> None:
    """Ends all of them."""
    for limit in limits.values():
        limit.close()
    for program in programs.values():
        program.close()
