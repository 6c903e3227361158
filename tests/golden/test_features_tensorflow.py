"""Every feature configuration against TensorFlow's own CPU lookup, in one process: the oracle of train/serve skew.

Plain gathers must be equal bit for bit. Combined vectors are float32 sums of the same products in another order: they
may differ by a few units in the last place of the sum of the magnitudes, divided as the combiner divides.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any, NamedTuple

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
ULP = 2.0**-23


class Bags(NamedTuple):
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    weights: NDArray[np.float32]


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


def bags(seed: int, longest: int, negative_ids: bool, positive_weights: bool) -> Bags:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest + 1, EXAMPLES)
    lengths[[0, -1]] = 0, longest  # an empty bag in front, a longest one behind
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = random.integers(-3 if negative_ids else 0, ROWS, offsets[-1])
    weights = random.uniform(0.1 if positive_weights else -1.0, 2.0, offsets[-1]).astype(np.float32)
    if not positive_weights and weights.size:
        weights[random.integers(0, weights.size, 1 + weights.size // 5)] = 0
    return Bags(ids, offsets, weights)


def activation(table: TableReader, feature: entries.Feature, column: Column) -> NDArray[Any]:
    return FeatureReader({"f": feature}, {"t": table}, {}).activation("f", {"f": column}, EXAMPLES).values


def sparse(given: Bags, values: NDArray[Any]) -> Any:
    example = np.repeat(np.arange(EXAMPLES), np.diff(given.offsets))
    place = np.arange(given.ids.size) - given.offsets[example]
    width = int(np.diff(given.offsets).max(initial=1))
    return tf.SparseTensor(np.stack([example, place], 1).astype(np.int64), values, [EXAMPLES, width])


def ragged(given: Bags, values: NDArray[Any]) -> Any:
    return tf.RaggedTensor.from_row_splits(values, given.offsets)


def bound(stored: NDArray[np.float32], given: Bags, combiner: str, kept: NDArray[np.bool_], weights: Any) -> Any:
    """[n, dim]: what reordered float32 sums of the same bag may differ by, from its magnitudes in float64."""
    result = np.zeros((EXAMPLES, DIM))
    for example in range(EXAMPLES):
        inside = slice(given.offsets[example], given.offsets[example + 1])
        rows, factors = given.ids[inside][kept[inside]], weights[inside][kept[inside]].astype(np.float64)
        if not rows.size:
            continue
        magnitude = (np.abs(stored[rows].astype(np.float64)) * np.abs(factors)[:, np.newaxis]).sum(0)
        if combiner != "sum" and not factors.any():
            continue  # divided by 0, both give zeros
        divisor = {"sum": 1.0, "mean": factors.sum(), "sqrtn": np.sqrt((factors**2).sum())}[combiner]
        divisor_error = np.abs(factors).sum() / abs(divisor) if combiner == "mean" else 1.0
        result[example] = (rows.size + 4) * ULP * magnitude / abs(divisor) * max(1.0, divisor_error)
    return result


BAG_CASES = list(
    product(("sparse", "ragged"), ("sum", "mean", "sqrtn"), ("none", "positive", "any"), (1, 3, 8, 9, 40), (0, 1))
)


@pytest.mark.parametrize(("encoding", "combiner", "weighting", "longest", "seed"), BAG_CASES)
def test_bag_agrees_with_serving_embedding_lookup(
    table: TableReader,
    stored: NDArray[np.float32],
    encoding: Any,
    combiner: Any,
    weighting: str,
    longest: int,
    seed: int,
) -> None:
    # TensorFlow's ragged lookup takes no negative ids.
    given = bags(seed * 100 + longest, longest, encoding == "sparse", weighting == "positive")
    config = tf.tpu.experimental.embedding.TableConfig(ROWS, DIM, combiner=combiner, name="t")
    encode = sparse if encoding == "sparse" else ragged
    expected = tf.tpu.experimental.embedding.serving_embedding_lookup(
        inputs=[encode(given, given.ids)],
        weights=None if weighting == "none" else [encode(given, given.weights)],
        tables={config: tf.Variable(stored)},
        feature_config=[tf.tpu.experimental.embedding.FeatureConfig(config)],
    )[0].numpy()
    weighted = weighting != "none"
    feature = entries.EmbeddedFeature(
        kind="bag", table="t", role="context", combiner=combiner, encoding=encoding, weighted=weighted
    )
    found = activation(table, feature, Column(given.ids, given.offsets, given.weights if weighted else None))
    weights = given.weights if weighted else np.ones(given.ids.size, np.float32)
    kept = given.ids >= 0
    if encoding == "sparse" and combiner != "sum":
        kept &= weights > 0
    assert (np.abs(found - expected) <= bound(stored, given, combiner, kept, weights)).all()
    assert (found[0] == 0).all()


@pytest.mark.parametrize(
    ("combiner", "weighted", "seed"), list(product(("sum", "mean", "sqrtn"), (False, True), (3, 4)))
)
def test_bag_agrees_with_safe_embedding_lookup_sparse(
    table: TableReader, stored: NDArray[np.float32], combiner: Any, weighted: bool, seed: int
) -> None:
    given = bags(seed, 12, negative_ids=True, positive_weights=False)
    expected = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(stored),
        sparse(given, given.ids),
        sparse_weights=sparse(given, given.weights) if weighted else None,
        combiner=combiner,
    ).numpy()
    feature = entries.EmbeddedFeature(kind="bag", table="t", role="context", combiner=combiner, weighted=weighted)
    found = activation(table, feature, Column(given.ids, given.offsets, given.weights if weighted else None))
    weights = given.weights if weighted else np.ones(given.ids.size, np.float32)
    kept = (given.ids >= 0) & ((weights > 0) | (combiner == "sum"))
    assert (np.abs(found - expected) <= bound(stored, given, combiner, kept, weights)).all()


@pytest.mark.parametrize(("combiner", "weighted"), list(product(("sum", "mean", "sqrtn"), (False, True))))
def test_bag_without_empty_rows_agrees_with_embedding_lookup_sparse(
    table: TableReader, stored: NDArray[np.float32], combiner: Any, weighted: bool
) -> None:
    random = np.random.default_rng(5)
    offsets = np.arange(EXAMPLES + 1, dtype=np.int64) * 7
    given = Bags(random.integers(0, ROWS, offsets[-1]), offsets, random.uniform(0.5, 2, offsets[-1]).astype(np.float32))
    expected = tf.nn.embedding_lookup_sparse(
        tf.constant(stored),
        sparse(given, given.ids),
        sparse(given, given.weights) if weighted else None,
        combiner=combiner,
    ).numpy()
    feature = entries.EmbeddedFeature(kind="bag", table="t", role="context", combiner=combiner, weighted=weighted)
    found = activation(table, feature, Column(given.ids, None, given.weights if weighted else None))
    weights = given.weights if weighted else np.ones(given.ids.size, np.float32)
    kept = np.ones(given.ids.size, np.bool_)
    assert (np.abs(found - expected) <= bound(stored, given, combiner, kept, weights)).all()


@pytest.mark.parametrize(("combiner", "longest"), list(product(("sum", "mean", "sqrtn"), (1, 5, 8))))
def test_short_unweighted_bag_has_the_bits_of_tensorflow_to_its_last_division(
    table: TableReader, stored: NDArray[np.float32], combiner: Any, longest: int
) -> None:
    given = bags(longest, longest, negative_ids=True, positive_weights=True)
    expected = tf.nn.safe_embedding_lookup_sparse(tf.constant(stored), sparse(given, given.ids), combiner=combiner)
    feature = entries.EmbeddedFeature(kind="bag", table="t", role="context", combiner=combiner)
    found = activation(table, feature, Column(given.ids, given.offsets))
    # TensorFlow multiplies by the rounded reciprocal of a small count; a division rounds once less.
    np.testing.assert_array_max_ulp(found, expected.numpy(), 0 if combiner == "sum" else 1)


@pytest.mark.parametrize(
    ("encoding", "length", "longest"), list(product(("sparse", "ragged"), (1, 3, 7), (0, 2, 7, 20)))
)
def test_sequence_has_the_very_bits_of_serving_embedding_lookup(
    table: TableReader, stored: NDArray[np.float32], encoding: Any, length: int, longest: int
) -> None:
    given = bags(length + longest, longest, negative_ids=False, positive_weights=True)
    config = tf.tpu.experimental.embedding.TableConfig(ROWS, DIM, name="t")
    expected = tf.tpu.experimental.embedding.serving_embedding_lookup(
        inputs=[(sparse if encoding == "sparse" else ragged)(given, given.ids)],
        weights=None,
        tables={config: tf.Variable(stored)},
        feature_config=[tf.tpu.experimental.embedding.FeatureConfig(config, max_sequence_length=length)],
    )[0].numpy()
    feature = entries.EmbeddedFeature(kind="sequence", table="t", role="context", length=length, encoding=encoding)
    found = activation(table, feature, Column(given.ids, given.offsets))
    assert (found.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize("seed", range(4))
def test_single_has_the_very_bits_of_serving_embedding_lookup(
    table: TableReader, stored: NDArray[np.float32], seed: int
) -> None:
    ids = np.random.default_rng(seed).integers(0, ROWS, EXAMPLES)
    config = tf.tpu.experimental.embedding.TableConfig(ROWS, DIM, name="t")
    expected = tf.tpu.experimental.embedding.serving_embedding_lookup(
        inputs=[tf.constant(ids)],
        weights=None,
        tables={config: tf.Variable(stored)},
        feature_config=[tf.tpu.experimental.embedding.FeatureConfig(config)],
    )[0].numpy()
    found = activation(table, entries.EmbeddedFeature(kind="single", table="t", role="context"), Column(ids))
    assert (found.view(np.uint32) == expected.view(np.uint32)).all()


def test_ragged_mean_whose_weights_cancel_is_zeros_as_in_tensorflow(
    table: TableReader, stored: NDArray[np.float32]
) -> None:
    offsets = np.concatenate([[0], np.full(EXAMPLES, 2)]).astype(np.int64)
    given = Bags(np.array([3, 4]), offsets, np.array([1.0, -1.0], np.float32))
    config = tf.tpu.experimental.embedding.TableConfig(ROWS, DIM, combiner="mean", name="t")
    expected = tf.tpu.experimental.embedding.serving_embedding_lookup(
        inputs=[ragged(given, given.ids)],
        weights=[ragged(given, given.weights)],
        tables={config: tf.Variable(stored)},
        feature_config=[tf.tpu.experimental.embedding.FeatureConfig(config)],
    )[0].numpy()
    feature = entries.EmbeddedFeature(
        kind="bag", table="t", role="context", combiner="mean", encoding="ragged", weighted=True
    )
    found = activation(table, feature, Column(given.ids, given.offsets, given.weights))
    assert (found == expected).all()
    assert (found == 0).all()


@pytest.mark.parametrize("buckets", [1, 2, 1000, 2**31, 2**62])
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
