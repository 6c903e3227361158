"""Rankers whose ids are computed in ways that no rule tells, of bags too: nothing here imports rowcast."""

# mypy: ignore-errors

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow as tf

ROWS, FEW = 5000, 300


def head():
    return tf.keras.Sequential([tf.keras.layers.Dense(12, "relu"), tf.keras.layers.Dense(1)])


def mixed(ids, rows=ROWS):
    """Rows by a product of ids by themselves, which no rule tells."""
    last = ids % 1009
    return (last * last + last) % rows


class Ragged(tf.keras.Model):
    """Ragged ids, combined in every way, and rows of them that are read as they are."""

    def __init__(self):
        super().__init__()
        self.tags = self.add_weight(name="tags", shape=(ROWS, 6), initializer="random_normal")
        self.words = tf.keras.layers.Embedding(ROWS, 4, embeddings_initializer="random_normal")
        self.scale = tf.keras.layers.Dense(4, "tanh")
        self.head = head()

    def call(self, features):
        tags, words = features["tags"], features["words"]
        mixed_tags, mixed_words = tags.with_values(mixed(tags.values)), words.with_values(mixed(words.values))
        rows = self.words(mixed_words)
        parts = [
            tf.nn.embedding_lookup_sparse(self.tags, mixed_tags, None, combiner="mean"),
            tf.nn.embedding_lookup_sparse(self.tags, mixed_tags, None, combiner="sqrtn", max_norm=0.05),
            tf.reduce_sum(rows, axis=1),
            tf.reshape(rows.to_tensor(shape=[None, 3, 4]), [-1, 12]),
            tf.reduce_sum(rows.with_values(self.scale(rows.values)).to_tensor(), 1),
        ]
        return {"score": self.head(tf.concat(parts, 1))[:, 0]}


class Sparse(tf.keras.Model):
    """Sparse ids with weights: negative ids and empty bags, with a row of their own and without."""

    def __init__(self):
        super().__init__()
        self.words = self.add_weight(name="words", shape=(ROWS, 6), initializer="random_normal")
        self.head = head()

    def call(self, features):
        words, weights = features["words"], features["weights"]
        signed = tf.where(words.values < 0, words.values, tf.bitwise.bitwise_xor(words.values, 0x155) % ROWS)
        ids = tf.SparseTensor(words.indices, signed, words.dense_shape)
        look_up = tf.nn.safe_embedding_lookup_sparse
        parts = [
            look_up(self.words, ids, weights, combiner="sqrtn"),
            look_up(self.words, ids, weights, combiner="sum"),
            look_up(self.words, ids, None, combiner="mean", default_id=7, max_norm=0.1),
            features["age"][:, None],
        ]
        return {"score": self.head(tf.concat(parts, 1))[:, 0]}


class Padded(tf.keras.Model):
    """Ids that the model itself pads, masks and leaves out."""

    def __init__(self):
        super().__init__()
        self.tags = tf.keras.layers.Embedding(ROWS, 6, mask_zero=True, embeddings_initializer="random_normal")
        self.items = tf.keras.layers.Embedding(FEW, 6, embeddings_initializer="random_normal")
        self.scale = tf.keras.layers.Dense(5, "tanh")
        self.head = head()

    def call(self, features):
        ids = features["tags"].to_tensor()
        mask = tf.expand_dims(tf.cast(ids != 0, tf.float32), 2)
        pooled = tf.reduce_sum(self.tags(ids) * mask, 1) / tf.maximum(tf.reduce_sum(mask, 1), 1.0)
        recent = features["recent"]
        kept = recent > 0
        scaled = self.scale(tf.boolean_mask(self.items(mixed(recent, FEW)), kept))
        places = tf.cast(tf.where(kept)[:, 0], tf.int32)
        summed = tf.math.unsorted_segment_sum(scaled, places, tf.shape(recent)[0])
        return {"score": self.head(tf.concat([pooled, summed], 1))[:, 0]}


