"""Exports a whole Flax model with large tables in Orbax, beside `cp -r` of its checkpoint. Then a
version in which 2 % of the rows differ, beside an export that shares nothing.

python -m benchmarks.exporter.orbax_model [--gib 8] [--rounds 2] [--dir DIR]

The model is that of examples/flax_dlrm with two large tables. Its checkpoint is written as Orbax
writes the arrays of many devices: OCDBT, zarr 2, a chunk of zstd for each device. The contestants
take turns. Each reads from a cold page cache if this process may clear it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
import tensorstore
from rich.console import Console

from benchmarks.exporter.commands import EXPORT, run
from benchmarks.report import Sheet
from examples import criteo, flax_dlrm
from examples.columns import sent
from examples.flax_dlrm.model import DLRM, Sizes, example
from export.report_text import size_text

DIM = 64
BAND_BYTES = 64 << 20
"""A chunk: what one device held of a table."""
LARGE = (0, 9)
"""The categories whose tables are large."""
SEGMENT_BYTES = 64 << 20
"""Of the tables of versions that share segments."""
CHANGED_SHARE = 0.02
EXAMPLES = 64
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exporter.orbax_model", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--gib", type=float, default=8.0, help="size of the tables (default 8)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default 2)")
    parser.add_argument("--dir", type=Path, help="where to work; a temporary directory by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        size = int(arguments.gib * (1 << 30))
        write_model(folder, size)
        measure(folder, arguments.rounds)
        measure_versions(folder, size, arguments.rounds)


def write_model(folder: Path, size: int) -> None:
    """Writes model file, recipe, examples and checkpoint, with random parameters."""
    rows = list(criteo.scaled(1_000, 1_000))
    for category in LARGE:
        rows[category] = size // len(LARGE) // (4 * DIM)
    sizes = Sizes(tuple(rows), DIM, (64, 32), (128, 64))
    source = Path(flax_dlrm.__file__).parent
    for file in ("model.py", "recipe.toml"):
        shutil.copyfile(source / file, folder / file)
    (folder / "sizes.json").write_text(json.dumps(asdict(sizes)))

    data = criteo.Clicks(sizes.rows, [1] * len(rows), seed=5)
    examples = {**data.contexts(EXAMPLES), **data.candidates(EXAMPLES)}
    lines = [json.dumps(sent(examples, position)) for position in range(EXAMPLES)]
    (folder / "examples.jsonl").write_text("\n".join(lines) + "\n")

    shapes = jax.eval_shape(DLRM(sizes).init, jax.random.key(0), example(sizes))
    write_checkpoint(folder / "checkpoint", {"params": shapes})


def write_checkpoint(directory: Path, tree: Any) -> None:
    """Writes random arrays of these shapes, one band of rows after the other."""
    random = np.random.default_rng(5)
    directory.mkdir()
    described = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        keys = [step.key for step in path]
        steps = [{"key": key, "key_type": 2} for key in keys]
        value = {"value_type": "jax.Array", "skip_deserialize": False}
        described[str(tuple(keys))] = {"key_metadata": steps, "value_metadata": value}
        array = _created(directory, ".".join(keys), leaf.shape)
        for first, last in _bands(leaf.shape):
            shape = (last - first, *leaf.shape[1:])
            array[first:last].write(random.random(shape, np.float32) - 0.5).result()
    page = {"tree_metadata": described, "use_ocdbt": True, "use_zarr3": False}
    page["store_array_data_equal_to_fill_value"] = True
    (directory / "_METADATA").write_text(json.dumps(page))


def _created(directory: Path, name: str, shape: tuple[int, ...]) -> Any:
    first, last = next(_bands(shape))
    metadata = {
        "shape": shape,
        "chunks": [last - first, *shape[1:]],
        "dtype": "<f4",
        "compressor": {"id": "zstd", "level": 1},
    }
    spec = {**_spec(directory, name), "metadata": metadata, "create": True}
    return tensorstore.open(spec).result()


def _opened(directory: Path, name: str) -> Any:
    return tensorstore.open(_spec(directory, name)).result()


def _spec(directory: Path, name: str) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{directory}/"}
    kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    return {"driver": "zarr", "kvstore": kvstore}


def _bands(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yields the first row of each chunk, and the row after its last."""
    row_bytes = 4 * int(np.prod(shape[1:]))
    rows = max(BAND_BYTES // row_bytes, 1)
    for first in range(0, shape[0], rows):
        yield first, min(first + rows, shape[0])


def measure(folder: Path, rounds: int) -> None:
    """Lets `cp` and the export take turns, and prints medians."""
    seen: dict[str, list[float]] = {name: [] for name in ("cp", "tables", "export", "memory")}
    for _ in range(rounds):
        clear_cache()
        copy = 'cp -r --reflink=never "$0" "$1" && sync'
        seen["cp"].append(run(["sh", "-c", copy, folder / "checkpoint", folder / "copy"]).seconds)
        shutil.rmtree(folder / "copy")

        cold = clear_cache()
        ran = run([*EXPORT, "run", folder / "recipe.toml", "--json"])
        seen["export"].append(ran.seconds)
        seen["tables"].append(float(json.loads(ran.out)["seconds"]["tables"]))
        seen["memory"].append(ran.peak_bytes)
        bundle = size_of(folder / "bundles")
        shutil.rmtree(folder / "bundles")
    rows = [
        ["checkpoint, bundle", f"{size_text(size_of(folder / 'checkpoint'))}, {size_text(bundle)}"],
        ["page cache", "cold" if cold else "as the machine left it"],
        ["cp -r and sync, s", _figures(seen["cp"])],
        ["tables of the export, s", _figures(seen["tables"])],
        ["whole export, s", _figures(seen["export"])],
        ["cp / tables", _ratio(seen["cp"], seen["tables"])],
        ["cp / whole export", _ratio(seen["cp"], seen["export"])],
        ["largest process", size_text(int(max(seen["memory"])))],
    ]
    Sheet("a Flax model in Orbax", ["what", "found"], rows).show(Console(width=100))


def measure_versions(folder: Path, size: int, rounds: int) -> None:
    """Changes a range of rows of one table, exports further versions, each in a root with the first
    version, and prints medians.
    """
    recipe = folder / "recipe.toml"
    tables = [f"table_c{category + 1}" for category in LARGE]
    segments = [f"tables.{table}.segment_rows = {SEGMENT_BYTES // (4 * DIM)}" for table in tables]
    recipe.write_text("\n".join([*segments, recipe.read_text()]))
    run([*EXPORT, "run", recipe])
    changed_bytes = change_rows(folder, size)
    seconds: dict[str, list[float]] = {"all": [], "changed": []}
    for _ in range(rounds):
        for name, option in (("all", "--no-reuse"), ("changed", "--reuse")):
            clear_cache()
            seconds[name].append(run([*EXPORT, "run", recipe, option]).seconds)
            first, second = sorted((folder / "bundles" / "flax_dlrm").iterdir())
            written_bytes = size_of_new(first, second)
            shutil.rmtree(second)
    rows = [
        ["rows changed", size_text(changed_bytes)],
        ["bytes written", size_text(written_bytes)],
        ["bytes written / changed", f"{written_bytes / changed_bytes:.2f}"],
        ["export that shares nothing, s", _figures(seconds["all"])],
        ["export that shares, s", _figures(seconds["changed"])],
        ["time / that of the whole", _ratio(seconds["changed"], seconds["all"])],
    ]
    Sheet("a version with 2 % of other rows", ["what", "found"], rows).show(Console(width=100))


def change_rows(folder: Path, size: int) -> int:
    """Changes a range of rows of the first large table; returns its bytes."""
    keys = json.loads((folder / "checkpoint" / "_METADATA").read_text())["tree_metadata"]
    rows = size // len(LARGE) // (4 * DIM)
    for steps in keys.values():
        name = ".".join(step["key"] for step in steps["key_metadata"])
        array = _opened(folder / "checkpoint", name)
        if array.shape == (rows, DIM):
            count = int(CHANGED_SHARE * size) // (4 * DIM)
            values = np.random.default_rng(6).random((count, DIM), np.float32) - 0.5
            array[:count].write(values).result()
            return int(values.nbytes)
    raise RuntimeError("the checkpoint has no large table")


def size_of_new(first: Path, second: Path) -> int:
    """Returns the bytes of the files of a version that are no links to those of another one."""
    inodes = {path.stat().st_ino for path in first.rglob("*") if path.is_file()}
    files = [path.stat() for path in second.rglob("*") if path.is_file()]
    return sum(status.st_size for status in files if status.st_ino not in inodes)


def clear_cache() -> bool:
    """Clears the page cache; returns whether it could."""
    try:
        run(["sync"])
        DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True


def size_of(directory: Path) -> int:
    """Returns the bytes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _figures(seconds: list[float]) -> str:
    return f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def _ratio(first: list[float], second: list[float]) -> str:
    return (
        f"{median(first_s / second_s for first_s, second_s in zip(first, second, strict=True)):.2f}"
    )


if __name__ == "__main__":
    main()
