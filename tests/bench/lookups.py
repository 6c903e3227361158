"""`python -m tests.bench.lookups`: rows per second out of a mapped table, beside a loop in C over the same file.

A table of 32 values a row is read in calls of 2 600 rows, as one request of workload R reads them: single rows or sums
of ten, uniform ids or Zipf's, by one and by two threads. Three ways take turns in short blocks, the best block of each
counts: `tests/bench/lookups.c`, a program of its own that asks for rows ahead (the best of a few distances); the table
with compiled reads; the table with numpy's. Rows lie in the page cache; what a cold disk costs, and the first seconds
of a service: `python -m tests.bench.cold_rows`.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bundle import manifest, native
from bundle.codecs import STORED
from bundle.tables import TableReader

DIM = 32
CALL, BAG = 2600, 10
"""Rows of one call, and of each bag in it."""
AHEAD = (16, 32, 48, 64, 96, 128)
DTYPES: tuple[manifest.TableDtype, ...] = ("float32", "bfloat16", "int8")
CHUNK = 1 << 16

Step = Callable[[NDArray[np.int64]], object]
Clock = Literal["wall", "processor"]


@dataclass(frozen=True)
class Case:
    """What is measured: values as stored, ids, single rows or bags."""

    dtype: manifest.TableDtype
    ids: str
    bags: bool


def write_table(root: Path, dtype: manifest.TableDtype, rows: int) -> manifest.Table:
    """Writes a table of some values, over and over, and its scales if it is of int8."""
    values = np.random.default_rng(0).integers(-100, 100, (CHUNK, DIM)).astype(np.float32)
    stored = (values.view(np.uint32) >> 16).astype("<u2") if dtype == "bfloat16" else values.astype(STORED[dtype])
    files = [(f"{dtype}.rows", stored)]
    if dtype == "int8":
        files.append((f"{dtype}.scales", np.full((CHUNK, 1), 0.01, "<f4")))
    shards = []
    for name, chunk in files:
        with (root / name).open("wb") as file:
            for first in range(0, rows, CHUNK):
                file.write(chunk[: rows - first].tobytes())
        shards.append((manifest.Shard(file=name, first_row=0, rows=rows, crc32c=0, blocks=()),))
    source = manifest.TableSource(layout="plain", key="k")
    scales = shards[1] if dtype == "int8" else ()
    return manifest.Table(rows=rows, dim=DIM, dtype=dtype, shards=shards[0], scales=scales, source=source)


def write_ids(root: Path, rows: int, count: int) -> dict[str, NDArray[np.int64]]:
    """Writes ids of each kind: uniform ones, and Zipf's, whose frequent rows lie anywhere."""
    random = np.random.default_rng(1)
    ranks = np.exp(random.random(count) * np.log(rows)).astype(np.int64)
    found = {"uniform": random.integers(0, rows, count), "Zipf": ranks * 0x9E3779B1 % rows}
    for name, ids in found.items():
        ids.tofile(root / f"{name}.ids")
    return found


