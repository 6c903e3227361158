"""The aims of the service, each as a line: what is wanted, what was reached in this run, and whether that meets it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.cores import SERVING
from tests.bench.figures import Figures, Group
from tests.bench.queueing import tail
from tests.bench.rounds import Block

OVERLOAD = "open 2.0"
AT_RAY = "open at 70 % of Ray Serve HAProxy's capacity"
RAY = "Ray Serve HAProxy"
JSON, PROTOBUF, GRPC = "HTTP JSON", "HTTP protobuf", "gRPC"
HTTP_ECHO, GRPC_ECHO = "echo: uvicorn", "echo: grpc.aio"


@dataclass(frozen=True)
class Goal:
    """One aim.

    Attributes:
      number: aims that belong together share it.
      reached: nan: not measured in this run.
      least: whether `wanted` is the least that is wanted, else the most.
      bare: what the bare call in process would reach by itself; of a tail what queueing alone makes. nan: not told.
    """

    number: int
    text: str
    wanted: float
    reached: float
    least: bool = True
    bare: float = math.nan

    @property
    def met(self) -> bool | None:
        """Whether it is met; None: not measured."""
        if math.isnan(self.reached):
            return None
        return self.reached >= self.wanted if self.least else self.reached <= self.wanted


def goals(figures: Figures) -> list[Goal]:
    """Returns every aim that the benchmark knows, in order; those without figures too."""
    rules = (_limits, _peers, _cpu, _tail, _crowd, _rows, _footprint, _retrieval, _ready)
    return [goal for rule in rules for goal in rule(figures)]


def best(group: Group, door: str, precision: str = "") -> str:
    """Returns the name of the fastest of rowcast's contestants of a door and a precision; "" without any."""
    names = [name for name in group.blocks if name.startswith(f"rowcast {door}") and precision in name]
    names = [name for name in names if "whole" not in name]
    return max(names, key=group.capacity, default="")


def tail_ms(block: Block) -> float:
    """Returns the p99 of all requests, where one that was refused has no end."""
    return math.inf if block.failed >= 0.01 else block.p99_ms


def _known(value: Callable[[], float]) -> float:
    try:
        return value()
    except (KeyError, ValueError, ZeroDivisionError, AttributeError):
        return math.nan


def _limits(figures: Figures) -> Iterator[Goal]:
    for precision, wanted in (("f32", (0.75, 0.82, 0.82)), ("int8", (0.58, 0.72, 0.72))):
        for door, share in zip((JSON, PROTOBUF, GRPC), wanted, strict=True):
            name = best(figures.ranking, door, precision)
            reached = _known(
                lambda name=name, precision=precision: (  # type: ignore[misc]
                    figures.ranking.capacity(name) / figures.bare[f"litert-{precision}"][2].per_s
                )
            )
            text = f"R {precision}, {door}: share of the bare tower's throughput (two callers)"
            whole = figures.bare.get(f"litert-{precision}", {})
            bare = _known(lambda precision=precision, whole=whole: _bare_per_s(figures, precision) / whole[2].per_s)  # type: ignore[misc]
            yield Goal(1, text, share, reached, bare=bare)


def _bare_per_s(figures: Figures, precision: str) -> float:
    """Returns calls a second of the bare tower with two callers, whole or in parts, as it is faster."""
    return max(figures.bare[name][2].per_s for name in (f"litert-{precision}", f"litert-{precision} in parts")
               if name in figures.bare)  # fmt: skip


def _peer_ratio(group: Group, peer: str, precision: str, block: str = "") -> float:
    own = best(group, JSON, precision)
    if block:
        return group.blocks[own][block].requests_per_s / group.blocks[peer][block].requests_per_s
    return group.capacity(own) / group.capacity(peer)


