"""Random programs of TensorFlow's operations, from one input to the rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.loading import load_tensorflow
from export.partition.graph.input_paths import CallGraph, Values
from export.partition.graph.origins import Source

tf = load_tensorflow()

INT64 = np.array(
    [
        *(0, 1, -1, 7, -7, 96, 97, 255, 256, -300, 10**12),
        *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)),
    ]
)
INT32 = np.array([0, 1, -1, 5, 7, -7, 96, 97, 255, 256, -300, 2**31 - 1, -(2**31)], np.int32)
FLOAT32 = np.array(
    [
        *(0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 96.99, 97, 1e9, -1e9, 3e9, 1e18, 1e19, -1e19),
        *(1e-30, 1e-40, -1e-40, 3e38, -3e38, 0.1, 16777217),
    ],
    np.float32,
)
TEXTS = np.array(
    ["", "a", "A b ", " ümlaut\t", "7", "-3", "007", "zz\n", "ß", "東京", "x" * 80, "a-b,c", "red"],
    object,
)
VALUES = {"int64": INT64, "int32": INT32, "float32": FLOAT32, "string": TEXTS}
_SIZES = (1, 2, 3, 7, 10, 97, 1000, 1 << 20)


class Program:
    """A traced program.

    Attributes:
      sent: The values of the input.
      computed: The integers that TensorFlow computes from the values.
      ids: The tensor of these integers in the graph.
      call: The call whose graph it is; the input is called `x`.
    """

    def __init__(self, seed: int) -> None:
        """Draws and traces a program; keeps what TensorFlow computes."""
        self._random = np.random.default_rng(seed)
        self._tables = list[Any]()
        """And layers: the program reads them as long as it lives."""
        dtype = self._random.choice(list(VALUES))
        self.sent = VALUES[dtype]
        traced = tf.compat.v1.wrap_function(
            self._steps, [tf.TensorSpec([None], tf.as_dtype(dtype))]
        )
        captured = {inner.name: outer for outer, inner in traced.graph.captures}
        (sent,) = [tensor for tensor in traced.inputs if tensor.name not in captured]
        self.computed = traced(tf.constant(self.sent)).numpy().astype(np.int64)
        self.ids = Values(traced.outputs[0])
        self.call = CallGraph({sent.name: Source("x", "dense")}, captured)

    def _steps(self, values: Any) -> Any:
        values = self._before_integers(values)
        return self._integers(values, int(self._random.integers(1, 6)))

    def _one_of(self, options: list[Callable[[], Any]]) -> Any:
        return options[self._random.integers(len(options))]()

    def _size(self) -> int:
        return int(self._random.choice(_SIZES))

    def _before_integers(self, values: Any) -> Any:
        """Returns integers of an input of any type."""
        if values.dtype == tf.string:
            return self._hashed(self._texts(values))
        return self._of_floats(values) if values.dtype == tf.float32 else values

    def _of_floats(self, numbers: Any) -> Any:
        strings = tf.strings
        if self._random.random() < 0.2:
            return self._of_transcendental(numbers)
        numbers = self._one_of(
            [
                lambda: tf.floor(numbers),
                lambda: tf.round(numbers),
                lambda: numbers * 2.0 + 1.0,
                # By others, TensorFlow's optimizer multiplies by the reciprocal.
                lambda: numbers / 4.0,
                lambda: tf.clip_by_value(numbers, -50.0, 50.0),
                lambda: tf.where(numbers < 0.0, -numbers, numbers - 1.0),
                lambda: numbers % 7.0,
                lambda: tf.math.ceil(numbers),
                lambda: tf.math.rint(numbers),
                lambda: tf.square(tf.clip_by_value(numbers, -9.0, 9.0)),
                lambda: tf.math.squared_difference(numbers, 2.0),
                lambda: tf.sqrt(abs(numbers)),
                lambda: tf.where(tf.math.is_finite(numbers), numbers, 7.0),
                lambda: tf.where(tf.math.is_nan(numbers) | tf.math.is_inf(numbers), 0.0, numbers),
                lambda: tf.sign(numbers) * 3.0,
                lambda: numbers,
            ]
        )
        return self._one_of(
            [
                lambda: tf.raw_ops.Bucketize(input=numbers, boundaries=[-2.5, 0.0, 0.5, 97.0]),
                lambda: tf.searchsorted([0.5, 1.5, 97.0], numbers, side="right"),
                lambda: tf.searchsorted([0.5, 1.5, 97.0], numbers),
                lambda: tf.cast(numbers, tf.int32),
                lambda: tf.cast(numbers, tf.int64),
                lambda: tf.cast(tf.cast(numbers, tf.float64) * 10.0, tf.int64),
                lambda: self._hashed(strings.as_string(numbers, precision=2)),
                lambda: self._hashed(strings.as_string(tf.cast(numbers, tf.int64))),
            ]
        )

    def _of_transcendental(self, numbers: Any) -> Any:
        """Returns integers by functions whose last bit differs between libraries: they become
        buckets.
        """
        numbers = self._one_of(
            [
                lambda: tf.math.log1p(tf.maximum(numbers, 0.0)),
                lambda: tf.math.log(tf.maximum(numbers, 1.0)) * 3.0,
                lambda: tf.math.sigmoid(numbers) * 9.0,
                lambda: tf.math.tanh(numbers) * 7.3,
            ]
        )
        return self._one_of(
            [
                lambda: tf.cast(numbers, tf.int32),
                lambda: 9 - tf.cast(numbers, tf.int64),
                lambda: tf.raw_ops.Bucketize(input=numbers, boundaries=[0.3, 0.7, 6.0]),
            ]
        )

    def _texts(self, texts: Any) -> Any:
        strings = tf.strings
        return self._one_of(
            [
                lambda: strings.lower(texts),
                lambda: strings.upper(strings.strip(texts)),
                lambda: strings.strip(texts),
                lambda: strings.regex_replace(texts, "[-, ]", "_"),
                lambda: strings.regex_replace(texts, "b", "bb", replace_global=False),
                lambda: strings.join([texts, "_", strings.lower(texts)]),
                lambda: strings.join(["k=", texts], separator="|"),
                lambda: strings.substr(strings.join([texts, "abcdef"]), 1, 4),
                lambda: tf.where(tf.equal(texts, ""), "none", texts),
                lambda: tf.where(texts == "a", tf.zeros_like(texts), texts),
                lambda: texts + "!",
                lambda: texts,
            ]
        )

    def _hashed(self, texts: Any) -> Any:
        strings = tf.strings
        return self._one_of(
            [
                lambda: strings.to_hash_bucket(texts, self._size()),
                lambda: strings.to_hash_bucket_fast(texts, self._size()),
                lambda: strings.to_hash_bucket_strong(texts, self._size(), [3, 1 << 40]),
                lambda: strings.length(texts) * 7,
                lambda: strings.length(texts, unit="UTF8_CHAR"),
                lambda: self._looked_up(texts, ["red", "a", "", "7", "東京"], tf.string),
                lambda: self._layer(tf.keras.layers.StringLookup, ["red", "a", "東京"], "7")(texts),
            ]
        )

    def _integers(self, ids: Any, depth: int) -> Any:
        """Returns what some nested steps make of integers."""
        if depth == 0:
            return ids
        before = self._integers(ids, depth - 1)
        dtype = before.dtype
        size = tf.constant(self._size(), dtype)
        bits = tf.bitwise
        return self._one_of(
            [
                lambda: before + size,
                lambda: size - before,
                lambda: before * size,
                lambda: before // size,
                lambda: before % size,
                lambda: tf.truncatemod(before, size),
                lambda: tf.truncatediv(before, size),
                lambda: tf.clip_by_value(before, -size, size),
                lambda: tf.where(before < size, before, size),
                lambda: tf.where((before > -size) & (before <= size), before * 2, abs(before) % 97),
                lambda: tf.where(tf.equal(before, size), tf.zeros_like(before), -before),
                lambda: tf.cast(tf.cast(before, tf.int32), dtype),
                lambda: tf.cast(tf.cast(before, tf.int8), dtype),
                lambda: tf.cast(tf.cast(before, tf.float32), dtype),
                lambda: tf.cast(before, tf.int64),
                lambda: tf.minimum(before, tf.cast(self._integers(ids, 1), dtype)),
                lambda: bits.bitwise_xor(before, size),
                lambda: bits.bitwise_and(before, bits.invert(size)),
                lambda: bits.right_shift(before, tf.constant(3, dtype)),
                lambda: bits.left_shift(bits.bitwise_or(before, size), tf.constant(2, dtype)),
                lambda: bits.invert(before),
                lambda: tf.square(before) + tf.math.squared_difference(before, size),
                lambda: tf.sign(before) * 5,
                lambda: tf.raw_ops.ClipByValue(
                    t=before, clip_value_min=-size, clip_value_max=tf.constant(9, dtype)
                ),
                lambda: tf.where((before >= size) | tf.not_equal(before, 7), before, size),
                lambda: tf.raw_ops.Select(
                    condition=tf.logical_not(before < 0), x=before, y=tf.ones_like(before)
                ),
                lambda: tf.strings.to_number(tf.strings.as_string(before), dtype),
                lambda: tf.gather(tf.constant([5, 0, 3, 3, 11], dtype), before % 5),
                lambda: tf.cast(self._hashed(tf.strings.as_string(before)), dtype),
                lambda: tf.cast(
                    self._hashed(tf.strings.as_string(before, width=5, fill="0")), dtype
                ),
                lambda: tf.cast(
                    tf.raw_ops.Bucketize(input=before, boundaries=[-9.0, 0.0, 5.0, 1e6]), dtype
                ),
                lambda: self._looked_up(before, [0, 7, -1, 97, 5], tf.int64),
                lambda: tf.cast(
                    self._layer(tf.keras.layers.IntegerLookup, [0, 7, -1, 97], 5)(before), dtype
                ),
            ]
        )

    def _looked_up(self, keys: Any, known: list[Any], dtype: Any) -> Any:
        """Returns positions of keys in a vocabulary, from a first one on."""
        first = int(self._random.integers(0, 3))
        default = int(self._random.choice([-1, 0, 2, 5]))
        with tf.init_scope():
            positions = tf.range(first, first + len(known), dtype=tf.int64)
            initial = tf.lookup.KeyValueTensorInitializer(tf.constant(known, dtype), positions)
            self._tables.append(tf.lookup.StaticHashTable(initial, default))
        actual = self._tables[-1].lookup(keys if dtype == tf.string else tf.cast(keys, tf.int64))
        return actual if dtype == tf.string else tf.cast(actual, keys.dtype)

    def _layer(self, layer: Any, known: list[Any], mask: Any) -> Any:
        """Returns a layer of a vocabulary, which may have rows of a mask and of unknown keys."""
        options = {
            "num_oov_indices": int(self._random.integers(1, 4)),
            "mask_token": [None, mask][self._random.integers(2)],
        }
        with tf.init_scope():
            self._tables.append(layer(vocabulary=known, **options))
        return self._tables[-1]
