"""Impressions in the shape of NVIDIA's article, written and read as prebatched TFRecords: a batch
in each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from examples.criteo import effect
from examples.wide_deep.model import NUMBERS, Sizes

LABEL = "label"
CONTEXT_NUMBERS = 6
CONTEXT_CATEGORIES = 25
"""Number of numbers and categories, at the beginning, that describe who sees the page. The others
describe the candidate that is shown.
"""
CONTEXT_BAG = 37
"""Position of the category with ten ids that describes who sees the page: the pages read last."""


class Impressions:
    """Draws impressions and whether they were clicked. The same seed draws the same impressions."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        """Prepares the draw of what a model of these sizes takes."""
        self._sizes = sizes
        self._random = np.random.default_rng(seed)
        names = list(sizes.categories)
        context = {*names[:CONTEXT_CATEGORIES], names[CONTEXT_BAG]}
        self.context_names = (
            *NUMBERS[:CONTEXT_NUMBERS],
            *(name for name in names if name in context),
        )
        self.candidate_names = (
            *NUMBERS[CONTEXT_NUMBERS:],
            *(name for name in names if name not in context),
        )

    def draw(self, names: Sequence[str], n: int) -> dict[str, NDArray[Any]]:
        """Draws n values of each of the named features."""
        columns: dict[str, NDArray[Any]] = {}
        for name in names:
            if name in NUMBERS:
                columns[name] = np.floor(np.exp(self._random.normal(1.0, 1.5, n))).astype(
                    np.float32
                )
                continue
            ids = self._sizes.ids[name]
            # Few ids are seen often and most hardly ever, as in the logs.
            drawn = self._random.random(n if ids == 1 else (n, ids)) ** 4
            columns[name] = (self._sizes.categories[name] * drawn).astype(np.int64)
            # Ids of another system, whose range the model does not know.
            if self._sizes.hashed:
                columns[name] = columns[name] * 1_000_003 + 7_919
        return columns

    def batch(self, n: int) -> dict[str, NDArray[Any]]:
        """Draws n impressions with their label."""
        features = self.draw((*NUMBERS, *self._sizes.categories), n)
        probabilities = 1 / (1 + np.exp(-self._logits(features)))
        labels = (self._random.random(n) < probabilities).astype(np.float32)
        return {**features, LABEL: labels}

    def _logits(self, features: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Every id has an effect; some categories also change the effect of the next one."""
        effects = []
        for number, (name, ids) in enumerate(self._sizes.ids.items()):
            id_effects = effect(np.ravel(features[name]), number)
            # An input with several ids has their mean effect.
            effects.append(id_effects.reshape(-1, ids).mean(axis=1))
        crossed = sum(
            first * second for first, second in zip(effects[:10:2], effects[1:10:2], strict=True)
        )
        numbers = np.log1p(features["n1"]) - np.log1p(features["n10"])
        total: NDArray[np.float64] = 0.5 * sum(effects) + crossed + 0.3 * numbers - 0.5
        return total


def write_batches(data: Impressions, folder: Path, records: int, batch: int) -> list[str]:
    """Writes records of `batch` impressions each; returns the files, of one record each."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(folder / f"batch-{number:05d}.tfrecord") for number in range(records)]
    for file in files:
        features = {name: _feature(values) for name, values in data.batch(batch).items()}
        with tf.io.TFRecordWriter(file) as writer:
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            )
    return files


def _feature(values: NDArray[Any]) -> Any:
    flat = np.ravel(values)
    if values.dtype == np.float32:
        return tf.train.Feature(float_list=tf.train.FloatList(value=flat))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=flat))


def read_batches(files: Sequence[str], sizes: Sizes, batch: int) -> Any:
    """Returns a tf.data.Dataset of features and labels; a record is a batch, so that nothing is
    left to be batched.
    """
    numbers = {name: tf.io.FixedLenFeature([batch], tf.float32) for name in (*NUMBERS, LABEL)}
    shapes = {name: [batch] if ids == 1 else [batch, ids] for name, ids in sizes.ids.items()}
    categories = {name: tf.io.FixedLenFeature(shape, tf.int64) for name, shape in shapes.items()}

    def parse(record: Any) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(record, {**numbers, **categories})
        return features, {"click": features.pop(LABEL)}

    return tf.data.TFRecordDataset(files).map(parse, tf.data.AUTOTUNE).prefetch(2)
