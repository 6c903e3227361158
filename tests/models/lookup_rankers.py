"""Rankers as users write them, each with many ways to look tables up: nothing here
imports rowcast.
"""

# mypy: ignore-errors

from __future__ import annotations

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import keras
import tensorflow as tf

fc = tf.feature_column
layers = tf.keras.layers
ROWS = 5000
FEW = 300
CATEGORIES = {"shop": 40, "brand": 30, "tags": 25}
PLACES = 5


class Watched(keras.Model):
    """Of Keras 3: a Sequential that begins with its table, so that ids pass through floats; blocks
    in a list; a mean over what was watched, which is none of nothing; and a country that is not
    known is its table's last row.
    """

    def __init__(self):
        super().__init__()
        kit = keras.layers
        self.users = keras.Sequential([kit.Embedding(3000, 8), kit.Dense(8, "relu")])
        self.items = kit.Embedding(4000, 8)
        self.countries = kit.Embedding(4, 3)
        known = tf.lookup.KeyValueTensorInitializer(["de", "fr", "pe"], [0, 1, 2])
        self.country = tf.lookup.StaticHashTable(known, -1)
        self.blocks = [
            (kit.Dense(16, "silu"), kit.LayerNormalization(), kit.Dense(16)) for _ in range(2)
        ]
        self.out = kit.Dense(1)

    def call(self, inputs):
        watched = inputs["watched"]
        ops = keras.ops
        mask = ops.cast(ops.not_equal(watched, 0), "float32")[..., None]
        mean = ops.sum(self.items(watched) * mask, axis=1) / ops.sum(mask, axis=1)
        country = self.countries(self.country.lookup(inputs["country"]))
        hidden = ops.concatenate(
            [self.users(inputs["user"]), mean, country, self.items(inputs["item"])], axis=1
        )
        for first, norm, last in self.blocks:
            hidden = last(norm(first(hidden)))
        return {"score": self.out(hidden)}


def watched():
    """Lets an attribute hold the blocks, too: of Keras 3, tf.train.Checkpoint passes over those in
    a list.
    """
    model = Watched()
    model.saved = tf.train.Checkpoint(layers=model.layers)
    return model


def first_letters(texts):
    """Characters of texts, where a bundle counts in bytes."""
    return tf.strings.substr(texts, 0, 3, unit="UTF8_CHAR")


def mixed(ids, rows=ROWS):
    """Rows by a sum over an axis, which a bundle does not compute."""
    last = ids % 1009
    return tf.reduce_sum(tf.stack([last * last, last], -1), -1) % rows


class Bags(tf.keras.Model):
    """Ragged ids that no rule describes, combined in every way or read as they are; and ids padded,
    masked and left out.
    """

    def __init__(self):
        super().__init__()
        self.tags = self.add_weight(name="tags", shape=(ROWS, 6), initializer="random_normal")
        self.words = layers.Embedding(ROWS, 4, embeddings_initializer="random_normal")
        self.seen = layers.Embedding(
            ROWS, 6, mask_zero=True, embeddings_initializer="random_normal"
        )
        self.items = layers.Embedding(FEW, 6, embeddings_initializer="random_normal")
        self.scale = layers.Dense(4, "tanh")
        self.recent = layers.Dense(5, "tanh")
        self.head = layers.Dense(1)

    def call(self, features):
        tags, words, ids, recent = (features[name] for name in ("tags", "words", "seen", "recent"))
        mixed_tags = tags.with_values(mixed(tags.values))
        mixed_words = words.with_values(mixed(words.values))
        rows = self.words(mixed_words)
        ids = ids.to_tensor()
        mask = tf.expand_dims(tf.cast(ids != 0, tf.float32), 2)
        kept = recent > 0
        scaled = self.recent(tf.boolean_mask(self.items(mixed(recent, FEW)), kept))
        places = tf.cast(tf.where(kept)[:, 0], tf.int32)
        parts = [
            tf.nn.embedding_lookup_sparse(self.tags, mixed_tags, None, combiner="mean"),
            tf.nn.embedding_lookup_sparse(
                self.tags, mixed_tags, None, combiner="sqrtn", max_norm=0.05
            ),
            tf.reduce_sum(rows, axis=1),
            tf.reshape(rows.to_tensor(shape=[None, 3, 4]), [-1, 12]),
            tf.reduce_sum(rows.with_values(self.scale(rows.values)).to_tensor(), 1),
            tf.reduce_sum(self.seen(ids) * mask, 1) / tf.maximum(tf.reduce_sum(mask, 1), 1.0),
            tf.math.unsorted_segment_sum(scaled, places, tf.shape(recent)[0]),
        ]
        return {"score": self.head(tf.concat(parts, 1))[:, 0]}


