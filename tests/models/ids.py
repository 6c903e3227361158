"""User models of what is done to ids before they are looked up or counted: nothing here imports
rowcast.
"""

# mypy: ignore-errors

import math
import re
import string
from functools import partial

import keras
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

ROWS = 20_000
FIELDS = 6
SIZES = np.array([100, 3000, 7, 50, 9000, 400])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
LIMITS = [-1.0, 0.0, 0.25, 0.5, 3.0]
COLORS = ["red", "green", "blue"]
PAIRS = ["red_7", "blue_0", "_-1"]
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
fc = tf.feature_column
E = tf.tpu.experimental.embedding
unless = lambda ids, odd, other: tf.where(tf.equal(ids, odd), tf.constant(other, ids.dtype), ids)  # noqa: E731
text = tf.strings.as_string
fast = tf.strings.to_hash_bucket_fast
joined = tf.strings.join


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


def held(keys, values, default, dtype=tf.int64):
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, values, dtype, tf.int64), default
    )


def rules(layers):
    """Returns what layers of Keras 2 or 3, and TensorFlow's operations, make of one input."""
    few = layers.IntegerLookup(vocabulary=[3, 1, 4])
    listed = layers.StringLookup(vocabulary=COLORS)
    several = layers.StringLookup(vocabulary=COLORS, num_oov_indices=5)
    masked = layers.StringLookup(vocabulary=COLORS, num_oov_indices=2, mask_token="")
    masked_one = layers.StringLookup(vocabulary=COLORS, mask_token="")
    remainders = layers.IntegerLookup(vocabulary=[10, 20, 30], num_oov_indices=4, mask_token=0)
    hashing = layers.Hashing(ROWS)
    salted = layers.Hashing(300, salt=(2, 5), mask_value="")
    masked_hash = layers.Hashing(300, mask_value=7)
    ages = layers.Discretization([0.5, 2.0, 3.0])
    table = held([0, 2, 1], [0, 1, 2], -1)
    initial = tf.lookup.KeyValueTensorInitializer(COLORS, [0, 1, 2], value_dtype=tf.int64)
    words = tf.lookup.StaticVocabularyTable(initial, 4)
    zero = tf.constant(0, tf.int64)
    return {
        "listed": lambda features: listed(features["city"]),
        "several": lambda features: several(features["city"]),
        "masked": lambda features: masked(features["city"]),
        "masked_one": lambda features: masked_one(features["city"]),
        "remainders": lambda features: remainders(features["shop"]),
        "words": lambda features: words.lookup(features["city"]),
        "hashing": lambda features: hashing(features["item"]),
        "salted": lambda features: salted(features["city"]),
        "masked_hash": lambda features: masked_hash(features["item"]),
        "strong": lambda features: tf.strings.to_hash_bucket_strong(
            features["city"], ROWS, [1, -2]
        ),
        "hashed": lambda features: fast(features["city"], 100) + 7,
        "ages": lambda features: ages(features["age"]),
        "default": lambda features: tf.where(
            (features["shop"] >= 0) & (features["shop"] < ROWS), features["shop"], zero + 3
        ),
        "cut": lambda features: (2 + tf.cast(features["shop"], tf.int32)) % 100,
        "steps": lambda features: tf.minimum(features["item"] % 1000 // 10, 50) * 2 + 1,
        "remainder_listed": lambda features: few(features["item"] % 10),
        "remainder_hashed": lambda features: fast(text(features["item"] % 1000 - 500), ROWS),
        "listed_twice": lambda features: table.lookup(listed(features["city"]) % 3) + 1,
        "bucket": lambda features: hashing(ages(features["age"])),
        "missing": lambda features: 5 - table.lookup(features["item"]) * 2,
        "none": lambda features: unless(features["item"] % 10 - 1, -1, 9),
        "two_columns": lambda features: table.lookup(features["several"] % 4)[:, 1] + 1,
    }


def crosses(layers):
    """Returns what they make of several inputs together."""
    plain, column, three, twice, lower = (
        layers.HashedCrossing(bins) for bins in (ROWS, 300, 1000, 70, 80)
    )
    ages = layers.Discretization([0.5, 2.0, 30.0])
    places = layers.Discretization([-10.0, 10.0])
    crossed = layers.HashedCrossing(500)
    known = layers.HashedCrossing(600)
    words = layers.StringLookup(vocabulary=COLORS)
    numbers = layers.IntegerLookup(vocabulary=[7, 5], num_oov_indices=3)
    hashing = layers.Hashing(10)
    salted = layers.Hashing(40, mask_value="red_7", salt=3)
    pairs = layers.StringLookup(vocabulary=PAIRS, num_oov_indices=2)
    listed = held(PAIRS, [0, 1, 2], 5, tf.string)

    def pair(features):
        return joined([features["city"], text(features["item"])], "_")

    return {
        "plain": lambda features: plain((features["city"], features["small"])),
        "columns": lambda features: column((features["one"], features["other"])),
        "three": lambda features: three([features["item"], features["city"], features["shop"]]),
        "crossed": lambda features: crossed((ages(features["age"]), places(features["place"]))),
        "known": lambda features: known(
            (words(features["city"]), numbers(features["item"]), hashing(features["shop"]))
        ),
        "crossed_twice": lambda features: twice((features["item"] % 10, features["item"] // 10)),
        "crossed_lower": lambda features: lower(
            (tf.strings.lower(features["city"]), words(tf.strings.strip(features["city"])))
        ),
        "joined": lambda features: fast(joined([features["one"], features["other"]], "%"), ROWS),
        "prefix": lambda features: fast(joined(["shop=", text(features["shop"])]), 500) + 3,
        "around": lambda features: fast(
            "<" + features["city"] + "|" + text(features["shop"] % 10) + ">", ROWS
        ),
        "nested": lambda features: fast(
            joined([joined([features["city"], features["city_2"]], "&"), text(features["item"])]),
            ROWS,
        ),
        "buckets": lambda features: fast(
            joined([text(ages(features["age"])), text(words(features["city"]))], "x"), 90
        ),
        "salted_pair": lambda features: salted(pair(features)),
        "listed_pair": lambda features: pairs(pair(features)),
        "static_pair": lambda features: listed.lookup(pair(features)),
        "stacked": lambda features: fast(
            tf.strings.reduce_join(
                tf.stack([features["city"], text(features["shop"])], 1), axis=1, separator="|"
            ),
            ROWS,
        ),
        "twice": lambda features: fast(
            text(features["item"] % 10) + "_" + text(features["item"]), ROWS
        ),
        "lower": lambda features: fast(
            tf.strings.lower(features["city"]) + "_" + text(features["item"]), ROWS
        ),
    }


def build_places():
    """Reads ids out of a wide input, and gathers in the ways that do."""
    firsts = tf.constant(OFFSETS, tf.int64)
    many = tf.constant(np.arange(300) * 60)
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


def build_bags():
    """Combines rows that are scaled, or that a default stands for."""
    combined = tf.nn.embedding_lookup_sparse
    safe = tf.nn.safe_embedding_lookup_sparse
    rows = {
        "ragged": lambda table, features: combined(
            table.embeddings, features["bag"], None, combiner="sum", max_norm=0.5
        ),
        "sparse": lambda table, features: safe(table.embeddings, features["tags"], max_norm=0.5),
        "filled": lambda table, features: safe(table.embeddings, features["tags"], default_id=3),
    }
    return looked_up({}, rows)


def build_columns():
    """Reads columns of inputs, and of what the model makes of inputs."""
    listed = fc.categorical_column_with_vocabulary_list
    identity = fc.categorical_column_with_identity
    hashed = fc.categorical_column_with_hash_bucket
    crossed = fc.crossed_column
    known = listed("tenth", [3, 1, 4], default_value=2)
    words = tf.keras.layers.StringLookup(vocabulary=COLORS)
    first = listed("one", ["a", "b"], default_value=1)
    second = listed("other", ["x", "y", "z"])
    falling = fc.bucketized_column(
        fc.numeric_column("age", normalizer_fn=lambda age: 5 - age), [-20.0, 3.0]
    )
    positive = fc.bucketized_column(
        fc.numeric_column("place", normalizer_fn=tf.nn.relu), [-1.0, 2.0]
    )
    embedded = [
        known,
        listed("word", [0, 2], num_oov_buckets=2),
        identity("far", 9, default_value=3),
        crossed(["tenth", "city"], 60),
        crossed([known, "word"], 70),
        crossed([falling, "city"], 80),
        crossed([positive, "city"], 90),
        listed("lower", COLORS, default_value=2),
        hashed("upper", 40),
    ]
    counted = [
        hashed("word", 6, tf.int64),
        hashed("tags", 5, tf.int64),
        listed("few", [3, 4], num_oov_buckets=2),
        listed("several", [2, 5, -1, 7]),
        *(first, second, crossed([first, second, "tags"], 40)),
    ]
    layer = tf.keras.layers.DenseFeatures(
        [fc.embedding_column(column, 4) for column in embedded]
        + [fc.embedding_column(hashed("twice", 50, tf.int64), 4, "sqrtn", max_norm=0.5)]
        + [fc.indicator_column(column) for column in counted]
    )
    made = {
        "tenth": lambda features: features["item"] % 10,
        "word": lambda features: words(features["city"]),
        "far": lambda features: tf.abs(features["shop"]) % 12 * 2,
        "twice": lambda features: features["few_pair"] % 5 * 2,
        "upper": lambda features: tf.strings.upper(features["city"]),
        "lower": lambda features: tf.strings.lower(features["city"]),
    }
    sequence = fc.indicator_column(fc.sequence_categorical_column_with_hash_bucket("words", 5))
    each = tf.keras.experimental.SequenceFeatures([sequence])
    ways = {
        "all": lambda features: layer(
            {**features, **{name: way(features) for name, way in made.items()}}
        ),
        "each": lambda features: each({"words": features["words"]})[0],
    }
    return Ways(ways, [layer])


def build_none():
    column = fc.embedding_column(fc.categorical_column_with_hash_bucket("less", 50, tf.int64), 4)
    layer = tf.keras.layers.DenseFeatures([column])
    return Ways({"less": lambda features: layer({"less": features["item"] - 1})}, [layer])


def build_stripped():
    column = fc.embedding_column(fc.categorical_column_with_hash_bucket("bare", 50), 4)
    layer = tf.keras.layers.DenseFeatures([column])
    return Ways(
        {"bare": lambda features: layer({"bare": tf.strings.strip(features["city"])})}, [layer]
    )


def build_weighted_text():
    """A changed text with a weight, which is no single id."""
    ids = fc.categorical_column_with_hash_bucket("low", 50)
    column = fc.embedding_column(fc.weighted_categorical_column(ids, "age"), 4)
    layer = tf.keras.layers.DenseFeatures([column])

    def lowered(features):
        return layer({"low": tf.strings.lower(features["city"]), "age": features["age"]})

    return Ways({"low": lowered}, [layer])


def encodings(api):
    """Counts by layers of Keras 2 or 3."""
    layers = api.layers
    hot = layers.StringLookup(vocabulary=COLORS, output_mode="multi_hot", num_oov_indices=2)
    counted = layers.IntegerLookup(vocabulary=[7, 5], output_mode="count")
    one = layers.StringLookup(vocabulary=COLORS, output_mode="one_hot")
    words = layers.StringLookup(vocabulary=COLORS)
    counts = layers.CategoryEncoding(4, output_mode="count")
    hashed = layers.Hashing(9, output_mode="one_hot")
    ages = layers.Discretization([1.0, 5.0], output_mode="one_hot")
    crossed = layers.HashedCrossing(30, output_mode="one_hot")
    tenth, small = (
        layers.CategoryEncoding(10, output_mode=mode) for mode in ("one_hot", "multi_hot")
    )
    listed = layers.IntegerLookup(vocabulary=[7, 5], output_mode="one_hot")
    made = {
        "hot": lambda features: hot(features["words"]),
        "counted": lambda features: counted(features["several"]),
        "one": lambda features: one(features["city"]),
        "counts": lambda features: counts(words(features["words"])),
        "hashed": lambda features: hashed(features["item"]),
        "ages": lambda features: ages(features["age"][:, None]),
        "tenth": lambda features: tenth(features["item"] % 10),
        "raw": lambda features: small(features["few_pair"]),
        "listed": lambda features: listed(features["item"] % 8),
        "crossed": lambda features: crossed((features["city"], features["item"])),
    }
    return Ways(made)


def titles(api):
    """Reads titles by layers of Keras 2 or 3."""
    layers = api.layers

    def averaged(rows, **how):
        words = layers.TextVectorization(max_tokens=rows, vocabulary=WORDS, **how)
        return api.Sequential(
            [words, layers.Embedding(rows, 4, mask_zero=True), layers.GlobalAveragePooling1D()]
        )

    mean = averaged(20)
    letters = averaged(21, split="character", standardize="lower")
    runs = averaged(22, ngrams=2, standardize=None)
    cut = averaged(23, output_sequence_length=3)
    counts, hot = (
        layers.TextVectorization(
            vocabulary=WORDS, output_mode=mode, standardize="strip_punctuation"
        )
        for mode in ("count", "multi_hot")
    )
    weights = [place / 8 for place in range(len(WORDS))]
    rare = layers.TextVectorization(
        vocabulary=WORDS, output_mode="tf_idf", idf_weights=weights, standardize="lower"
    )
    fixed = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=3)
    table = layers.Embedding(24, 4)
    whole = layers.TextVectorization(vocabulary=WORDS, split=None)
    masked = layers.Embedding(25, 4, mask_zero=True)
    one = layers.Embedding(26, 4)
    ways = {
        "mean": mean,
        "letters": letters,
        "runs": runs,
        "cut": cut,
        "counts": counts,
        "hot": hot,
        "rare": rare,
    }
    made = {name: lambda features, way=way: way(features["title"]) for name, way in ways.items()}
    made |= {
        "fixed": lambda features: table(fixed(features["title"])),
        "masked": lambda features: largest(fixed(features["title"]), masked),
        "whole": lambda features: one(whole(features["title"])),
    }
    return Ways(made, [mean, letters, runs, cut, table, masked, one])


def largest(words, table):
    """Takes the largest value of the words' rows, as a sequence model with a mask of its own."""
    return tf.reduce_max(tf.where((words > 0)[:, :, None], table(words), tf.constant(-9.0)), 1)


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


def functional(api):
    """Returns a functional model of titles, each in a list of its own."""
    title = api.Input((1,), dtype="string", name="titles")
    words = api.layers.TextVectorization(max_tokens=40, vocabulary=WORDS)(title)
    pooled = api.layers.GlobalAveragePooling1D()(api.layers.Embedding(40, 4, mask_zero=True)(words))
    return api.Model({"titles": title}, api.layers.Dense(2)(pooled))


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


def listed_words(first, unknown):
    """Words have the rows from `first` on, all others have `unknown`."""
    known = held(WORDS, list(range(first, first + len(WORDS))), unknown, tf.string)
    return vectorized(
        lambda texts: tf.ragged.map_flat_values(known.lookup, tf.strings.split(texts)).to_tensor()
    )


build_zeroed_unknown = partial(listed_words, 1, 0)
build_unknown_word = partial(listed_words, 2, 1)
build_unadapted = vectorized
build_unmasked = partial(vectorized, mask=False, vocabulary=WORDS)
build_unicode = partial(
    vectorized, vocabulary=WORDS, standardize=partial(tf.strings.lower, encoding="utf-8")
)
build_separated = partial(
    vectorized, vocabulary=WORDS, split=lambda texts: tf.strings.split(texts, "|")
)


def odd():
    """Returns ids of operations that few models have."""
    layers = tf.keras.layers
    firsts = tf.Variable(OFFSETS, trainable=False)
    crossing = layers.HashedCrossing(ROWS)

    def digits(each):
        return tf.strings.regex_replace(each, "[0-9]+", "")

    words = layers.TextVectorization(
        output_sequence_length=1, vocabulary=COLORS, standardize=digits
    )
    return {
        "squared": lambda features: features["item"] * features["item"] % 100,
        "sine": lambda features: tf.cast(
            10.0 + 10.0 * tf.sin(tf.cast(features["item"], tf.float32)), tf.int64
        ),
        "python": lambda features: tf.reshape(
            tf.py_function(lambda ids: ids + 1, [features["item"]], tf.int64), [-1]
        ),
        "encoded": lambda features: tf.strings.to_hash_bucket_fast(
            tf.io.encode_base64(features["city"]), ROWS
        ),
        "narrow": lambda features: tf.cast(tf.cast(features["item"], tf.uint8), tf.int32),
        "multiplied": lambda features: (features["x"] * features["x"] + OFFSETS)[:, 3:],
        "variable": lambda features: features["x"] + firsts,
        "unguarded": lambda features: tf.searchsorted(
            LIMITS, tf.math.log(features["n"][:, 0]), side="right"
        ),
        "crossed": lambda features: crossing(
            (features["item"] * features["item"], features["city"])
        ),
        "text": lambda features: words(features["one"]),
        "padded": lambda features: fast(
            joined([features["city"], text(features["item"], width=5, fill="0")]), ROWS
        ),
    }


def build_odd(name):
    return looked_up({name: odd()[name]})


for suffix, api in {"": tf.keras, "_3": keras}.items():
    globals()[f"build_rules{suffix}"] = partial(
        lambda api: looked_up(rules(api.layers) | crosses(api.layers)), api
    )
    for build in (encodings, titles, functional):
        globals()[f"build_{build.__name__}{suffix}"] = partial(build, api)
for each in odd():  # build_squared and so on
    globals()[f"build_{each}"] = partial(build_odd, each)
