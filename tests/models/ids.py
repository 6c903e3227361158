"""User models of what is done to ids before they are looked up or counted: nothing here imports
rowcast.
"""

# mypy: ignore-errors

import math
import re
import string
from functools import partial

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

ROWS = 20_000
FIELDS = 6
SIZES = np.array([100, 3000, 7, 50, 9000, 400])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
LIMITS = [-1.0, 0.0, 0.25, 0.5, 3.0]
WORDS = [
    "the",
    "of",
    "star",
    "wars",
    "don't",
    "dont",
    "1977",
    "\u00e9t\u00e9",
    "in love",
    "a",
    "b",
    "\u65e5",
]
E = tf.tpu.experimental.embedding
text = tf.strings.as_string
fast = tf.strings.to_hash_bucket_fast


class Ways(tf.keras.Model):
    """Gives what each function makes of the inputs to one layer; `kept` holds the tables that they
    read.
    """

    def __init__(self, ways, kept=()):
        super().__init__()
        self.ways = ways
        self.kept = kept
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        found = [tf.cast(way(features), tf.float32) for way in self.ways.values()]
        return self.out(
            tf.concat([tf.reshape(each, [-1, math.prod(each.shape[1:])]) for each in found], 1)
        )


def looked_up(ids, rows=None):
    """Looks up in a table of its own by each function of `ids`; functions of `rows` are given their
    table, too.
    """
    rows = {
        name: lambda table, features, made=made: table(made(features)) for name, made in ids.items()
    } | (rows or {})
    tables = {name: tf.keras.layers.Embedding(ROWS, 3, name=f"{name}_table") for name in rows}
    for table in tables.values():
        table.build(None)
    return Ways(
        {name: lambda features, name=name: rows[name](tables[name], features) for name in rows},
        tables,
    )


def build_places():
    """Reads ids out of a wide input, and gathers in the ways that do."""
    firsts = tf.constant(OFFSETS, tf.int64)
    many = tf.constant(np.arange(30) * 600)
    layers = tf.keras.layers
    buckets = layers.Discretization(LIMITS)
    standard = layers.Normalization(mean=0.3, variance=2.0)
    mean = np.linspace(-1, 1, FIELDS, dtype=np.float32)
    deviation = np.linspace(0.3, 3, FIELDS, dtype=np.float32)
    each = tf.range(FIELDS)

    def flat(ids):
        return lambda table, features: tf.reshape(
            tf.gather(table.embeddings, tf.reshape(ids(features), [-1])), [-1, 6, 3]
        )

    ids = {
        "part": lambda features: features["x"][:, 2:5],
        "gathered": lambda features: tf.gather(features["x"], [0, 3, 5], axis=1),
        "shuffled": lambda features: tf.reverse(tf.reshape(features["x"], [-1, 2, 3]), [1])[
            :, :, 1:
        ],
        "transposed": lambda features: tf.transpose(
            tf.reshape(features["x"], [-1, 2, 3]), [0, 2, 1]
        ),
        "offset": lambda features: features["x"] + firsts,
        "offset_numpy": lambda features: (
            tf.cast(features["x"], tf.int32) + OFFSETS.astype(np.int32)[np.newaxis]
        ),
        "offset_part": lambda features: (features["x"] % SIZES + firsts)[:, 1::2],
        "offset_many": lambda features: features["x"][:, :1] + many,
        "stacked": lambda features: (
            tf.stack([features["a"], features["b"], features["x"][:, 4]], 1) + firsts[:3]
        ),
        "joined": lambda features: (
            tf.concat([features["a"][:, None], features["x"][:, 3:]], -1) + firsts[:4]
        ),
        "cast": lambda features: tf.cast(features["n"], tf.int32),
        "cast_down": lambda features: (
            tf.cast(tf.floor(features["n"][:, 1:4]), tf.int64) + firsts[1:4]
        ),
        "cast_nearest": lambda features: tf.cast(tf.round(features["n"][:, 1]), tf.int32) % 1000,
        "cast_hash": lambda features: fast(text(tf.cast(features["n"][:, 2], tf.int64)), ROWS),
        "bucketized": lambda features: (
            tf.cast(buckets(features["n"][:, :4]), tf.int64) + tf.range(4, dtype=tf.int64) * 6
        ),
        "searched": lambda features: tf.searchsorted(LIMITS, features["n"][:, 2], side="right"),
        "searched_ages": lambda features: tf.searchsorted(
            tf.constant([18, 60], tf.int64), features["a"]
        ),
        "normalized": lambda features: buckets((features["n"] - mean) / deviation),
        "normalized_layer": lambda features: buckets(standard(features["n"][:, :3])),
        "logarithms": lambda features: (
            tf.cast(tf.math.log1p(tf.maximum(features["n"], 0.0)) * 10.0, tf.int32) + each * 900
        ),
        "since": lambda features: (
            tf.cast(tf.clip_by_value((2.5 - features["n"]) / 0.3, 0.0, 30.0), tf.int32) + each * 31
        ),
    }
    rows = {
        "flat": flat(lambda features: features["x"]),
        "offset_flat": flat(lambda features: features["x"] + firsts),
        "searched_flat": flat(
            lambda features: tf.searchsorted(LIMITS, tf.reshape(features["n"], [-1]))
        ),
        "split": lambda table, features: tf.concat(
            [table(part) for part in tf.split(features["x"], 2, axis=1)], 1
        ),
        "unstacked": lambda table, features: tf.stack(
            [table(one) for one in tf.unstack(features["x"], axis=1)[::-1]], 1
        ),
        "cast_some": lambda table, features: tf.concat(
            [
                tf.reshape(table(tf.cast(features["n"][:, 3:], tf.int32)), [-1, 9]),
                features["n"][:, :3],
            ],
            1,
        ),
        "scaled": lambda table, features: tf.nn.embedding_lookup(
            table.embeddings, features["a"], max_norm=0.5
        ),
        "scaled_several": lambda table, features: tf.nn.embedding_lookup(
            table.embeddings, features["x"], max_norm=0.25
        ),
    }
    return looked_up(ids, rows)


