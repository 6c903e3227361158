"""What is measured: copies beside `cp` and the machine's limits, exports beside TensorFlow's own, memory by size."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import google_crc32c
import numpy as np

from tests.bench.exporter import big_checkpoints
from tests.bench.exporter.big_checkpoints import BigTable, write_plain, write_stack
from tests.bench.exporter.commands import EXPORT, Ran, run

PROBE = """
import json, sys
from pathlib import Path
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Statements
from export.tables.plan import Writing, plan_tables
from export.tables.shards import carry_out
directory, out, rows = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
checkpoint = open_checkpoint(directory)
inventory = recognise(checkpoint, Statements({"t": "t"}))
plan = plan_tables(checkpoint, inventory, out, writing={"t": Writing(rows)})
for which in (0, len(plan.tasks) // 2, -1):
    carry_out(plan.tasks[which])
print(json.dumps({"tasks": len(plan.tasks)}))
"""


@dataclass(frozen=True)
class Copied:
    """Seconds of one contestant, those of bringing its files to the disk behind it, and its largest process' memory."""

    seconds: float
    sync_s: float
    peak_bytes: int

    @property
    def whole_s(self) -> float:
        """Seconds until everything lies on the disk."""
        return self.seconds + self.sync_s


def tables_command(table: BigTable, out: Path, *options: str) -> list[str | Path]:
    """Returns the command that exports a table."""
    return [*EXPORT, "tables", table.directory, out, *table.options, "--json", *options]


def exported(table: BigTable, out: Path, *options: str) -> tuple[Ran, float]:
    """Exports a table; returns what the command did and the seconds of its copy alone."""
    shutil.rmtree(out, ignore_errors=True)
    ran = run(tables_command(table, out, *options))
    return ran, float(json.loads(ran.out)["seconds"]["tables"])


def warm_up(directory: Path) -> None:
    """Runs each command once, which leaves what an installed package has: compiled modules."""
    table = write_plain(directory / "warm", 1 << 20)
    for options in ((), ("--tables", "link")):
        exported(table, directory / "out", *options)
    run([*EXPORT, "inspect", table.directory])
    shutil.rmtree(table.directory)
    shutil.rmtree(directory / "out")


def copied(source: Path, target: Path) -> float:
    """Returns the seconds of `cp` of a file, and of bringing it to the disk: an export does not end before."""
    target.unlink(missing_ok=True)
    return run(["sh", "-c", 'cp --reflink=never "$0" "$1" && sync "$1"', source, target]).seconds


def contest_copies(directory: Path, size: int, cores: tuple[int, ...], rounds: int) -> dict[str, dict[str, float]]:
    """Copies each layout beside `cp` of its data file, in turns.

    Returns:
      By layout: bytes, the median seconds of `cp`, of the copy and of the whole command, the median of the rounds'
      ratios `cp / copy`, and the peak of the largest process in bytes.
    """
    layouts: dict[str, Callable[[Path], BigTable]] = {
        "contiguous, one slice": lambda place: write_plain(place, size),
        "contiguous, 8 slices": lambda place: write_plain(place, size, slices=8),
    }
    layouts |= {f"SparseCore, {count} cores": _stack_writer(size, count) for count in cores}
    results = {}
    for name, write in layouts.items():
        place = directory / "source"
        table = write(place)
        seen: dict[str, list[float]] = defaultdict(list)
        _read(table.data)  # neither begins with a cold file
        for _ in range(rounds):
            _touch(directory / "touched", table.bytes)
            seen["cp"].append(copied(table.data, directory / "copy"))
            (directory / "copy").unlink()
            _touch(directory / "touched", table.bytes)
            ran, seconds = exported(table, directory / "out")
            shutil.rmtree(directory / "out")
            seen["copy"].append(seconds)
            seen["command"].append(ran.seconds)
            seen["peak"].append(ran.peak_bytes)
        shutil.rmtree(place)
        ratios = [plain / own for plain, own in zip(seen["cp"], seen["copy"], strict=True)]
        results[name] = {what: median(values) for what, values in seen.items()} | {
            "bytes": float(table.bytes),
            "ratio": median(ratios),
        }
    return results


def _touch(path: Path, size: int) -> None:
    """Uses as much memory as a file of that size needs, and frees it. A virtual machine's host takes back what is not
    used for some seconds and gives it page by page again, which costs more than the copy."""
    block = bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, len(block)):
            file.write(block)
    path.unlink()