def _peers(figures: Figures) -> Iterator[Goal]:
    wanted = {
        RAY: 1.45, "FastAPI": 1.8, "FastAPI, processes": 1.8, "MLServer HTTP": 2.0, "MLServer gRPC": 2.0,
        "LitServe": 2.4, "pytriton HTTP": 2.4, "pytriton gRPC": 2.4, "BentoML": 2.4,
    }  # fmt: skip
    found = {peer: group for group in figures.peers for peer in group.blocks if not peer.startswith("rowcast")}
    for peer, ratio in wanted.items():
        reached = _known(lambda peer=peer: _peer_ratio(found[peer], peer, "f32"))  # type: ignore[misc]
        bare = _known(lambda peer=peer: _bare_per_s(figures, "f32") / found[peer].capacity(peer))  # type: ignore[misc]
        yield Goal(2, f"R f32, JSON: times the throughput of {peer}, each at its best", ratio, reached, bare=bare)
    crowd = _known(lambda: _peer_ratio(found["FastAPI"], "FastAPI", "f32", "closed 32"))
    bare = _known(lambda: _bare_per_s(figures, "f32") / found["FastAPI"].blocks["FastAPI"]["closed 32"].requests_per_s)
    yield Goal(2, "R f32, JSON: times the throughput of FastAPI at 32 callers", 2.3, crowd, bare=bare)
    ratios = [_known(lambda peer=peer: _peer_ratio(found[peer], peer, "int8")) for peer in found]  # type: ignore[misc]
    bare = _known(lambda: _bare_per_s(figures, "int8") / max(group.capacity(peer) for peer, group in found.items()))
    yield Goal(2, "R int8, JSON: times the throughput of the best peer", 3.0, min(ratios, default=math.nan), bare=bare)


def _cpu(figures: Figures) -> Iterator[Goal]:
    for precision in ("f32", "int8"):
        for door in (JSON, PROTOBUF, GRPC):
            name = best(figures.ranking, door, precision)
            reached = _known(
                lambda name=name, precision=precision: (  # type: ignore[misc]
                    figures.ranking.blocks[name]["closed 8"].cpu_ms - figures.bare[f"litert-{precision}"][2].cpu_ms
                )
            )
            yield Goal(
                3, f"R {precision}, {door}: CPU ms a request beyond the bare tower's", 0.20, reached, least=False
            )


def _tail(figures: Figures) -> Iterator[Goal]:
    for precision in ("f32", "int8"):
        name = best(figures.ranking, JSON, precision)
        blocks = figures.ranking.blocks.get(name, {})
        reached = _known(lambda blocks=blocks: tail_ms(blocks["open 0.7"]) / blocks["closed 1"].p50_ms)  # type: ignore[misc]
        text = f"R {precision}, JSON: p99 at 70 % of capacity by the p50 of a single caller"
        yield Goal(4, text, 5.0, reached, least=False, bare=_queueing(figures.ranking, name))
    group = next((each for each in figures.peers if RAY in each.blocks), Group())
    own = best(group, JSON, "f32")
    reached = _known(lambda: tail_ms(group.blocks[own][AT_RAY]) / tail_ms(group.blocks[RAY]["open 0.7"]))
    yield Goal(
        4, f"R f32, JSON: p99 by that of {RAY} at the same rate, 70 % of its capacity", 0.7, reached, least=False
    )


def _queueing(group: Group, name: str) -> float:
    """Returns the p99 at 70 % of capacity by the p50 of a single caller that queueing alone makes.

    A call takes the cores as long as it does at capacity; each worker has a line of its own.
    """
    call_s = _known(lambda: SERVING / group.capacity(name))
    lines = 2 if name.endswith("x 2") else 1
    return _known(lambda: tail(lines, SERVING, 0.7) * call_s * 1e3 / group.blocks[name]["closed 1"].p50_ms)