def build_layer():
    """Gives an embedding layer of TPUs several columns at once."""
    table = E.FeatureConfig(E.TableConfig(ROWS, 3, name="table", combiner="mean"))
    layer = tfrs.layers.embedding.TPUEmbedding({"few": table, "one": table}, E.SGD(0.1))

    def found(features):
        rows = layer({"few": features["x"][:, 2:5] + OFFSETS[2:5], "one": features["x"][:, 1]})
        return tf.concat([tf.reshape(rows["few"], [-1, 9]), rows["one"]], 1)

    return Ways({"all": found}, [layer])


def build_handmade():
    """Changes, splits and looks words up by TensorFlow's own operations."""
    layers = tf.keras.layers
    hashed = layers.Embedding(30, 4)
    listed = layers.Embedding(31, 4)
    hashed.build(None)
    known = layers.StringLookup(vocabulary=WORDS, num_oov_indices=2)
    tidy = layers.TextVectorization(
        vocabulary=WORDS, standardize=_tidied, ragged=True, ngrams=(1, 2)
    )

    def found(features):
        words = tf.strings.split(tf.strings.strip(tf.strings.upper(features["title"])))
        ids = tf.ragged.map_flat_values(fast, words, 30)
        return tf.reduce_sum(tf.nn.embedding_lookup(hashed.embeddings, ids), 1)

    genres = layers.StringLookup(vocabulary=WORDS, output_mode="multi_hot")
    separated = layers.StringLookup(vocabulary=WORDS, mask_token="")

    def padded(features):
        return tf.strings.split(features["title"], " ").to_tensor(shape=[None, 3])

    made = {
        "genres": lambda features: genres(tf.strings.split(features["title"], "|")),
        "padded_genres": lambda features: genres(padded(features)),
        "padded": lambda features: tf.reduce_max(listed(separated(padded(features))), 1),
        "found": found,
        "listed": lambda features: tf.reduce_mean(
            listed(known(tf.strings.split(features["title"]))), 1
        ),
        "tidied": lambda features: tf.reduce_mean(listed(tidy(features["title"])), 1),
        "lowered": lambda features: hashed(fast(tf.strings.lower(features["title"]), 30)),
    }
    return Ways(made, [hashed, listed])


def _tidied(texts):
    plain = tf.strings.regex_replace(tf.strings.lower(texts), "<br />", " ")
    return tf.strings.regex_replace(plain, f"[{re.escape(string.punctuation)}]", "")


def vectorized(words=None, mask=True, **how):
    """Averages the rows of words, which `words` or a TextVectorization makes of titles."""
    words = words or tf.keras.layers.TextVectorization(**how)
    table = tf.keras.layers.Embedding(4000, 4, mask_zero=mask)
    pooled = tf.keras.layers.GlobalAveragePooling1D()
    return Ways({"title": lambda features: pooled(table(words(features["title"])))}, [table])


def build_filled_beyond():
    """Fills empty bags with a row that its table does not have."""
    rows = partial(tf.nn.safe_embedding_lookup_sparse, default_id=ROWS)
    return looked_up({}, {"tags": lambda table, features: rows(table.embeddings, features["tags"])})


def build_zeroed():
    """One word has the row that is masked."""
    known = tf.keras.layers.StringLookup(vocabulary=WORDS, num_oov_indices=1, mask_token=None)
    return vectorized(lambda texts: known(tf.strings.split(texts)).to_tensor())


build_unadapted = vectorized
build_unmasked = partial(vectorized, mask=False, vocabulary=WORDS)


def odd():
    """Returns ids of operations that no bundle computes."""
    firsts = tf.Variable(OFFSETS, trainable=False)
    return {
        "sine": lambda features: tf.cast(
            10.0 + 10.0 * tf.sin(tf.cast(features["item"], tf.float32)), tf.int64
        ),
        "python": lambda features: tf.reshape(
            tf.py_function(lambda ids: ids + 1, [features["item"]], tf.int64), [-1]
        ),
        "variable": lambda features: features["x"] + firsts,
        "unguarded": lambda features: tf.searchsorted(
            LIMITS, tf.math.log(features["n"][:, 0]), side="right"
        ),
    }


def build_odd(name):
    return looked_up({name: odd()[name]})


for each in odd():  # build_sine and so on
    globals()[f"build_{each}"] = partial(build_odd, each)
