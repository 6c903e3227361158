"""User models that read texts, as TensorFlow's tutorials of recommenders do: by TextVectorization, or by hand."""

# mypy: ignore-errors

import string

import keras
import tensorflow as tf

WORDS = ["the", "of", "star", "wars", "don't", "dont", "1977", "\u00e9t\u00e9", "in love", "a", "b", "\u65e5"]


class Titled(tf.keras.Model):
    def __init__(self, made, kept):
        super().__init__()
        self.made, self.kept = made, kept
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        return self.out(tf.concat([tf.cast(made(features), tf.float32) for made in self.made.values()], 1))


def titles(layers, sequential):
    """Returns what layers of Keras 2 or 3 make of titles."""

    def averaged(rows, **how):
        words = layers.TextVectorization(max_tokens=rows, vocabulary=WORDS, **how)
        return sequential([words, layers.Embedding(rows, 4, mask_zero=True), layers.GlobalAveragePooling1D()])

    mean, letters = averaged(20), averaged(21, split="character", standardize="lower")
    runs, cut = averaged(22, ngrams=2, standardize=None), averaged(23, output_sequence_length=3)
    counts, hot = (
        layers.TextVectorization(vocabulary=WORDS, output_mode=mode, standardize="strip_punctuation")
        for mode in ("count", "multi_hot")
    )
    weights = [place / 8 for place in range(len(WORDS))]
    rare = layers.TextVectorization(vocabulary=WORDS, output_mode="tf_idf", idf_weights=weights, standardize="lower")
    fixed = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=3)
    table, whole = layers.Embedding(24, 4), layers.TextVectorization(vocabulary=WORDS, split=None)
    masked = layers.Embedding(25, 4, mask_zero=True)
    one = layers.Embedding(26, 4)
    made = {
        "mean": lambda given: mean(given["title"]),
        "letters": lambda given: letters(given["title"]),
        "runs": lambda given: runs(given["title"]),
        "cut": lambda given: cut(given["title"]),
        "counts": lambda given: counts(given["title"]),
        "hot": lambda given: hot(given["title"]),
        "rare": lambda given: rare(given["title"]),
        "fixed": lambda given: tf.reshape(table(fixed(given["title"])), [-1, 12]),
        "masked": lambda given: pooled(fixed(given["title"]), masked),
        "whole": lambda given: one(whole(given["title"])),
    }
    return made, [mean, letters, runs, cut, table, masked, one]


def pooled(words, table):
    """Takes the largest value of the words' rows, as a sequence model with a mask of its own."""
    rows, mask = table(words), words > 0
    return tf.reduce_max(tf.where(mask[:, :, None], rows, tf.constant(-9.0)), 1)


def build():
    return Titled(*titles(tf.keras.layers, tf.keras.Sequential))


def build_3():
    return Titled(*titles(keras.layers, keras.Sequential))


class Handmade(tf.keras.Model):
    """Words that are changed, split and looked up by TensorFlow's own operations."""

    def __init__(self):
        super().__init__()
        self.hashed, self.listed = tf.keras.layers.Embedding(30, 4), tf.keras.layers.Embedding(31, 4)
        self.words = tf.keras.layers.StringLookup(vocabulary=WORDS, num_oov_indices=2)
        self.tidy = tf.keras.layers.TextVectorization(vocabulary=WORDS, standardize=_tidied, ragged=True, ngrams=(1, 2))

    def call(self, features):
        words = tf.strings.split(tf.strings.strip(tf.strings.upper(features["title"])))
        hashed = tf.ragged.map_flat_values(tf.strings.to_hash_bucket_fast, words, 30)
        found = tf.reduce_sum(tf.nn.embedding_lookup(self.hashed.embeddings, hashed), 1)
        listed = tf.reduce_mean(self.listed(self.words(tf.strings.split(features["title"]))), 1)
        tidied = tf.reduce_mean(self.listed(self.tidy(features["title"])), 1)
        lowered = self.hashed(tf.strings.to_hash_bucket_fast(tf.strings.lower(features["title"]), 30))
        return tf.concat([found, listed, tidied, lowered], 1)


def _tidied(texts):
    plain = tf.strings.regex_replace(tf.strings.lower(texts), "<br />", " ")
    return tf.strings.regex_replace(plain, f"[{__import__('re').escape(string.punctuation)}]", "")


def build_handmade():
    model = Handmade()
    model.hashed.build(None)
    return model


def functional(keras_):
    """Returns a functional model of titles, each in a list of its own."""
    layers = keras_.layers
    title = keras_.Input((1,), dtype="string", name="title")
    words = layers.TextVectorization(max_tokens=40, vocabulary=WORDS)(title)
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(40, 4, mask_zero=True)(words))
    return keras_.Model({"title": title}, layers.Dense(2)(pooled))


def build_functional():
    return functional(tf.keras)


def build_functional_3():
    return functional(keras)


class Vectorized(tf.keras.Model):
    def __init__(self, mask=True, **how):
        super().__init__()
        layers = tf.keras.layers
        self.words, self.table = layers.TextVectorization(**how), layers.Embedding(4000, 4, mask_zero=mask)
        self.pooled = layers.GlobalAveragePooling1D()

    def call(self, features):
        return self.pooled(self.table(self.words(features["title"])))


def build_unmasked():
    return Vectorized(mask=False, vocabulary=WORDS)


def build_unicode():
    return Vectorized(vocabulary=WORDS, standardize=lambda texts: tf.strings.lower(texts, encoding="utf-8"))


def build_separated():
    return Vectorized(vocabulary=WORDS, split=lambda texts: tf.strings.split(texts, "|"))


class Zeroed(Vectorized):
    """Words of which one has the row that is masked."""

    def __init__(self):
        super().__init__(vocabulary=WORDS)
        self.found = tf.keras.layers.StringLookup(vocabulary=WORDS, num_oov_indices=1, mask_token=None)
        self.words = lambda texts: self.found(tf.strings.split(texts)).to_tensor()


def build_zeroed():
    return Zeroed()


def build_unadapted():
    return Vectorized()
