"""`python -m tests.bench.cold_rows`: the first seconds of a table whose file is on the disk, or in memory but unmapped.

One caller reads 2 600 rows a call, Zipf's ids, one call after the other, from a table of 32 float32 a row that the
kernel was made to forget. Told are the calls answered in each second and the longest call, for each way:

- kernel: a plain map, read ahead as the kernel sees fit (the window is the disk's `read_ahead_kb`);
- faults: `TableReader` with numpy, one page at a fault (MADV_RANDOM);
- told: `TableReader` with compiled reads, which tells the kernel of all pages of a call while the table is cold;
- warmed: the same while `TableReader.warm` brings the table in, at a rate a second.

Rows in memory: `python -m tests.bench.lookups`.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bundle.manifest import Table as TablePage
from bundle.tables import TableReader
from tests.bench.lookups import CALL, DIM, write_ids, write_table

Rows = NDArray[np.int64]
RATES = (256 << 20, 1 << 30)


@dataclass(frozen=True)
class Start:
    """What one way did: calls answered in each second from its first call on, the longest call, one of the last."""

    per_second: list[int]
    longest_ms: float
    last_ms: float


def forget(path: Path) -> None:
    """Has the kernel drop a file from memory; nobody may have it mapped."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(path: Path) -> None:
    """Has the kernel read a file whole."""
    with path.open("rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def run(read: Callable[[Rows], object], ids: Rows, seconds: float) -> Start:
    """Makes calls one after the other, over and over once all ids were asked for."""
    per_second, times = [0] * math.ceil(seconds), []
    begun = time.perf_counter()
    for call in cycle(ids[: ids.size // CALL * CALL].reshape(-1, CALL)):
        at = time.perf_counter()
        read(call)
        end = time.perf_counter()
        times.append((end - at) * 1e3)
        if end - begun >= seconds:
            return Start(per_second, max(times), float(np.median(times[-20:])))
        per_second[int(end - begun)] += 1
    raise ValueError("ids of one call at least are needed")


def warmed(table: TableReader, bytes_per_s: int) -> threading.Thread:
    """Begins to warm a table as a service does."""

    def warm() -> None:
        for size in table.warm():
            time.sleep(size / bytes_per_s)

    thread = threading.Thread(target=warm)
    thread.start()
    return thread


def starts(root: Path, page: TablePage, ids: Rows, seconds: float) -> Iterator[tuple[str, Start]]:
    """Yields each way with what it did."""
    path = root / page.shards[0].file
    for cached in (False, True):
        place = "memory" if cached else "disk"

        def fresh(cached: bool = cached) -> None:
            forget(path)
            if cached:
                remember(path)

        fresh()
        plain = np.memmap(path, np.float32, "r", shape=(page.rows, DIM))
        yield f"{place}, kernel", run(lambda rows, plain=plain: plain.take(rows, axis=0), ids, seconds)  # type: ignore[misc]
        del plain
        for name, native in (("faults", False), ("told", True)):
            fresh()
            table = TableReader(root, page, native=native)
            yield f"{place}, {name}", run(table.take, ids, seconds)
            table.close()
        for rate in RATES:
            fresh()
            table = TableReader(root, page)
            warming = warmed(table, rate)
            found = run(table.take, ids, seconds)
            table.close()
            warming.join()
            yield f"{place}, warmed at {rate >> 20} MiB/s", found


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.cold_rows", description=__doc__)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--seconds", type=int, default=6, help="of each way")
    given = options.parse_args()
    scratch = Path("build/bench")
    scratch.mkdir(parents=True, exist_ok=True)
    seconds = [f"second {number + 1}" for number in range(given.seconds)]
    size = given.rows * DIM * 4 >> 20
    title = f"calls of {CALL} rows answered by a table of {size} MiB; the file lies at first on the disk, or in memory"
    shown = Table("file, way", *seconds, "longest, ms", "at the end, ms", title=title)
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        root = Path(place)
        page = write_table(root, "float32", given.rows)
        ids = write_ids(root, given.rows, 10_000_000)["Zipf"]
        for way, start in starts(root, page, ids, given.seconds):
            counts = [f"{count:,}" for count in start.per_second]
            shown.add_row(way, *counts, f"{start.longest_ms:.0f}", f"{start.last_ms:.3f}")
    Console(width=150).print(shown)


if __name__ == "__main__":
    main()
