"""Random computations of ids: where rules tell them, they make the integers that TensorFlow makes,
bit for bit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.rules.ids import OneInput, cast, rule_of
from bundle.format.manifest import ChainedIds, IdRule, VocabularyIds, vocabularies_of
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.graphs.loading import load_tensorflow
from export.id_rules import operations
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.chains import find_chain
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds

tf = load_tensorflow()
CONFIGURATIONS = 240
TEXTS = np.array(["red", "", "1", "-3", "blue", "7", "\u00e9", "x" * 70, "0"], object)
INTEGERS = np.array(
    [
        *(0, 1, 2, 3, 5, 7, 10, -1, -2, -3, -5, 9, 99, -100, 12345, -777),
        *(
            (1 << 31) - 1,
            1 << 31,
            -(1 << 31),
            (1 << 32) + 5,
            (1 << 40) + 3,
            -(1 << 40),
            (1 << 63) - 1,
            -(1 << 63),
        ),
    ]
)
INTEGERS_32 = INTEGERS[np.abs(INTEGERS.astype(np.float64)) < 1 << 31].astype(np.int32)
_CONSTANTS = [0, 1, 2, 3, 5, 7, 10, -1, -3, 100, (1 << 31) - 1, 1 << 31, (1 << 40) + 3]
_KEYS = [0, 1, 2, 3, 5, 7, -1, -5]
_WORDS = [["red", "", "1", "-3", "blue", "7"], ["5", "0", "1", "-3", "3", "7"]]


class Computation:
    """What one to five random steps make of ids.

    Attributes:
      sent, made: ids, and the integers that TensorFlow makes of them.
      ids: the tensor of these in the graph.
      call: it is of; the input is called `x`.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._kept = list[Any]()
        self.sent = [INTEGERS, INTEGERS_32, TEXTS][seed % 3]
        traced = tf.compat.v1.wrap_function(
            self._steps, [tf.TensorSpec([None], tf.constant(self.sent).dtype)]
        )
        captured = {inner.name: outer for outer, inner in traced.graph.captures}
        (sent,) = [each for each in traced.inputs if each.name not in captured]
        self.made = traced(tf.constant(self.sent)).numpy().astype(np.int64)
        self.ids = traced.outputs[0]
        self.call = CallGraph({sent.name: Source("x", "dense")}, captured)

    def _steps(self, ids: Any) -> Any:
        for _ in range(self._random.integers(1, 6)):
            ids = self._of_texts(ids) if ids.dtype == tf.string else self._of_integers(ids)
        return ids

    def _of_texts(self, texts: Any) -> Any:
        buckets = int(self._random.integers(1, 50))
        kind = self._random.integers(3)
        if kind == 0:
            return tf.strings.to_hash_bucket_fast(texts, buckets)
        if kind == 1:
            return tf.strings.to_hash_bucket_strong(texts, buckets, [1, 2])
        return self._table(
            self._random.permutation(_WORDS[self._random.integers(2)])[:3].tolist(), tf.string
        )(texts)

    def _of_integers(self, ids: Any) -> Any:
        dtype = ids.dtype
        random = self._random
        constant = tf.constant(
            int(random.choice(_CONSTANTS[: 11 if dtype == tf.int32 else 13])), dtype
        )
        positive = tf.constant(int(random.integers(1, 20)), dtype)
        keys = random.permutation(_KEYS)[:3].tolist()
        made = [
            lambda: ids + constant,
            lambda: constant - ids,
            lambda: ids * constant,
            lambda: ids // positive,
            lambda: ids % positive,
            lambda: tf.truncatemod(ids, positive),
            lambda: tf.minimum(ids, constant),
            lambda: tf.maximum(ids, constant),
            lambda: tf.clip_by_value(ids, tf.constant(-5, dtype), tf.constant(9, dtype)),
            lambda: tf.abs(ids),
            lambda: -ids,
            lambda: tf.cast(ids, tf.int32),
            lambda: tf.cast(ids, tf.int64),
            lambda: self._of_texts(tf.strings.as_string(ids)),
            lambda: self._layer(keys)(ids),
            lambda: self._table(keys, tf.int64)(tf.cast(ids, tf.int64)),
        ]
        return made[random.integers(len(made))]()

    def _table(self, keys: list[Any], dtype: Any) -> Any:
        with tf.init_scope():
            positions = tf.constant([0, 1, 2], tf.int64)
            initial = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, dtype), positions)
            self._kept.append(
                tf.lookup.StaticHashTable(initial, int(self._random.choice([-1, 0, 2, 5])))
            )
        return self._kept[-1].lookup

    def _layer(self, keys: list[int]) -> Any:
        how = {
            "num_oov_indices": int(self._random.integers(1, 4)),
            "mask_token": [None, 9][self._random.integers(2)],
        }
        with tf.init_scope():
            self._kept.append(tf.keras.layers.IntegerLookup(vocabulary=keys, **how))
        return self._kept[-1]


def named(rule: IdRule) -> OneInput:
    """Gives each vocabulary of a rule a name of its own."""
    if isinstance(rule, ChainedIds):
        each = [
            link.model_copy(update={"vocabulary": f"v{place}"})
            if isinstance(link, VocabularyIds)
            else link
            for place, link in enumerate(rule.rules)
        ]
        return rule.model_copy(update={"rules": tuple(each)})
    assert isinstance(rule, OneInput)
    return rule


def rows_inside(page: OneInput, found: ResolvedIds, made: Computation) -> NDArray[np.int64]:
    """Returns what a self-contained SavedModel makes of ids by a rule."""
    sent = tf.constant(made.sent)
    tables = {}
    for rule, keys in zip(vocabularies_of(page), found.keys, strict=True):
        places = tf.range(len(keys), dtype=tf.int64)
        known = tf.constant(keys, tf.string if isinstance(keys[0], str) else tf.int64)
        tables[rule.vocabulary] = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(known, places), -1
        )
    ids = sent if found.cast is None else operations.cast(found.cast, sent)
    rows: NDArray[np.int64] = operations.rows_of(page, ids, tables).numpy()
    return rows


def test_id_computations_give_the_integers_of_tensorflow() -> None:
    told: Counter[str] = Counter()
    for seed in range(CONFIGURATIONS):
        made = Computation(seed)
        found = find_chain(Values(made.ids), made.call, None)
        if not isinstance(found, ResolvedIds) or found.rule is None:
            told["not told" if not isinstance(found, ResolvedIds) else "as they are"] += 1
            continue
        page = named(found.rule)
        keys = [
            Vocabulary(
                StringKeys(each) if isinstance(each[0], str) else IntegerKeys(np.array(each))
            )
            for each in found.keys
        ]
        held = {
            each.vocabulary: opened
            for each, opened in zip(vocabularies_of(page), keys, strict=True)
        }
        sent = made.sent if found.cast is None else cast(found.cast, "x", made.sent)
        rows = rule_of(page, held).resolve("x", sent)
        assert rows.tolist() == rows_inside(page, found, made).tolist(), (seed, found)
        if found.unknown is not None:
            rows = np.where(rows < 0, found.unknown.row or 0, rows)
        assert rows.tolist() == made.made.tolist(), (seed, found)
        told[page.kind] += 1
    assert told["not told"] < CONFIGURATIONS // 20
    assert all(told[kind] >= 10 for kind in ("chained", "computed", "vocabulary", "hash"))
