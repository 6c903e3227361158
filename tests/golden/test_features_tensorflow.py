"""Bits of lookups, hashes and buckets that are TensorFlow's own; test_feature_configurations.py has every lookup."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.reader import Column, FeatureReader
from bundle.features.rules.ids import rule_of
from bundle.format import manifest as entries
from bundle.tables.reader import ShardWriter, TableReader

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

ROWS, DIM, EXAMPLES = 97, 5, 17


@pytest.fixture(scope="module")
def stored() -> NDArray[np.float32]:
    return np.random.default_rng(11).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def table(stored: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> TableReader:
    root = tmp_path_factory.mktemp("table")
    with ShardWriter(root / "t") as writer:
        writer.write(stored.astype("<f4").tobytes())
    digest = writer.close()
    shard = entries.Shard(file="t", first_row=0, rows=ROWS, crc32c=digest.crc32c, blocks=digest.blocks)
    page = entries.Table(
        rows=ROWS, dim=DIM, dtype="float32", shards=(shard,), source=entries.TableSource(layout="plain", key="t")
    )
    return TableReader(root, page)


def activation(table: TableReader, feature: entries.Feature, column: Column) -> NDArray[Any]:
    return FeatureReader({"f": feature}, {"t": table}, {}).activation("f", {"f": column}, EXAMPLES).values


@pytest.mark.parametrize(("combiner", "longest"), list(product(("sum", "mean", "sqrtn"), (1, 5, 8))))
def test_short_unweighted_bag_has_the_bits_of_tensorflow_to_its_last_division(
    table: TableReader, stored: NDArray[np.float32], combiner: Any, longest: int
) -> None:
    random = np.random.default_rng(longest)
    lengths = random.integers(0, longest + 1, EXAMPLES)
    lengths[[0, -1]] = 0, longest  # an empty bag in front, a longest one behind
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = random.integers(-3, ROWS, offsets[-1])
    sparse = tf.RaggedTensor.from_row_splits(ids, offsets).to_sparse()
    expected = tf.nn.safe_embedding_lookup_sparse(tf.constant(stored), sparse, combiner=combiner)
    feature = entries.EmbeddedFeature(kind="bag", table="t", role="context", combiner=combiner)
    found = activation(table, feature, Column(ids, offsets))
    # TensorFlow multiplies by the rounded reciprocal of a small count; a division rounds once less.
    np.testing.assert_array_max_ulp(found, expected.numpy(), 0 if combiner == "sum" else 1)


def test_ragged_mean_whose_weights_cancel_is_zeros_as_in_tensorflow(
    table: TableReader, stored: NDArray[np.float32]
) -> None:
    offsets = np.concatenate([[0], np.full(EXAMPLES, 2)]).astype(np.int64)
    ids, weights = np.array([3, 4]), np.array([1.0, -1.0], np.float32)
    embedding = tf.tpu.experimental.embedding
    config = embedding.TableConfig(ROWS, DIM, combiner="mean", name="t")
    (expected,) = embedding.serving_embedding_lookup(
        inputs=[tf.RaggedTensor.from_row_splits(ids, offsets)],
        weights=[tf.RaggedTensor.from_row_splits(weights, offsets)],
        tables={config: tf.Variable(stored)},
        feature_config=[embedding.FeatureConfig(config)],
    )
    how: dict[str, Any] = {"combiner": "mean", "encoding": "ragged", "weighted": True}
    feature = entries.EmbeddedFeature(kind="bag", table="t", role="context", **how)
    found = activation(table, feature, Column(ids, offsets, weights))
    assert (found == expected.numpy()).all()
    assert (found == 0).all()


@pytest.mark.parametrize("buckets", [1, 2, 1000, 2**31, 2**62 - 1])
def test_hash_has_the_buckets_of_string_to_hash_bucket_fast(buckets: int) -> None:
    random = np.random.default_rng(0)
    texts = ["", "a", "é", "\U0001f600", "0", "-1", *(bytes(random.integers(32, 127, n)).decode() for n in range(200))]
    integers = np.concatenate([random.integers(-(1 << 63), (1 << 63) - 1, 500), np.arange(-50, 50)])
    values = np.empty(len(texts), object)
    values[:] = texts
    rule = rule_of(entries.HashIds(buckets=buckets), {})
    expected = tf.strings.to_hash_bucket_fast(tf.constant(texts), buckets).numpy()
    assert (rule.resolve("f", values) == expected).all()
    expected = tf.strings.to_hash_bucket_fast(tf.strings.as_string(tf.constant(integers)), buckets).numpy()
    assert (rule.resolve("f", integers) == expected).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32])
def test_buckets_are_those_of_bucketize(dtype: Any) -> None:
    boundaries = [-10.0, -0.1, 0.0, 0.1, 0.3, 1.0, 1.0, 16777217.0]
    exact = np.array(boundaries, np.float32)
    beside = np.concatenate([np.nextafter(exact, np.float32(end)) for end in (-1e9, 1e9)])
    normal = beside[np.abs(beside) > np.finfo(np.float32).tiny]  # TensorFlow takes denormal numbers for 0
    values = np.concatenate([exact, normal, np.linspace(-20, 20, 301, dtype=np.float32)]).astype(dtype)
    expected = tf.raw_ops.Bucketize(input=values, boundaries=boundaries).numpy()
    assert (rule_of(entries.BucketIds(boundaries=boundaries), {}).resolve("f", values) == expected).all()