def _crowd(figures: Figures) -> Iterator[Goal]:
    for precision in ("f32", "int8"):
        name = best(figures.ranking, JSON, precision)
        blocks = figures.ranking.blocks.get(name, {})
        kept = _known(lambda b=blocks: b["closed 32"].requests_per_s / b["closed 8"].requests_per_s)  # type: ignore[misc]
        yield Goal(5, f"R {precision}, JSON: throughput of 32 callers by that of 8", 0.97, kept)
        spread = _known(lambda b=blocks: b["closed 32"].p99_ms / b["closed 32"].p50_ms)  # type: ignore[misc]
        yield Goal(5, f"R {precision}, JSON: p99 by p50 of 32 callers", 1.25, spread, least=False)
        shed = _known(lambda b=blocks: b[OVERLOAD].failed_p99_ms)  # type: ignore[misc]
        yield Goal(5, f"R {precision}, JSON, twice the capacity: p99 of a refusal, ms", 2.0, shed, least=False)
        goodput = _known(
            lambda b=blocks, name=name: b[OVERLOAD].requests_per_s / figures.ranking.capacity(name)  # type: ignore[misc]
        )
        yield Goal(5, f"R {precision}, JSON, twice the capacity: goodput by capacity", 0.95, goodput)


def _rows(figures: Figures) -> Iterator[Goal]:
    for case, share in (figures.lookups or {"not measured": math.nan}).items():
        wanted = 0.85 if case.startswith("float32 single") else 0.60
        yield Goal(6, f"rows a second by the C loop's: {case}", wanted, share)
    yield Goal(6, "rows a second of two threads by those of one, float32 single", 1.75, figures.lookups_two_by_one)


def _footprint(figures: Figures) -> Iterator[Goal]:
    group = next((each for each in figures.peers if "FastAPI" in each.blocks), Group())
    own = best(group, JSON, "f32").replace(f"{JSON} ", "")  # a service has one footprint, whatever it is asked over
    mine, theirs = group.footprints.get(own), group.footprints.get("FastAPI")
    memory = mine.pss_bytes / theirs.pss_bytes if mine and theirs else math.nan
    yield Goal(7, "memory (PSS) by that of FastAPI with the whole SavedModel", 0.15, memory, least=False)
    apart = [each.pss_bytes - each.file_bytes for each in (mine, theirs) if each]
    kept = _known(lambda: apart[0] / apart[1]) if len(apart) == 2 else math.nan
    yield Goal(7, "the same without pages of files, which the page cache has anyway", 0.15, kept, least=False)
    start = mine.ready_s / theirs.ready_s if mine and theirs else math.nan
    yield Goal(7, "time to the first answer by that of FastAPI", 0.3, start, least=False)
    footprints = figures.ranking.footprints
    each = _known(
        lambda: (
            (footprints["rowcast f32 x 2"].pss_bytes - footprints["rowcast f32 x 1"].pss_bytes) / figures.table_bytes
        )
    )
    yield Goal(7, "memory (PSS) of a further worker by the tables' bytes", 0.15, each, least=False)
    rows = _known(lambda: figures.starts[4] / figures.starts[1])
    yield Goal(7, "time to ready with four times the rows by that with one", 1.15, rows, least=False)


def _retrieval(figures: Figures) -> Iterator[Goal]:
    group = figures.retrieval
    http = max((best(group, door) for door in (JSON, PROTOBUF)), key=lambda n: group.capacity(n) if n else 0.0)
    share = _known(lambda: group.capacity(http) / figures.bare["scann"][1].per_s)
    bare = _known(lambda: figures.bare["scann"][2].per_s / figures.bare["scann"][1].per_s)
    how = http.removeprefix("rowcast ") or "HTTP"
    yield Goal(8, f"Q, {how}: throughput by bare ScaNN's on one thread", 0.60, share, bare=bare)
    blocks = group.blocks.get(http, {})
    reached = _known(lambda: tail_ms(blocks["open 0.7"]) / blocks["closed 1"].p50_ms)
    text = "Q, HTTP: p99 at 70 % of capacity by the p50 of a single caller"
    yield Goal(8, text, 8.0, reached, least=False, bare=_queueing(group, http))
    echo = _known(lambda: group.capacity(best(group, GRPC)) / group.capacity(GRPC_ECHO))
    yield Goal(8, "Q, gRPC: throughput by that of an empty method of grpc.aio, one process", 0.7, echo)


def _ready(figures: Figures) -> Iterator[Goal]:
    for name, found in figures.ranking.footprints.items():
        yield Goal(10, f"{name}: seconds from process start to ready", 1.0, found.ready_s, least=False)