class Weighted(tf.keras.Model):
    """Ids as they are, with weights and from places that the model computes."""

    def __init__(self):
        super().__init__()
        self.words = self.add_weight(name="words", shape=(ROWS, 6), initializer="random_normal")
        self.tags = self.add_weight(name="tags", shape=(FEW, 3), initializer="random_normal")
        self.head = head()

    def call(self, features):
        words, tags = features["words"], features["tags"]
        fading = tf.pow(0.5, tf.cast(words.with_values(tf.ragged.range(words.row_lengths()).values), tf.float32))
        both = words.with_values(tf.reverse(words.values, [0]) % 7 + tf.cast(words.value_rowids(), tf.int64))
        parts = [
            tf.nn.embedding_lookup_sparse(self.words, words, fading, combiner="mean"),
            tf.nn.safe_embedding_lookup_sparse(self.words, both.to_sparse(), combiner="sum"),
            tf.reduce_sum(tf.reshape(tf.gather(self.tags, tf.reshape(tags, [-1, 2])), [-1, 6, 3]), 1),
        ]
        return {"score": self.head(tf.concat(parts, 1))[:, 0]}


class Texts(tf.keras.Model):
    """Strings that the model cleans first: ragged and sparse ones, and one of each example."""

    def __init__(self):
        super().__init__()
        self.rows = tf.keras.layers.StringLookup(vocabulary=["red", "green", "blue"], num_oov_indices=2)
        self.colours = tf.keras.layers.Embedding(5, 4, embeddings_initializer="random_normal")
        self.words = self.add_weight(name="words", shape=(FEW, 6), initializer="random_normal")
        self.cities = tf.keras.layers.Embedding(FEW, 3, embeddings_initializer="random_normal")
        self.head = head()

    def call(self, features):
        colours = features["colours"]
        lower = colours.with_values(tf.strings.lower(colours.values))
        words = features["words"]
        clean = tf.strings.to_hash_bucket_fast(tf.strings.regex_replace(words.values, "[^a-z]", ""), FEW)
        ids = tf.SparseTensor(words.indices, clean, words.dense_shape)
        parts = [
            tf.reduce_mean(self.colours(self.rows(lower)), axis=1),
            tf.nn.safe_embedding_lookup_sparse(self.words, ids, combiner="mean"),
            self.cities(tf.strings.to_hash_bucket_fast(tf.strings.substr(features["city"], 0, 3), FEW)),
        ]
        parts[0] = tf.where(tf.math.is_nan(parts[0]), 0.0, parts[0])
        return {"score": self.head(tf.concat(parts, 1))[:, 0]}


class Columns(tf.keras.Model):
    """Feature columns of ids that the model computes: sparse, padded, one of each example, and hashed."""

    def __init__(self):
        super().__init__()
        column, embed = tf.feature_column, tf.feature_column.embedding_column
        identity = column.categorical_column_with_identity
        hashed = column.categorical_column_with_hash_bucket("pair", FEW, tf.int64)
        weighted = column.weighted_categorical_column(identity("words", ROWS), "weights")
        self.columns = tf.keras.layers.DenseFeatures(
            [
                embed(weighted, 6, combiner="sqrtn"),
                embed(identity("recent", FEW, default_value=7), 4, combiner="sum", max_norm=0.2),
                embed(identity("item", FEW), 3),
                embed(hashed, 2),
            ]
        )
        self.head = head()

    def call(self, features):
        words, recent, item = features["words"], features["recent"], features["item"]
        given = {
            "words": tf.SparseTensor(words.indices, mixed(words.values), words.dense_shape),
            "weights": features["weights"],
            "recent": tf.where(recent < 0, recent, recent * item[:, None] % (2 * FEW)),
            "item": mixed(item, FEW),
            "pair": item * recent[:, 0],
        }
        return {"score": self.head(self.columns(given))[:, 0]}