class Beyond(tf.keras.Model):
    """Lookups that only TensorFlow computes: sparse ids with weights, weights and strings that the
    model makes, and feature columns of ids that no rule describes."""

    def __init__(self):
        super().__init__()
        self.words = self.add_weight(name="words", shape=(ROWS, 6), initializer="random_normal")
        self.tags = self.add_weight(name="tags", shape=(FEW, 3), initializer="random_normal")
        self.rows = layers.StringLookup(vocabulary=["red", "green", "blue"], num_oov_indices=2)
        self.colours = layers.Embedding(5, 4, embeddings_initializer="random_normal")
        self.cities = layers.Embedding(FEW, 3, embeddings_initializer="random_normal")
        identity = fc.categorical_column_with_identity
        embed = fc.embedding_column
        weighted = fc.weighted_categorical_column(identity("words", ROWS), "weights")
        recent = embed(identity("recent", FEW, default_value=7), 4, combiner="sum", max_norm=0.2)
        hashed = embed(fc.categorical_column_with_hash_bucket("pair", FEW, tf.int64), 2)
        columns = [
            embed(weighted, 6, combiner="sqrtn"),
            recent,
            embed(identity("item", FEW), 3),
            hashed,
        ]
        self.columns = layers.DenseFeatures(columns)
        self.head = layers.Dense(1)

    def call(self, features):
        names = ("words", "weights", "history", "recent", "item", "colours", "terms")
        words, weights, history, recent, item, colours, terms = (features[name] for name in names)
        bits = tf.cast(tf.raw_ops.PopulationCount(x=words.values), words.values.dtype)
        signed = tf.where(words.values < 0, words.values, bits)
        ids = tf.SparseTensor(words.indices, signed, words.dense_shape)
        fading = tf.pow(
            0.5,
            tf.cast(history.with_values(tf.ragged.range(history.row_lengths()).values), tf.float32),
        )
        both = history.with_values(tf.bitwise.bitwise_xor(history.values % 7, 5))
        lower = colours.with_values(tf.strings.lower(colours.values, "utf-8"))
        clean = tf.strings.to_hash_bucket_fast(
            tf.strings.regex_replace(terms.values, "[^a-z]", ""), FEW
        )
        mean = tf.reduce_mean(self.colours(self.rows(lower)), axis=1)
        look_up = tf.nn.safe_embedding_lookup_sparse
        computed = {
            "words": tf.SparseTensor(words.indices, mixed(words.values), words.dense_shape),
            "weights": weights,
            "recent": tf.where(recent < 0, recent, recent * item[:, None] % (2 * FEW)),
            "item": mixed(item, FEW),
            "pair": item * recent[:, 0],
        }
        parts = [
            look_up(self.words, ids, weights, combiner="sqrtn"),
            look_up(self.words, ids, weights, combiner="sum"),
            look_up(self.words, ids, None, combiner="mean", default_id=7, max_norm=0.1),
            tf.nn.embedding_lookup_sparse(self.words, history, fading, combiner="mean"),
            look_up(self.words, both.to_sparse(), combiner="sum"),
            tf.reduce_sum(
                tf.reshape(tf.gather(self.tags, tf.reshape(features["tags"], [-1, 2])), [-1, 6, 3]),
                1,
            ),
            tf.where(tf.math.is_nan(mean), 0.0, mean),
            look_up(
                self.tags, tf.SparseTensor(terms.indices, clean, terms.dense_shape), combiner="mean"
            ),
            self.cities(tf.strings.to_hash_bucket_fast(first_letters(features["city"]), FEW)),
            self.columns(computed),
        ]
        return {"score": self.head(tf.concat(parts, 1))[:, 0]}


def wide_columns():
    """What no tower computes: indicators of strings, of hashes, with weights, and of crosses of
    all.
    """
    color = fc.categorical_column_with_vocabulary_list("color", ["red", "green"], num_oov_buckets=2)
    price = fc.bucketized_column(fc.numeric_column("price"), [2.0, 9.0])
    crossed = fc.crossed_column([color, price, "brand"], 40)
    listed = fc.categorical_column_with_vocabulary_list("tags", [1, 5, 7], default_value=2)
    labels = fc.weighted_categorical_column(
        fc.categorical_column_with_identity("labels", 12), "labels_weights"
    )
    day = fc.categorical_column_with_hash_bucket("day", 5, tf.int64)
    return [
        fc.indicator_column(each)
        for each in (color, day, labels, crossed, fc.crossed_column([listed, crossed], 30))
    ]


