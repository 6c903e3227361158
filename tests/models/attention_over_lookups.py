"""A ranker of each Keras whose attention is masked by looked-up ids, as a user would write it:
nothing here imports rowcast.
"""

# mypy: ignore-errors

import keras
import tensorflow as tf

MOVIES = list(range(100, 160))
LENGTH = 6


def build(layers, model, masked_by_layer):
    history = layers.Input((LENGTH,), dtype="int64", name="history")
    item = layers.Input((), dtype="int64", name="item")
    rows_of = layers.IntegerLookup(vocabulary=MOVIES, mask_token=0)

    rows = rows_of(history)
    watched = layers.Embedding(70, 8, mask_zero=masked_by_layer, name="movies")(rows)
    attention = layers.MultiHeadAttention(2, 4)
    if masked_by_layer:
        seen = attention(watched, watched)
    else:
        seen = attention(watched, watched, attention_mask=(rows > 0)[:, None, :])
    seen = layers.Flatten()(layers.LayerNormalization()(watched + seen))
    candidate = layers.Embedding(70, 8, name="candidates")(rows_of(item))
    score = layers.Dense(1)(layers.Concatenate()([seen, candidate]))
    return model({"history": history, "item": item}, score)


def build_2_mask_zero():
    return build(tf.keras.layers, tf.keras.Model, True)


def build_2_attention_mask():
    return build(tf.keras.layers, tf.keras.Model, False)


def build_3_mask_zero():
    return build(keras.layers, keras.Model, True)


def build_3_attention_mask():
    return build(keras.layers, keras.Model, False)


def build_hashed_numbers():
    """Each id is a number below 10, whatever it is."""
    layers = keras.layers
    item = layers.Input((), dtype="int64", name="item")
    hashed = layers.Lambda(
        lambda ids: tf.strings.to_hash_bucket_fast(tf.strings.as_string(ids), 10),
        output_shape=(),
    )(item)
    number = layers.Lambda(lambda rows: tf.cast(rows, tf.float32)[:, None], output_shape=(1,))(
        hashed
    )
    return keras.Model({"item": item}, layers.Dense(1)(number))


def build_numbers():
    """A table of numbers that are no positions: no rule describes it, so the tower holds it."""
    layers = keras.layers
    item = layers.Input((), dtype="int64", name="item")
    numbers = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant([7, 9], tf.int64), tf.constant([1, 5], tf.int64)
        ),
        -1,
    )
    number = layers.Lambda(
        lambda ids: tf.cast(numbers.lookup(ids), tf.float32)[:, None], output_shape=(1,)
    )(item)
    return keras.Model({"item": item}, layers.Dense(1)(number))
