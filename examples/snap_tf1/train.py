"""Trains the ad ranker as a program of TF1, and writes the files of an export.

python -m examples.snap_tf1.train [--out DIR]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from examples import requests, trained, training
from examples.columns import Columns, size, take
from examples.snap_tf1.data import Impressions, packed, write_ads, write_inputs
from examples.snap_tf1.model import HEADS, SEEN, Sizes, predictions

v1 = tf.compat.v1


def rows(count: int, most: int) -> tuple[int, ...]:
    """Returns the numbers of rows of `count` tables: from 10, such as countries, to `most`."""
    return tuple(int(10 * (most / 10) ** (number % 50 / 49)) for number in range(count))


SIZES = {
    "tiny": Sizes(rows(40, 40), rows(4, 40), 1, 30, 50, 3, 2, 4, 2, 4, (8,), 3, 250),
    "small": Sizes(
        rows(1_600, 20_000),
        rows(300, 5_000),
        10,
        10_000,
        20_000,
        5,
        4,
        16,
        2,
        32,
        (128, 64),
        4,
        1 << 17,
    ),
    "article": Sizes(
        rows(1_600, 2_000_000),
        rows(300, 100_000),
        10,
        100_000,
        1_000_000,
        10,
        8,
        32,
        3,
        64,
        (512, 256),
        10,
        1 << 20,
    ),
}
STEPS = {"tiny": 3, "small": 60, "article": 60}
BATCH = {"tiny": 64, "small": 2_048, "article": 2_048}
CANDIDATES = 10
BY_ID = 4
"""Of this number of requests, one sends the features of its ads; the others name ads by id."""


class Program:
    """The graph of a training, its session, and its placeholders."""

    def __init__(self, sizes: Sizes) -> None:
        """Builds the graph of the training, on one tensor with all features side by side."""
        self._names = list(sizes.features)
        widths = [sizes.seen if name in SEEN else 1 for name in self._names]
        self._packed = v1.placeholder(tf.int64, [None, sum(widths)])
        features = dict(zip(self._names, tf.split(self._packed, widths, axis=1), strict=True))
        for name in self._names:
            # A feature with exactly one id is [b], histories of ads are [b, seen].
            if name not in SEEN:
                features[name] = features[name][:, 0]
        self._labels = {head: v1.placeholder(tf.float32, [None]) for head in HEADS}
        self._predictions = predictions(features, sizes)
        losses = [v1.losses.log_loss(self._labels[head], self._predictions[head]) for head in HEADS]
        self._loss = tf.add_n(losses)
        adagrad = v1.train.AdagradOptimizer(0.05, initial_accumulator_value=1e-3)
        self._train = adagrad.minimize(self._loss, v1.train.get_global_step())
        self._saver = v1.train.Saver()
        self._session = v1.Session(config=_without_rewriting())
        self._session.run(v1.global_variables_initializer())

    def step(self, features: Columns, labels: Mapping[str, Any]) -> float:
        """Trains on a batch; returns its loss."""
        feeds = {self._packed: packed(features, self._names)}
        for head in HEADS:
            feeds[self._labels[head]] = labels[head]
        loss, _ = self._session.run([self._loss, self._train], feeds)
        return float(loss)

    def predict(self, features: Columns) -> dict[str, Any]:
        """Returns the predictions of each head for each example."""
        parts: list[Any] = []
        for first in range(0, size(features), requests.PAIRS):
            end = min(first + requests.PAIRS, size(features))
            part = take(features, np.arange(first, end))
            feeds = {self._packed: packed(part, self._names)}
            parts.append(self._session.run(self._predictions, feeds))
        return {head: np.concatenate([part[head] for part in parts]) for head in HEADS}

    def save(self, prefix: Path) -> str:
        """Writes the checkpoint."""
        step = v1.train.get_global_step()
        path = self._saver.save(self._session, str(prefix), step, write_meta_graph=False)
        return str(path)


def _without_rewriting() -> Any:
    """Returns a session's configuration that runs the graph as it is: to rewrite a graph of this
    size takes minutes.
    """
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    sizes = SIZES[scale]
    count = requests.COUNT[scale]
    data = Impressions(sizes, seed=9)
    start = time.monotonic()
    with tf.Graph().as_default():
        v1.set_random_seed(19)
        program = Program(sizes)
        print(f"{len(sizes.features)} features: graph built in {time.monotonic() - start:.0f} s")
        losses = [program.step(*data.batch(BATCH[scale])) for _ in range(STEPS[scale])]
        tenth = max(1, len(losses) // 10)
        print(
            f"{len(losses)} steps, {time.monotonic() - start:.0f} s: loss "
            f"{np.mean(losses[:tenth]):.4f}, in the end {np.mean(losses[-tenth:]):.4f}"
        )
        held_out, labels = data.batch(5 * count)
        predicted = program.predict(held_out)
        for head in HEADS:
            auc = training.area_under_curve(labels[head], predicted[head])
            print(f"AUC of held out, {head}: {auc:.3f}")
        reference = reference_requests(program, data, count)
        trained.write_files(out, Path(__file__).parent, sizes, reference)
        print(f"checkpoint: {program.save(out / 'checkpoint' / 'model.ckpt')}")
    write_ads(data.ads, out / "ads.parquet")
    write_inputs(out / "recipe.toml", sizes)


def reference_requests(
    program: Program, data: Impressions, count: int
) -> trained.ReferenceRequests:
    """Returns requests that name ads by id or send their features, and the model's outputs."""
    users = data.users(count)
    positions = data.draw_ads(CANDIDATES * count)
    ads = data.ad_features(positions)
    named = requests.rankings(users, {"candidate_ids": positions})
    described = requests.rankings(users, ads)
    options = {"heads": list(HEADS)}
    bodies = []
    for number in range(count):
        source = described if number % BY_ID == 0 else named
        bodies.append({**source[number], **options})
    pairs = requests.pairs(users, ads)
    outputs = program.predict(pairs)
    return trained.ReferenceRequests(bodies, {**outputs, "score": outputs["conversion"]}, pairs)


if __name__ == "__main__":
    trained.command_line("snap_tf1", train)
