"""User models whose tables are plain variables or Keras layers: nothing here imports rowcast."""

# mypy: ignore-errors

import keras
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding
ROWS = 20_000


def dense(units, activation=None):
    return tf.keras.layers.Dense(
        units, activation, kernel_initializer="glorot_normal", bias_initializer="ones"
    )


def build_keras_2():
    """A functional model with masks, a table called twice, and an Input without a dtype: ids arrive
    as floats.
    """
    layers = tf.keras.layers
    item = tf.keras.Input((1,), name="item")
    recent = tf.keras.Input((3,), dtype="int32", name="recent")
    items = layers.Embedding(ROWS, 4, mask_zero=True, name="items")
    pooled = layers.GlobalAveragePooling1D()(items(recent))
    hidden = layers.Concatenate()([layers.Flatten()(items(item)), pooled])
    return tf.keras.Model({"item": item, "recent": recent}, layers.Dense(2)(hidden))


class Partial(tf.keras.Model):
    """A table of exactly the threshold is a Keras Embedding, one row more a table of TPUs."""

    def __init__(self):
        super().__init__()
        config = {
            "small": E.FeatureConfig(E.TableConfig(100, 3, name="small")),
            "large": E.FeatureConfig(E.TableConfig(101, 4, name="large", combiner="sum")),
        }
        self.embedding = tfrs.experimental.layers.embedding.PartialTPUEmbedding(
            config, E.SGD(0.1), size_threshold=100
        )
        self.out = dense(2)

    def call(self, features):
        found = self.embedding({"small": features["small"], "large": features["large"]})
        return self.out(tf.concat([found["small"], found["large"]], 1))


def build_partial():
    return Partial()


def build_keras_rs():
    """A DistributedEmbedding over dense, ragged and sparse ids, two of them of one table."""
    layers = pytest.importorskip("keras_rs").layers
    items = layers.TableConfig("items", ROWS, 4, combiner="mean")
    tags = layers.TableConfig("tags", ROWS, 3, combiner="sqrtn")

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = layers.DistributedEmbedding(
                {
                    "item": layers.FeatureConfig("item", items, (8, 1), (8, 4)),
                    "recent": layers.FeatureConfig("recent", items, (8, 3), (8, 4)),
                    "tags": layers.FeatureConfig("tags", tags, (8, None), (8, 3)),
                    "words": layers.FeatureConfig("words", tags, (8, None), (8, 3)),
                }
            )
            self.out = keras.layers.Dense(2)

        def call(self, features):
            names = ("item", "recent", "tags", "words")
            found = self.embedding({name: features[name] for name in names})
            return self.out(tf.concat([found[name] for name in names], 1))

    return Model()
