"""User models whose lookups and columns do more than look up: scaled rows, indicators, ids out of a wide input."""

# mypy: ignore-errors

import tensorflow as tf

ROWS = 20_000


class Wide(tf.keras.Model):
    """Takes ids out of one wide input, some of which it hashes."""

    def __init__(self, way):
        super().__init__()
        self.tables = [tf.keras.layers.Embedding(rows, 4) for rows in (ROWS, 700, ROWS)]
        self.out = tf.keras.layers.Dense(2, bias_initializer="ones")
        self.way = way

    def call(self, features):
        wide = features["wide"]
        ways = {
            "sliced": lambda: [wide[:, 0], wide[:, 1:][:, 0], wide[:, -1]],
            "unstacked": lambda: tf.unstack(tf.cast(wide, tf.int32), axis=1),
            "split": lambda: [part[:, 0] for part in tf.split(wide, 3, 1)],
            "kept": lambda: tf.split(wide, [1, 1, 1], axis=1),
            "gathered": lambda: [tf.gather(wide, place, axis=1) for place in range(3)],
            "computed": lambda: [wide[:, 0] * wide[:, 1], wide[:, 1], wide[:, 2]],
        }
        first, second, third = ways[self.way]()
        if self.way != "kept":
            third = tf.strings.to_hash_bucket_fast(tf.strings.as_string(third), ROWS)
        rows = [table(ids) for table, ids in zip(self.tables, (first, second, third), strict=True)]
        return self.out(tf.concat([tf.reshape(each, [-1, 4]) for each in rows], 1))


def build_sliced():
    return Wide("sliced")


def build_unstacked():
    return Wide("unstacked")


def build_split():
    return Wide("split")


def build_kept():
    return Wide("kept")


def build_gathered():
    return Wide("gathered")


def build_computed():
    return Wide("computed")


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
            "filled": lambda ids: lookup.safe_embedding_lookup_sparse(rows, ids, default_id=3),
        }
        return self.out(tf.concat([ways[way](features[way]) for way in self.ways], 1))


def build_scaled():
    return Scaled("one", "recent", "column")


def build_scaled_bags():
    return Scaled("bag", "sparse", "filled", "column")


class WideDeep(tf.keras.Model):
    """Keras' own Wide & Deep, linear over indicators."""

    def __init__(self):
        super().__init__()
        columns = tf.feature_column
        city = columns.categorical_column_with_hash_bucket("city", 30)
        kind = columns.categorical_column_with_vocabulary_list("kind", ["a", "b"], num_oov_buckets=1)
        crossed = columns.crossed_column(["city", kind], 50)
        layers, experimental = tf.keras.layers, tf.keras.experimental
        self.wide = layers.DenseFeatures([columns.indicator_column(city), columns.indicator_column(crossed)])
        self.deep = layers.DenseFeatures([columns.embedding_column(city, 4), columns.numeric_column("price")])
        dense = tf.keras.Sequential([layers.Dense(8, "relu"), layers.Dense(1)])
        self.both = experimental.WideDeepModel(experimental.LinearModel(), dense, activation="sigmoid")

    def call(self, features):
        return self.both([self.wide(features), self.deep(features)])


def build_wide_deep():
    return WideDeep()


class FilledBeyond(tf.keras.Model):
    """Fills empty bags with a row that its table does not have."""

    def __init__(self):
        super().__init__()
        self.items = tf.Variable(lambda: tf.zeros([ROWS, 4]))

    def call(self, features):
        return tf.nn.safe_embedding_lookup_sparse(self.items, features["filled"], default_id=ROWS)


def build_filled_beyond():
    return FilledBeyond()


class Indicators(tf.keras.Model):
    """What a tower computes of integers and numbers, and what it does not, in columns."""

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
            "word": columns.categorical_column_with_vocabulary_list("word", ["a", "b"], default_value=1),
            "rows": columns.categorical_column_with_identity("rows", 9),
            "first": columns.categorical_column_with_vocabulary_list("first", ["x", "y", "z"]),
        }
        known["crossed"] = columns.crossed_column([known["word"], known["first"], "hashed"], 40)
        self.layer = tf.keras.layers.DenseFeatures([columns.indicator_column(known[way]) for way in ways])
        self.ways = [way for way in ways if way != "crossed"]
        self.out = tf.keras.layers.Dense(2, bias_initializer="ones")

    def call(self, features):
        return self.out(self.layer({way: features[way] for way in self.ways}))


def build_indicators():
    return Indicators("listed", "listed_or_first", "buckets")


def build_counted():
    return Indicators("hashed", "beyond", "word", "rows", "first", "crossed")
