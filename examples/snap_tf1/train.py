"""Trains the ad ranker as a program of TF1 and writes what an export needs.

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
    """Returns the rows of so many tables: from few, as of a country, to `most`."""
    return tuple(int(10 * (most / 10) ** (place % 50 / 49)) for place in range(count))


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
"""Of so many requests one tells the features of its ads; the others name ads by id."""


class Program:
    """The graph of a training, its session, and what it is fed with."""

    def __init__(self, sizes: Sizes) -> None:
        """Builds the graph that trains, on one tensor that holds all features side by side."""
        self._names = list(sizes.features)
        widths = [sizes.seen if name in SEEN else 1 for name in self._names]
        self._packed = v1.placeholder(tf.int64, [None, sum(widths)])
        pieces = dict(zip(self._names, tf.split(self._packed, widths, axis=1), strict=True))
        features = {name: piece if name in SEEN else piece[:, 0] for name, piece in pieces.items()}
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
        fed = {
            self._packed: packed(features, self._names),
            **{self._labels[head]: labels[head] for head in HEADS},
        }
        return float(self._session.run([self._loss, self._train], fed)[0])

    def predict(self, features: Columns) -> dict[str, Any]:
        """Returns what the heads predict for each example."""
        found: list[Any] = []
        for first in range(0, size(features), requests.PAIRS):
            part = take(features, np.arange(first, min(first + requests.PAIRS, size(features))))
            found.append(
                self._session.run(self._predictions, {self._packed: packed(part, self._names)})
            )
        return {head: np.concatenate([each[head] for each in found]) for head in HEADS}

    def save(self, prefix: Path) -> str:
        """Writes the checkpoint."""
        return str(
            self._saver.save(
                self._session, str(prefix), v1.train.get_global_step(), write_meta_graph=False
            )
        )


def _without_rewriting() -> Any:
    """Returns a session's configuration that runs the graph as it is: to rewrite one so large takes
    minutes.
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
        held_out, happened = data.batch(5 * count)
        reached = program.predict(held_out)
        for head in HEADS:
            print(
                f"AUC of held out, {head}: "
                f"{training.area_under_curve(happened[head], reached[head]):.3f}"
            )
        asked = ask(program, data, count)
        trained.write_files(out, Path(__file__).parent, sizes, asked)
        print(f"checkpoint: {program.save(out / 'checkpoint' / 'model.ckpt')}")
    write_ads(data.ads, out / "ads.parquet")
    write_inputs(out / "recipe.toml", sizes)


def ask(program: Program, data: Impressions, count: int) -> trained.Asked:
    """Returns requests that name ads by id, some with all that is known of them, and what the model
    answers.
    """
    users = data.users(count)
    shown = data.shown(CANDIDATES * count)
    ads = data.of_ads(shown)
    named = requests.rankings(users, {"candidate_ids": shown})
    sent = requests.rankings(users, ads)
    both = {"heads": list(HEADS)}
    bodies = [{**(sent if place % BY_ID == 0 else named)[place], **both} for place in range(count)]
    pairs = requests.pairs(users, ads)
    found = program.predict(pairs)
    return trained.Asked(bodies, {**found, "score": found["conversion"]}, pairs)


if __name__ == "__main__":
    trained.command_line("snap_tf1", train)
