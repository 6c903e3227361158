"""User models whose lookups and columns do more than look up: scaled rows, indicators, ids out of a wide input."""

# mypy: ignore-errors

import tensorflow as tf

ROWS = 20_000


class Wide(tf.keras.Model):
    """Takes ids out of one wide input."""

    def __init__(self, way):
        super().__init__()
        self.table = tf.keras.layers.Embedding(ROWS, 4)
        self.out = tf.keras.layers.Dense(2, bias_initializer="ones")
        self.way = way

    def call(self, features):
        wide = features["wide"]
        ids = {"sliced": wide[:, 1], "unstacked": tf.unstack(wide, axis=1)[1], "split": tf.split(wide, 3, 1)[1][:, 0]}
        return self.out(self.table(ids[self.way]))


def build_sliced():
    return Wide("sliced")


def build_unstacked():
    return Wide("unstacked")


def build_split():
    return Wide("split")


class Scaled(tf.keras.Model):
    """Looks rows up that are scaled where their norm is larger than a bound, one by one or in bags."""

    def __init__(self, *ways):
        super().__init__()
        self.items = tf.keras.layers.Embedding(ROWS, 4)
        self.items.build(None)
        columns = tf.feature_column
        ids = columns.categorical_column_with_identity("column", ROWS)
        self.column = tf.keras.layers.DenseFeatures([columns.embedding_column(ids, 4, max_norm=0.5)])
        self.ways = ways
        self.out = tf.keras.layers.Dense(2, bias_initializer="ones")

    def call(self, features):
        rows, lookup = self.items.embeddings, tf.nn
        ways = {
            "one": lambda ids: lookup.embedding_lookup(rows, ids, max_norm=0.5),
            "recent": lambda ids: tf.reduce_sum(lookup.embedding_lookup(rows, ids, max_norm=0.25), 1),
            "column": lambda ids: self.column({"column": ids}),
            "bag": lambda ids: lookup.embedding_lookup_sparse(rows, ids, None, combiner="sum", max_norm=0.5),
            "sparse": lambda ids: lookup.safe_embedding_lookup_sparse(rows, ids, max_norm=0.5),
        }
        return self.out(tf.concat([ways[way](features[way]) for way in self.ways], 1))


def build_scaled():
    return Scaled("one", "recent", "column")


def build_scaled_bag():
    return Scaled("bag")


def build_scaled_sparse():
    return Scaled("sparse")


def build_scaled_column():
    return Scaled("column")


class Indicators(tf.keras.Model):
    """What a tower computes of integers and numbers, and what it does not."""

    def __init__(self, *ways):
        super().__init__()
        columns = tf.feature_column
        known = {
            "listed": columns.categorical_column_with_vocabulary_list("listed", [30, 5, -1, 7]),
            "listed_or_first": columns.categorical_column_with_vocabulary_list(
                "listed_or_first", [30, 5, 7], default_value=1
            ),
            "buckets": columns.bucketized_column(columns.numeric_column("buckets", 2), [0.0, 1.5]),
            "hashed": columns.categorical_column_with_hash_bucket("hashed", 5, tf.int64),
            "beyond": columns.categorical_column_with_vocabulary_list("beyond", [3, 4], num_oov_buckets=2),
        }
        self.layer = tf.keras.layers.DenseFeatures([columns.indicator_column(known[way]) for way in ways])
        self.ways = ways
        self.out = tf.keras.layers.Dense(2, bias_initializer="ones")

    def call(self, features):
        return self.out(self.layer({way: features[way] for way in self.ways}))


def build_indicators():
    return Indicators("listed", "listed_or_first", "buckets")


def build_indicator_hashed():
    return Indicators("hashed")


def build_indicator_beyond():
    return Indicators("beyond")
