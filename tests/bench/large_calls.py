"""`python -m tests.bench.large_calls`: rankings of many candidates, each by all idle cores, beside each by one core.

Workload R over HTTP in protobuf, served as it comes (in pieces) and with `--piece-us 0` (whole), in turns, the idle
service stopped: one caller with few to very many candidates, then eight callers, whom no core is left idle for. On two
cores, whose load comes from others where there are four; and on all of these, which the load comes from, too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.bench import cores, requests
from tests.bench.load import Answers, Door, Load
from tests.bench.rounds import Block, Contestant, Rounds
from tests.bench.services import Service
from tests.bench.workloads import RankingWorkload, write_ranking

PROTOBUF = "application/x-protobuf"
SIZES = (200, 1_000, 5_000, 20_000)
CALLERS = {200: (1, 8, 32), 1_000: (1, 8)}
"""By candidates; of more, one: several calls are more candidates than are let in at once."""
BODIES = 8
WAYS: Mapping[str, tuple[str, ...]] = {"whole": ("--piece-us", "0"), "pieces": ()}


def bodies(work: RankingWorkload, candidates: int) -> list[bytes]:
    """Returns requests of so many candidates: the workload's, one's after the other's."""
    asked = {}
    for name, ids in work.candidates.items():
        flat = np.tile(ids.reshape(-1), -(-candidates * BODIES // ids.size))
        asked[name] = flat[: candidates * BODIES].reshape(BODIES, candidates)
    return requests.rank_messages(replace(work, numbers=work.numbers[:BODIES], candidates=asked))


def measure(
    root: Path,
    work: RankingWorkload,
    rounds: int,
    seconds: float,
    *,
    precision: str = "f32",
    workers: int = 1,
    sizes: Sequence[int] = SIZES,
    ways: Mapping[str, Sequence[str]] = WAYS,
) -> dict[tuple[int, int], dict[str, Block]]:
    """Serves the workload in every way and asks for rankings, in turns.

    Args:
      root: of the bundles.
      work: R, which lies there.
      rounds: how often each has its turn.
      seconds: of each block.
      precision: of the towers.
      workers: of each service.
      sizes: candidates of a request.
      ways: options of each service, by name.
    Returns:
      By candidates and callers, then by way.
    """
    taken = Rounds(seconds)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        contestants: dict[tuple[str, int], Contestant] = {}
        for name, options in ways.items():
            service = Service(root, precision, Path(scratch), "--workers", str(workers), *options)
            opened.callback(service.close)
            for size in sizes:
                load = Load(Door(service.http, f"/v1/models/{work.model}:rank", PROTOBUF), bodies(work, size))
                opened.callback(load.close)
                contestants[name, size] = Contestant(f"{name} {size}", service, load)
            service.pause()
        for at in range(-1, rounds):  # the first is off the record
            for size in sizes:
                for name in list(ways)[:: 1 if at % 2 else -1]:
                    one = contestants[name, size]
                    one.program.go_on()
                    one.load.closed(1, min(0.3, seconds))
                    for number in CALLERS.get(size, (1,)) if at >= 0 else ():
                        taken.turn(one, f"closed {number}", partial(_closed, number, seconds))
                    one.program.pause()
        blocks = taken.blocks()
    return {
        (size, callers): {name: blocks[f"{name} {size}"][f"closed {callers}"] for name in ways}
        for size in sizes
        for callers in CALLERS.get(size, (1,))
    }


def _closed(callers: int, seconds: float, load: Load) -> Answers:
    return load.closed(callers, seconds)


def show(found: Mapping[tuple[int, int], Mapping[str, Block]], title: str, console: Console) -> None:
    """Prints a table; ratios are to the first way."""
    names = list(next(iter(found.values())))
    table = Table("candidates", "callers", *names, *(f"{name} / {names[0]}" for name in names[1:]), title=title)
    for (size, callers), blocks in found.items():
        told = [
            f"{each.p50_ms:.2f} / {each.p99_ms:.2f} ms, {each.requests_per_s:.0f}/s, {each.cpu_ms:.2f} ms of CPU"
            + (f", failed {each.failed:.1%}" if each.failed else "")
            for each in blocks.values()
        ]
        first = blocks[names[0]]
        ratios = [
            f"p50 x{each.p50_ms / first.p50_ms:.2f}, p99 x{each.p99_ms / first.p99_ms:.2f}, "
            f"answers x{each.requests_per_s / first.requests_per_s:.2f}"
            for each in list(blocks.values())[1:]
        ]
        table.add_row(str(size), str(callers), *told, *ratios)
    console.print(table)


def main() -> None:
    """Writes the workload, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.large_calls", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: 10 million rows")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--precision", choices=("f32", "int8"), default="f32")
    options.add_argument("--piece-us", type=int, nargs="*", help="pieces to compare, beside those of the default")
    given = options.parse_args()
    ways = dict(WAYS) | {f"{each} us": ("--piece-us", str(each)) for each in given.piece_us or ()}
    console, all_cores = Console(width=200), os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        work = write_ranking(Path(scratch), given.scale)
        ask = partial(
            measure,
            Path(scratch),
            work,
            given.rounds,
            given.seconds,
            precision=given.precision,
            workers=given.workers,
            ways=ways,
        )
        where = cores.serve_on_few()
        show(ask(), f"R {given.precision}, workers {given.workers}, {where}", console)
        if len(all_cores) > cores.SERVING:
            os.sched_setaffinity(0, all_cores)
            show(ask(), f"R {given.precision}, workers {given.workers}, {len(all_cores)} cores, load included", console)


if __name__ == "__main__":
    main()