def _stack_writer(size: int, cores: int) -> Callable[[Path], BigTable]:
    return lambda place: write_stack(place, size, cores)


def contest_tensorflow(directory: Path, size: int, rounds: int) -> dict[str, Copied]:
    """Exports one checkpoint of TensorFlow's by each way, in turns; medians.

    An export of ours syncs what it writes before it ends. What another way has left to the kernel is synced after it,
    and reported apart.
    """
    rows = size // big_checkpoints.ROW_BYTES
    place = directory / "tensorflow"
    place.mkdir()
    peer = [sys.executable, "-m", "tests.bench.exporter.tensorflow_path"]
    run([*peer, "write", place, str(rows)])
    table = BigTable(place, rows, size, place / "ckpt.data-00000-of-00001", ("--table", "t=model.table"))
    ways: dict[str, Callable[[], tuple[Ran, Path]]] = {
        "TensorFlow, tf.Variable(zeros)": lambda: (run([*peer, "zeros", place, str(rows)]), place / "saved"),
        "TensorFlow, UninitializedVariable": lambda: (run([*peer, "uninitialized", place, str(rows)]), place / "saved"),
        "rowcast-export tables": lambda: (exported(table, directory / "out")[0], directory / "out"),
        "rowcast-export tables --tables link": lambda: (
            exported(table, directory / "out", "--tables", "link")[0],
            directory / "out",
        ),
    }
    seen: dict[str, list[tuple[Ran, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, export in ways.items():
            ran, written = export()
            seen[name].append((ran, run(["sync", *(file for file in written.rglob("*") if file.is_file())]).seconds))
            shutil.rmtree(written)
    shutil.rmtree(place)
    return {
        name: Copied(
            median(ran.seconds for ran, _ in every),
            median(seconds for _, seconds in every),
            int(median(ran.peak_bytes for ran, _ in every)),
        )
        for name, every in seen.items()
    }


def contest_sizes(directory: Path, sizes: Mapping[str, int]) -> dict[str, dict[str, Ran]]:
    """Takes tables that are holes, so that the disk holds no terabyte, through every step; the last size is not copied
    whole but in ranges at its start, middle and end."""
    results: dict[str, dict[str, Ran]] = {}
    for name, size in sizes.items():
        place, out = directory / "hole", directory / "out"
        table = write_plain(place, size, hole=True)
        steps = {"inspect": run([*EXPORT, "inspect", place, "--json"])}
        steps["plan"] = run(tables_command(table, out, "--tables", "link", "--plan"))  # a copy may not fit the disk
        steps["link"] = exported(table, out, "--tables", "link")[0]
        if name == list(sizes)[-1]:
            steps["three ranges"] = run([sys.executable, "-c", PROBE, place, out, str((32 << 20) // 512)])
        else:
            steps["copy"] = exported(table, out)[0]
        shutil.rmtree(out)
        shutil.rmtree(place)
        results[name] = steps
    return results


def limits(directory: Path, size: int) -> dict[str, float]:
    """Returns what the machine can do at most, bytes per second: memory, checksums, the disk."""
    block = np.zeros(64 << 20, np.uint8)
    other = np.empty_like(block)
    piece = np.ones(256 << 10, np.uint8)
    found = {
        "memory copy": _rate(lambda: np.copyto(other, block), block.size),
        "crc32c, one core": _rate(lambda: google_crc32c.value(piece), piece.size),
    }
    target = directory / "written"

    def write() -> None:
        with target.open("wb", buffering=0) as file:
            for _ in range(size // block.size):
                file.write(block.data)
            os.fsync(file.fileno())

    found["write and sync"] = _rate(write, size - size % block.size, times=2)
    target.unlink()
    return found


def _rate(work: Callable[[], Any], size: int, times: int = 20) -> float:
    best = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return size / best


def _read(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(64 * mmap.PAGESIZE * 64):
            pass