class Loop:
    """The loop in C, in a process of its own."""

    def __init__(self, program: Path, root: Path, case: Case) -> None:
        scales = root / f"{case.dtype}.scales" if case.dtype == "int8" else "-"
        files = [root / f"{case.dtype}.rows", scales, root / f"{case.ids}.ids"]
        command = [program, case.dtype, *files, str(CALL), str(BAG if case.bags else 1)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, ahead: int, threads: int, seconds: float, clock: Clock) -> float:
        """Returns rows per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{ahead} {threads} {seconds} {int(clock == 'processor')}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def compile_loop(root: Path) -> Path:
    """Compiles the loop for this machine."""
    program = root / "lookups"
    source = Path(__file__).with_name("lookups.c")
    subprocess.run(["cc", "-O3", "-march=native", "-pthread", source, "-o", program], check=True)
    return program


def step_of(table: TableReader, bags: bool) -> Step:
    """Returns a call, with an array of its own that it writes into."""
    if not bags:
        single = np.empty((CALL, DIM), np.float32)
        return lambda rows: table.take(rows, single)
    sums, offsets = np.empty((CALL // BAG, DIM), np.float32), np.arange(0, CALL + 1, BAG)
    return lambda rows: table.bags(rows, offsets, "sum", None, sums)


def measure(
    table: TableReader, case: Case, ids: NDArray[np.int64], threads: int, seconds: float, clock: Clock
) -> float:
    """Returns rows per second over all threads."""
    rates: list[float] = []
    now = time.thread_time if clock == "processor" else time.perf_counter
    calls = ids[: ids.size // CALL * CALL].reshape(-1, CALL)

    def run(first: int) -> None:
        step, at, done = step_of(table, case.bags), first, 0
        begun, end = now(), time.perf_counter() + seconds
        while time.perf_counter() < end:
            step(calls[at])
            at, done = (at + 1) % len(calls), done + 1
        rates.append(done * CALL / (now() - begun))

    running = [threading.Thread(target=run, args=(len(calls) // threads * number,)) for number in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return sum(rates)


def rates(
    root: Path, program: Path, rows: int, count: int, rounds: int, seconds: float, clock: Clock
) -> Iterator[tuple[Case, int, dict[str, float]]]:
    """Yields of each case and number of threads rows per second: of the loop, by compiled code, by numpy."""
    ids = write_ids(root, rows, count)
    for dtype in DTYPES:
        page = write_table(root, dtype, rows)
        with ExitStack() as opened:
            tables = {"compiled": TableReader(root, page), "numpy": TableReader(root, page, native=False)}
            for table in tables.values():
                opened.callback(table.close)
                for first in range(0, rows, CHUNK):  # every page has its place in the map, as in the loop's
                    table.read(first, min(CHUNK, rows - first))
            for kind, bags in product(ids, (False, True)):
                case = Case(dtype, kind, bags)
                loop = Loop(program, root, case)
                opened.callback(loop.close)
                for threads in (1, 2):
                    best: dict[str, float] = dict.fromkeys(("loop", *tables), 0.0)
                    for _ in range(rounds):
                        for ahead in AHEAD:
                            best["loop"] = max(best["loop"], loop.measure(ahead, threads, seconds, clock))
                            for name, table in tables.items():  # as often as the loop: the best block counts
                                rate = measure(table, case, ids[kind], threads, seconds, clock)
                                best[name] = max(best[name], rate)
                    yield case, threads, best
        (root / f"{dtype}.rows").unlink()


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.lookups", description=__doc__)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=0.1, help="of each block")
    told = "processor: for a machine that others use too; what threads wait for each other then does not show"
    options.add_argument("--clock", choices=("wall", "processor"), default="wall", help=told)
    given = options.parse_args()
    console = Console(width=140)
    if native.Rows is None:
        console.print(f"rows were not compiled, numpy reads both ways: {native.MISSING}")
    blocks = given.rounds * len(AHEAD)
    title = f"million rows a second by {given.clock} time, {given.rows:,} rows of {DIM} values, best of {blocks} blocks"
    shown = Table("rows", "ids", "what", "threads", "loop in C", "compiled", "numpy", "compiled / loop", title=title)
    scratch = Path("build/bench")
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        root = Path(place)
        program = compile_loop(root)
        for case, threads, best in rates(
            root, program, given.rows, 4_000_000, given.rounds, given.seconds, given.clock
        ):
            what = f"sums of {BAG}" if case.bags else "single"
            millions = [f"{best[name] / 1e6:.1f}" for name in ("loop", "compiled", "numpy")]
            shown.add_row(case.dtype, case.ids, what, str(threads), *millions, f"{best['compiled'] / best['loop']:.2f}")
    console.print(shown)


if __name__ == "__main__":
    main()
