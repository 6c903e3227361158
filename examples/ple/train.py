"""Trains PLE on impressions of a feed, and writes the files of an export.

python -m examples.ple.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import parquet

from examples import requests, trained, training
from examples.columns import Columns, Ragged, size, take
from examples.ple.data import Feed
from examples.ple.model import PLE, TASKS, Sizes

SIZES = {
    "tiny": Sizes(200, 100, 32, 16, 8, 1, (8, 8), 8),
    "small": Sizes(1_200_000, 50_000, 4_096, 512, 16, 2, (64, 32), 16),
    "article": Sizes(50_000_000, 1_000_000, 65_536, 4_096, 32, 2, (256, 128), 64),
}
IMPRESSIONS = {"tiny": 2_000, "small": 300_000, "article": 5_000_000}
BATCH = 1_000
CANDIDATES = 20
"""Number of candidates of a request."""
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"heads": ["click"]},
    {"heads": ["watch"], "formula": "watch"},
    {"heads": list(TASKS), "formula": "0.5 * click + 0.3 * like + 0.2 * watch"},
)
"""Options of the requests, in turn: the recipe's order, one head beside it, one head alone, another
order.
"""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(13)
    sizes = SIZES[scale]
    n = IMPRESSIONS[scale]
    optimizers = training.optimizers()
    model = PLE(sizes, optimizers.tables)
    feed = Feed(sizes.users, sizes.items, sizes.authors, sizes.tags, seed=6)
    features, labels = feed.impressions(n)
    cross_entropy = tf.keras.losses.BinaryCrossentropy()

    def loss_of(columns: Any, labels: Any) -> Any:
        outputs = model(columns)
        return tf.add_n([cross_entropy(labels[task], outputs[task]) for task in TASKS])

    training.fit(model, optimizers, loss_of, training.shuffled(features, labels, BATCH))
    held_out, held_out_labels = feed.impressions(n // 10)
    predicted = requests.model_outputs(model, held_out, TASKS)
    for task in ("click", "like"):
        auc = training.area_under_curve(held_out_labels[task], predicted[task])
        print(f"AUC of {n // 10} held out, {task}: {auc:.3f}")
    contexts = feed.contexts(requests.COUNT[scale])
    reference, stored = reference_requests(model, feed, contexts)
    trained.write(out, Path(__file__).parent, sizes, model, optimizers, reference)
    write_store(feed.items.columns, out / "items.parquet")
    write_store(stored, out / "users.parquet")


def reference_requests(
    model: PLE, feed: Feed, contexts: Columns
) -> tuple[trained.ReferenceRequests, Columns]:
    """Returns requests that name items by id, with the model's outputs; and the stored users.

    Half of the users are named by id, too, and only their hour is sent.
    """
    count = size(contexts)
    items = feed.draw_items(CANDIDATES * count)
    pairs = requests.pairs(contexts, take(feed.items.columns, items))
    heads = requests.model_outputs(model, pairs, TASKS)
    bodies = requests.rankings(contexts, {"candidate_ids": items}, OPTIONS)
    _, firsts = np.unique(contexts["user_id"], return_index=True)  # type: ignore[call-overload]
    for position in firsts[::2]:
        context = bodies[position]["context"]
        bodies[position] |= {"context_id": context["user_id"], "context": {"hour": context["hour"]}}
    stored = {name: contexts[name][firsts] for name in ("user_id", "history")}
    click, like, watch = (heads[task].astype(np.float64) for task in TASKS)
    weighted = 0.5 * click + 0.3 * like + 0.2 * watch
    by_recipe = click**0.7 * like**0.3
    option_numbers = np.repeat(np.arange(count) % len(OPTIONS), CANDIDATES)
    scores = np.choose(option_numbers, [by_recipe, by_recipe, watch, weighted])
    return trained.ReferenceRequests(
        bodies, {**heads, "score": scores.astype(np.float32)}, pairs
    ), stored


def write_store(columns: Columns, path: Path) -> None:
    """Writes a store of items or users: requests that name them need not send their features."""
    arrays = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            arrays[name] = pa.ListArray.from_arrays(column.offsets, column.values)
        else:
            arrays[name] = pa.array(column)
    parquet.write_table(pa.table(arrays), path)


if __name__ == "__main__":
    trained.command_line("ple", train)
