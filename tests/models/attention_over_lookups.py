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


def build_3_attention_mask():
    return build(keras.layers, keras.Model, False)