def deep_columns():
    """Each kind of embedded column, and what is no column of ids."""
    identity = fc.categorical_column_with_identity
    embed = fc.embedding_column
    hashed = fc.categorical_column_with_hash_bucket
    color = fc.categorical_column_with_vocabulary_list("color", ["red", "blue"], default_value=0)
    crossed = fc.crossed_column(
        [fc.categorical_column_with_vocabulary_list("color", ["red", "blue"]), "brand"], 90
    )
    price = fc.numeric_column("price", normalizer_fn=lambda price: (price - 8.0) / 3.0)
    scaled = fc.bucketized_column(price, [-1.0, 0.5])
    sizes = fc.bucketized_column(fc.numeric_column("size", (2,)), [0.2, 0.6])
    return [
        fc.numeric_column("price", normalizer_fn=tf.tanh),
        fc.numeric_column("size", shape=(2,)),
        embed(identity("shop", CATEGORIES["shop"], default_value=1), 4),
        embed(hashed("brand", 64, tf.int64), 8),
        embed(hashed("tags", 32, tf.int64), 4, "sqrtn", max_norm=0.5),
        embed(color, 2),
        embed(fc.weighted_categorical_column(identity("labels", 12), "labels_weights"), 2),
        fc.bucketized_column(fc.numeric_column("price"), [1.0, 10.0]),
        fc.indicator_column(identity("day", 7)),
        embed(crossed, 4, max_norm=0.4),
        embed(scaled, 3),
        embed(fc.crossed_column([scaled, "brand"], 20), 2),
        embed(sizes, 3, "sqrtn", max_norm=0.5),
    ]


class Columns(tf.keras.Model):
    """A Wide & Deep model on DenseFeatures and SequenceFeatures, wide on Embedding layers and
    indicators.
    """

    def __init__(self):
        super().__init__()
        history = fc.embedding_column(
            fc.sequence_categorical_column_with_identity("history", 50), 4
        )
        tenth = fc.categorical_column_with_vocabulary_list("tenth", [3, 1, 4], default_value=2)
        place = fc.categorical_column_with_hash_bucket("place", 9, tf.int64)
        computed = [
            fc.embedding_column(each, 2)
            for each in (tenth, place, fc.crossed_column([tenth, "place"], 20))
        ]
        self.deep_columns, self.wide_columns, self.computed_columns = (
            layers.DenseFeatures(each) for each in (deep_columns(), wide_columns(), computed)
        )
        self.sequence_columns = tf.keras.experimental.SequenceFeatures([history])
        self.wide = {name: layers.Embedding(rows, 1) for name, rows in CATEGORIES.items()}
        self.words = layers.StringLookup(vocabulary=["red", "blue"])
        self.pairs = layers.Embedding(3000, 2)
        self.sites = [layers.Embedding(rows, 4) for rows in (100, 60)]
        self.linear = layers.Dense(1)
        self.deep = layers.Dense(1)

    def call(self, inputs):
        given = dict(inputs)
        history, lengths = self.sequence_columns({"history": given["history"]})
        taken = tf.sequence_mask(lengths, PLACES, tf.float32)[:, :, tf.newaxis]
        mean = tf.reduce_sum(history * taken, 1) / tf.maximum(tf.reduce_sum(taken, 1), 1.0)
        sites = [layer(given["sites"][:, place]) for place, layer in enumerate(self.sites)]
        computed = self.computed_columns(
            {"tenth": given["brand"] % 10, "place": self.words(given["color"])}
        )
        pair = tf.strings.lower(given["color"]) + "_" + tf.strings.as_string(given["day"] // 2)
        pairs = self.pairs(tf.strings.to_hash_bucket_fast(pair, 3000))
        score = self.deep(tf.concat([self.deep_columns(given), mean, *sites, computed, pairs], 1))[
            :, 0
        ]
        score += self.linear(self.wide_columns(given))[:, 0]
        wide = [
            tf.reduce_sum(layer(given[name]), axis=[-2, -1]) for name, layer in self.wide.items()
        ]
        return {"score": tf.sigmoid(score + tf.add_n(wide))}
