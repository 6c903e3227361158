"""What is measured: copies beside `cp`, exports beside TensorFlow's own, memory by the size of a
table.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.exporter import big_checkpoints
from benchmarks.exporter.big_checkpoints import BigTable, change_rows, write_plain, write_stack
from benchmarks.exporter.commands import EXPORT, Ran, run
from benchmarks.services import Checkout, Service

POLL_S = 0.05
"""Time between two requests for the version that is served."""


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
    """Returns the seconds of `cp` of a file, and of bringing it to the disk: an export does not end
    before.
    """
    target.unlink(missing_ok=True)
    return run(["sh", "-c", 'cp --reflink=never "$0" "$1" && sync "$1"', source, target]).seconds


def contest_copies(
    directory: Path, size: int, cores: tuple[int, ...], rounds: int
) -> dict[str, dict[str, float]]:
    """Copies each layout beside `cp` of its data file, in turns.

    Returns:
      By layout: bytes, the median seconds of `cp`, of the copy and of the whole command, the median
      of the rounds' ratios `cp / copy`, and the peak of the largest process in bytes.
    """
    layouts: dict[str, Callable[[Path], BigTable]] = {
        "contiguous, one slice": partial(write_plain, size=size),
        "contiguous, 8 slices": partial(write_plain, size=size, slices=8),
    }
    layouts |= {
        f"SparseCore, {count} cores": partial(write_stack, size=size, cores=count)
        for count in cores
    }
    results = {}
    for name, write in layouts.items():
        source_directory = directory / "source"
        table = write(source_directory)
        seen: dict[str, list[float]] = defaultdict(list)
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
        shutil.rmtree(source_directory)
        ratios = [plain / copy_s for plain, copy_s in zip(seen["cp"], seen["copy"], strict=True)]
        results[name] = {what: median(values) for what, values in seen.items()} | {
            "bytes": float(table.bytes),
            "ratio": median(ratios),
        }
    return results


def _touch(path: Path, size: int) -> None:
    """Uses as much memory as a file of that size needs, and frees it. A virtual machine's host
    takes back what is not used for some seconds and gives it page by page again, which costs more
    than the copy.
    """
    block = bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, len(block)):
            file.write(block)
    path.unlink()


def contest_tensorflow(directory: Path, size: int, rounds: int) -> dict[str, Ran]:
    """Exports one checkpoint of TensorFlow's by each exporter, in turns; returns medians until
    everything lies on the disk.
    """
    rows = size // big_checkpoints.ROW_BYTES
    tensorflow_directory = directory / "tensorflow"
    out = directory / "out"
    saved = directory / "tensorflow" / "saved"
    tensorflow_directory.mkdir()
    peer = [sys.executable, "-m", "benchmarks.exporter.tensorflow_path"]
    run([*peer, "write", tensorflow_directory, str(rows)])
    table = BigTable(
        tensorflow_directory,
        rows,
        size,
        tensorflow_directory / "ckpt.data-00000-of-00001",
        ("--table", "t=model.table"),
    )
    exporters: dict[str, tuple[Callable[[], Ran], Path]] = {
        "TensorFlow, tf.Variable(zeros)": (
            lambda: run([*peer, "zeros", tensorflow_directory, str(rows)]),
            saved,
        ),
        "TensorFlow, UninitializedVariable": (
            lambda: run([*peer, "uninitialized", tensorflow_directory, str(rows)]),
            saved,
        ),
        "rowcast-export tables": (lambda: exported(table, out)[0], out),
        "rowcast-export tables --tables link": (
            lambda: exported(table, out, "--tables", "link")[0],
            out,
        ),
    }
    seen: dict[str, list[Ran]] = defaultdict(list)
    for _ in range(rounds):
        for name, (export, written) in exporters.items():
            ran = export()
            sync_s = run(["sync", *(file for file in written.rglob("*") if file.is_file())]).seconds
            seen[name].append(replace(ran, seconds=ran.seconds + sync_s))
            shutil.rmtree(written)
    shutil.rmtree(tensorflow_directory)
    return {
        name: Ran(
            median(run.seconds for run in every),
            int(median(run.peak_bytes for run in every)),
            "",
        )
        for name, every in seen.items()
    }


def contest_sizes(directory: Path, sizes: Mapping[str, int]) -> dict[str, dict[str, Ran]]:
    """Takes tables that are holes, so that the disk holds no terabyte, through inspection, plan and
    link.
    """
    results = {}
    for name, size in sizes.items():
        hole_directory = directory / "hole"
        out = directory / "out"
        table = write_plain(hole_directory, size, hole=True)
        results[name] = {
            "inspect": run([*EXPORT, "inspect", hole_directory, "--json"]),
            "plan": run(
                tables_command(table, out, "--tables", "link", "--plan")
            ),  # a copy may not fit the disk
            "link": exported(table, out, "--tables", "link")[0],
        }
        shutil.rmtree(out)
        shutil.rmtree(hole_directory)
    return results


def time_delta(directory: Path, size: int, changed_rows: int) -> dict[str, float]:
    """Serves a table, changes some of its rows in the checkpoint, and exports it again.

    Returns:
      The seconds of the export of the changed checkpoint, those until a service has the version,
      and the bytes that the export wrote.
    """
    table = write_plain(directory / "source", size)
    out = directory / "out"
    exported(table, out)
    change_rows(table, changed_rows)
    options = ("--poll-interval-s", "1", "--workers", "1")
    service = Service(Checkout("this"), out, directory, "f32", *options)
    try:
        before = _bytes_below(out)
        begun = time.perf_counter()
        ran = run(tables_command(table, out))
        while _served_version(service) < 2:
            time.sleep(POLL_S)
        return {
            "export": ran.seconds,
            "served": time.perf_counter() - begun,
            "bytes": float(_bytes_below(out) - before),
        }
    finally:
        service.close()
        shutil.rmtree(table.directory)
        shutil.rmtree(out)


def _served_version(service: Service) -> int:
    url = f"http://127.0.0.1:{service.http}/v1/models"
    with urllib.request.urlopen(url, timeout=60) as response:
        document = json.load(response)
    versions = [version["version"] for model in document["models"] for version in model["versions"]]
    return int(max(versions))


def _bytes_below(directory: Path) -> int:
    """Returns the size of the files below a directory; what has several names counts once."""
    sizes = {}
    for path in directory.rglob("*"):
        status = path.stat()
        if path.is_file():
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
