"""Trains Wide & Deep on impressions in NVIDIA's shape and writes the files of an export.

python -m examples.wide_deep.train [--out DIR] [--variant identity|hashed]
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from examples import requests, trained, training
from examples.wide_deep.data import LABEL, Impressions, read_batches, write_batches
from examples.wide_deep.model import Sizes, WideDeep

ROWS = (
    40_000_000, 30_000_000, 20_000_000, 15_000_000, 10_000_000, 7_000_000, 5_000_000, 3_000_000,
    1_500_000, 1_000_000,
    500_000, 250_000, 200_000, 100_000, 100_000, 50_000, 50_000, 20_000, 20_000, 10_000,
    10_000, 5_000, 5_000, 2_000, 2_000, 1_000, 1_000, 500, 500, 200, 200, 100, 100, 50, 50, 20, 10,
    300_000, 100_000, 10_000,
)  # fmt: skip
"""Number of rows of each category's two tables. The article states the number of the tables, and
their size of 9.1 GB with 17 values per row.
"""


def scaled(rows: int) -> tuple[int, ...]:
    """Returns the rows of every category, none above `rows`."""
    return tuple(min(row_count, rows) for row_count in ROWS)


SIZES = {
    "tiny": Sizes(scaled(40), False, 2, (8,)),
    "small": Sizes(scaled(20_000), False, 16, (128, 64)),
    "article": Sizes(ROWS, False, 16, (1024, 512, 256)),
}
BATCHES = {"tiny": (2, 512), "small": (300, 1_024), "article": (8, 131_072)}
"""The number of records, and of impressions in each, by scale."""
RATE = 0.5
CANDIDATES = 20
VARIANTS = ("identity", "hashed")


def train(out: Path, scale: trained.Scale = "small", variant: str = "identity") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(17)
    sizes = replace(SIZES[scale], hashed=variant == "hashed")
    records, batch = BATCHES[scale]
    data = Impressions(sizes, seed=8)
    start = time.monotonic()
    files = write_batches(data, out / "data", records, batch)
    print(f"{records} records of {batch} impressions written in {time.monotonic() - start:.0f} s")
    model = WideDeep(sizes)
    optimizer = tf.keras.optimizers.legacy.SGD(RATE)
    model.compile(optimizer, loss={"click": tf.keras.losses.BinaryCrossentropy()})
    model.fit(read_batches(files, sizes, batch), verbose=2)
    held_out = data.batch(20 * requests.COUNT[scale])
    clicked = held_out.pop(LABEL)
    predicted = requests.model_outputs(model, held_out, ["click"])["click"]
    print(f"AUC of {len(clicked)} held out: {training.area_under_curve(clicked, predicted):.3f}")
    count = requests.COUNT[scale]
    contexts = data.draw(data.context_names, count)
    candidates = data.draw(data.candidate_names, CANDIDATES * count)
    pairs = requests.pairs(contexts, candidates)
    expected = {"score": requests.model_outputs(model, pairs, ["click"])["click"]}
    reference = trained.ReferenceRequests(requests.rankings(contexts, candidates), expected, pairs)
    trained.write_files(out, Path(__file__).parent, sizes, reference)
    trained.save(out, model=model, optimizer=optimizer)


if __name__ == "__main__":
    trained.command_line("wide_deep", train, VARIANTS)
