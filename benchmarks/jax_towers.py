"""Compares towers that the exporter made of functions in JAX with the same towers written in
TensorFlow: how long the compiled towers take, in alternation.

python -m benchmarks.jax_towers, after
make demo-models ONLY="dlrm flax_dlrm flax_two_tower keras3_jax"

Towers with attention need no example: attention_towers.py has both forms of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import attention_towers
from bundle.storage.catalog import read_manifest
from examples.trained import BUILD
from runtime.tower import Array, Tower
from runtime.towers import open_tower

ROUNDS = 40
RUN_S = 0.02
"""Time for which a tower runs in each round, about."""
BATCHES = (1, 200)


@dataclass(frozen=True)
class Pair:
    """A tower of two examples with the same layers: of a function in JAX, and of TensorFlow."""

    tower: str
    in_jax: str
    in_tensorflow: str


PAIRS = (
    Pair("ranking", "flax_dlrm", "dlrm"),
    Pair("query", "flax_two_tower", "keras3_jax"),
    Pair("candidate", "flax_two_tower", "keras3_jax"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 2 if an example has not been exported."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.jax_towers", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--models", type=Path, default=BUILD, help="where the examples were built")
    models = parser.parse_args(arguments).models
    table = Table(title="compiled towers (LiteRT f32), ms per call")
    for column in ("tower", "in JAX", "in TensorFlow", "examples", "JAX", "TensorFlow", "ratio"):
        table.add_column(column, no_wrap=True)

    try:
        examples = [
            (
                pair,
                open_example(models, pair.in_jax, pair.tower),
                open_example(models, pair.in_tensorflow, pair.tower),
            )
            for pair in PAIRS
        ]
    except FileNotFoundError as problem:
        sys.stderr.write(f"{problem.filename} is missing; run make demo-models\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        for attention in attention_towers.open_pairs(Path(folder)):
            labels = (attention.name, "Flax", "by hand")
            add_rows(table, labels, attention.in_jax, attention.in_tensorflow)
    for pair, in_jax, in_tensorflow in examples:
        labels = (pair.tower, pair.in_jax, pair.in_tensorflow)
        add_rows(table, labels, in_jax, in_tensorflow)
    Console(width=100).print(table)
    return 0


def add_rows(table: Table, labels: Sequence[str], in_jax: Tower, in_tensorflow: Tower) -> None:
    """Adds a row for each size of a batch."""
    for batch in BATCHES:
        jax_ms, tensorflow_ms, ratio = compare(in_jax, in_tensorflow, batch)
        cells = (f"{jax_ms:.3f}", f"{tensorflow_ms:.3f}", f"{ratio:.2f}")
        table.add_row(*labels, str(batch), *cells)


def open_example(models: Path, name: str, tower: str) -> Tower:
    """Opens a whole tower of an example's newest bundle."""
    root = models / name / "bundles"
    versions = [int(path.name) for path in (root / name).iterdir() if path.name.isdecimal()]
    directory = root / name / str(max(versions))
    return open_tower(directory, read_manifest(directory).towers[tower])


def compare(first: Tower, second: Tower, batch: int) -> tuple[float, float, float]:
    """Returns the median times of both towers in milliseconds, and the median of their ratios."""
    inputs = [synthetic(tower, batch) for tower in (first, second)]
    times = np.array(
        [[time_ms(first, inputs[0]), time_ms(second, inputs[1])] for _ in range(1 + ROUNDS)][
            1:
        ]  # the first round warms up
    )
    return median(times[:, 0]), median(times[:, 1]), median(times[:, 0] / times[:, 1])


def time_ms(tower: Tower, inputs: Mapping[str, Array]) -> float:
    """Returns the mean time of a call."""
    calls = 0
    began = time.perf_counter()
    while time.perf_counter() - began < RUN_S:
        tower.run(inputs)
        calls += 1
    return 1e3 * (time.perf_counter() - began) / calls


def synthetic(tower: Tower, batch: int) -> dict[str, Array]:
    """Returns inputs of a number of examples: ones."""
    return {
        tensor.name: np.ones(
            [batch if size is None else size for size in tensor.shape], tensor.dtype
        )
        for tensor in tower.inputs
    }


if __name__ == "__main__":
    sys.exit(main())
