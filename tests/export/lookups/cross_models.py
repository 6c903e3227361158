"""User models whose tables are read by crosses: ids made of several inputs together."""

# mypy: ignore-errors

import keras
import tensorflow as tf

ROWS = 20_000
WORDS = ["red", "green", "blue"]


class Crosses(tf.keras.Model):
    """Looks up in a table of its own by each cross that it is given, a function of the inputs."""

    def __init__(self, made):
        super().__init__()
        self.tables = {name: tf.keras.layers.Embedding(ROWS, 4, name=f"{name}_table") for name in made}
        self.made = made
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        vectors = [self.tables[name](made(features)) for name, made in self.made.items()]
        return self.out(tf.concat([tf.reshape(each, [-1, 4]) for each in vectors], 1))


def by_layer(layers):
    """Returns what a HashedCrossing of Keras 2 or 3 makes of inputs, and of what other layers make of them."""
    plain, column, three, few = (layers.HashedCrossing(bins) for bins in (ROWS, 300, 1000, 77))
    crossed, known = layers.HashedCrossing(500), layers.HashedCrossing(600)
    ages, places = layers.Discretization([0.5, 2.0, 30.0]), layers.Discretization([-10.0, 10.0])
    words, numbers = layers.StringLookup(vocabulary=WORDS), layers.IntegerLookup(vocabulary=[7, 5], num_oov_indices=3)
    hashing = layers.Hashing(10)
    return {
        "plain": lambda given: plain((given["city"], given["item"])),
        "column": lambda given: column((given["one"], given["other"])),
        "three": lambda given: three([given["item"], given["city"], given["shop"]]),
        "few": lambda given: few((given["shop"], tf.cast(given["item"], tf.int64) % 100)),
        "crossed": lambda given: crossed((ages(given["age"]), places(given["place"]))),
        "known": lambda given: known((words(given["city"]), numbers(given["item"]), hashing(given["shop"]))),
    }


def build():
    return Crosses(by_layer(tf.keras.layers))


def build_3():
    return Crosses(by_layer(keras.layers))


def joins():
    """Returns what hashes, and vocabularies, make of strings that are put together of several inputs."""
    text = tf.strings.as_string
    hashing, hashing_3 = tf.keras.layers.Hashing(400), keras.layers.Hashing(40, mask_value="red_7", salt=3)
    pairs = ["red_7", "blue_0", "_-1"]
    words = tf.keras.layers.StringLookup(vocabulary=pairs, num_oov_indices=2)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(pairs, [0, 1, 2], value_dtype=tf.int64), 5)
    ages, shops = tf.keras.layers.Discretization([0.5, 2.0, 30.0]), tf.keras.layers.IntegerLookup(vocabulary=[9, 0])

    def fast(strings, buckets=ROWS):
        return tf.strings.to_hash_bucket_fast(strings, buckets)

    return {
        "joined": lambda given: fast(tf.strings.join([given["city"], text(given["item"])], "_X_")),
        "column": lambda given: fast(tf.strings.join([given["one"], given["other"]], separator="%")),
        "prefix": lambda given: fast(tf.strings.join(["shop=", text(given["shop"])]), 500) + 3,
        "around": lambda given: fast("<" + given["city"] + "|" + text(given["shop"] % 10) + ">"),
        "nested": lambda given: fast(
            tf.strings.join([tf.strings.join([given["city"], given["city_2"]], "&"), text(given["item"])], "|")
        ),
        "bucket": lambda given: fast(tf.strings.join([text(ages(given["age"])), text(shops(given["shop"]))], "x"), 90),
        "hashing": lambda given: hashing(tf.strings.join([given["city"], text(given["item"])], "")),
        "salted": lambda given: hashing_3(tf.strings.join([given["city"], text(given["item"])], "_")),
        "known": lambda given: words(tf.strings.join([given["city"], text(given["item"])], "_")),
        "static": lambda given: table.lookup(tf.strings.join([given["city"], text(given["item"])], "_")),
    }


def build_joins():
    return Crosses(joins())


def build_padded():
    def padded(given):
        text = tf.strings.as_string(given["item"], width=5, fill="0")
        return tf.strings.to_hash_bucket_fast(tf.strings.join([given["city"], text]), ROWS)

    return Crosses({"padded": padded})


def build_text():
    without = {"standardize": lambda texts: tf.strings.regex_replace(texts, "[0-9]+", "#")}
    layer = tf.keras.layers.TextVectorization(output_sequence_length=1, vocabulary=WORDS, **without)
    return Crosses({"text": lambda given: layer(given["one"])})


def build_squared():
    layer = tf.keras.layers.HashedCrossing(ROWS)
    return Crosses({"squared": lambda given: layer((given["item"] * given["item"], given["city"]))})
