"""User models whose ids several rules make, one after the other."""

# mypy: ignore-errors

import keras
import tensorflow as tf

ROWS = 2000
WORDS = ["red", "green", "blue"]
fc = tf.feature_column


class Chains(tf.keras.Model):
    """Looks up in a table of its own by each function of the inputs, and by columns of what others return."""

    def __init__(self, made, columns=None, given=None):
        super().__init__()
        self.tables = {name: tf.keras.layers.Embedding(ROWS, 4, name=f"{name}_table") for name in made}
        self.made, self.given = made, given
        self.columns = None if columns is None else tf.keras.layers.DenseFeatures(columns)
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        vectors = [tf.reshape(self.tables[name](made(features)), [-1, 4]) for name, made in self.made.items()]
        if self.columns is not None:
            vectors.append(self.columns(self.given(features)))
        return self.out(tf.concat(vectors, 1))


def fast(strings, buckets=ROWS):
    return tf.strings.to_hash_bucket_fast(strings, buckets)


def chains(layers):
    """Returns what layers of Keras 2 or 3 and operations make of each other's integers."""
    few, several = (
        layers.IntegerLookup(vocabulary=[3, 1, 4]),
        layers.IntegerLookup(vocabulary=[-2, 9], num_oov_indices=3),
    )
    masked = layers.IntegerLookup(vocabulary=[5, 6], num_oov_indices=1, mask_token=0)
    words, buckets = layers.StringLookup(vocabulary=WORDS), layers.Discretization([0.5, 2.0])
    hashing, crossing, wide = layers.Hashing(90), layers.HashedCrossing(ROWS), layers.HashedCrossing(500)
    text, twice, lower = tf.strings.as_string, layers.HashedCrossing(70), layers.HashedCrossing(80)
    initial = tf.lookup.KeyValueTensorInitializer([0, 2, 1], [0, 1, 2], tf.int64, tf.int64)
    table = tf.lookup.StaticHashTable(initial, -1)

    def none(ids):
        return tf.where(tf.equal(ids, -1), tf.constant(9, ids.dtype), ids)

    def below(ids):
        return tf.where(ids < 0, tf.constant(6, ids.dtype), ids)

    return {
        "remainder_listed": lambda given: few(given["item"] % 10),
        "shifted_listed": lambda given: several(given["item"] - 5),
        "masked": lambda given: masked(given["item"] % 7),
        "remainder_hashed": lambda given: fast(text(given["item"] % 1000 - 500)),
        "wrapped_hashed": lambda given: fast(text(tf.cast(given["item"], tf.int32) * 3)),
        "hashed_remainder": lambda given: fast(given["city"], 1000) % 7 + 3,
        "hashed_listed": lambda given: few(fast(given["city"], 5)),
        "listed_twice": lambda given: table.lookup(words(given["city"]) % 3) + 1,
        "listed_hashed": lambda given: hashing(words(given["city"])),
        "column": lambda given: few(given["several"][:, 1] % 10),
        "bucket": lambda given: hashing(buckets(given["age"])),
        "missing": lambda given: 5 - table.lookup(given["item"]) * 2,
        "crossed": lambda given: crossing((given["item"] - 5, given["city"])),
        "crossed_listed": lambda given: wide((few(given["item"] % 10), fast(given["city"], 9) * 2)),
        "joined": lambda given: fast(given["city"] + text(given["item"] * 2) + "_" + text(few(given["shop"] // 3))),
        "crossed_twice": lambda given: twice((given["item"] % 10, given["item"] // 10)),
        "joined_stack": lambda given: fast(
            tf.strings.reduce_join(tf.stack([given["city"], text(given["shop"])], 1), axis=1, separator="|")
        ),
        "joined_twice": lambda given: fast(text(given["item"] % 10) + "_" + text(given["item"])),
        "crossed_lower": lambda given: lower((tf.strings.lower(given["city"]), words(tf.strings.strip(given["city"])))),
        "joined_lower": lambda given: fast(tf.strings.lower(given["city"]) + "_" + text(given["item"])),
        "none": lambda given: none(given["item"] % 10 - 1),
        "below": lambda given: below(given["item"] % 10 - 5),
        "two_columns": lambda given: table.lookup(given["several"] % 4)[:, 1] + 1,
    }


def build():
    return Chains(chains(tf.keras.layers))


def build_3():
    return Chains(chains(keras.layers))


def columns():
    known = fc.categorical_column_with_vocabulary_list("tenth", [3, 1, 4], default_value=2)
    oov = fc.categorical_column_with_vocabulary_list("word", [0, 2], num_oov_buckets=2)
    return [
        fc.embedding_column(known, 4),
        fc.embedding_column(oov, 4),
        fc.embedding_column(fc.categorical_column_with_identity("far", 9, default_value=3), 4),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("twice", 50, tf.int64), 4, "sqrtn"),
        fc.embedding_column(fc.crossed_column(["tenth", "city"], 60), 4),
        fc.embedding_column(fc.crossed_column([known, "word"], 70), 4),
        fc.embedding_column(fc.categorical_column_with_vocabulary_list("lower", WORDS, default_value=2), 4),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("upper", 40), 4),
        fc.indicator_column(fc.categorical_column_with_hash_bucket("word", 6, tf.int64)),
    ]


def build_columns():
    words = tf.keras.layers.StringLookup(vocabulary=WORDS)

    def given(features):
        return {
            "tenth": features["item"] % 10,
            "word": words(features["city"]),
            "far": tf.abs(features["shop"]) * 2 % 12,
            "twice": features["several"] % 5 * 2,
            "city": features["city"],
            "upper": tf.strings.upper(features["city"]),
            "lower": tf.strings.lower(features["city"]),
        }

    return Chains({}, columns(), given)


def build_none():
    column = fc.embedding_column(fc.categorical_column_with_hash_bucket("less", 50, tf.int64), 4)
    return Chains({}, [column], lambda features: {"less": features["item"] - 1})
