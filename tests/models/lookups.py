"""User models whose tables are plain variables or Keras layers: nothing here imports rowcast."""

# mypy: ignore-errors

import keras
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding
ROWS = 20_000
FEW = 50
HUGE_ROWS = 2_000_000_000


def dense(units, activation=None):
    return tf.keras.layers.Dense(
        units, activation, kernel_initializer="glorot_normal", bias_initializer="ones"
    )


class Everything(tf.keras.Model):
    """Every way to gather: layers, plain variables, bags, a table shared and one looked up twice,
    ids as numbers.
    """

    def __init__(self, rows=ROWS):
        super().__init__()
        self.items = tf.keras.layers.Embedding(rows, 4, name="items")
        self.wide = tf.keras.layers.Embedding(rows, 1)
        self.hours = tf.keras.layers.Embedding(FEW, 3)
        self.places = tf.keras.layers.Embedding(3, 4)
        self.words = self.add_weight(name="words", shape=(rows, 2))
        self.tags = tf.Variable(lambda: tf.random.normal([rows, 5]), name="tags")
        self.pairs = tf.keras.layers.Embedding(rows, 2)
        self.tower = tf.keras.Sequential([dense(16, "relu"), dense(4)])
        self.head = dense(1)

    def call(self, features):
        item = features["item"]
        recent = features["recent"]
        sequence = self.items(recent) + self.places(tf.range(3))
        mask = tf.cast(recent > 0, tf.float32)[..., None]
        lengths = tf.cast(features["tags"].row_lengths(), tf.float32)[:, None]
        sparse = features["words"]
        weights = features["word_weights"]
        parts = [
            self.items(item),
            tf.reduce_sum(sequence * mask, 1),
            self.wide(item),
            self.hours(features["hour"]),
            tf.nn.embedding_lookup_sparse(self.tags, features["tags"], None, combiner="mean"),
            tf.nn.safe_embedding_lookup_sparse(self.words, sparse, weights, combiner="sqrtn"),
            tf.nn.embedding_lookup(self.tags, item),
            tf.reshape(self.items(recent), [tf.shape(recent)[0], 12]),
            tf.reshape(self.pairs(tf.stack([item, features["other"]], -1)), [-1, 4]),
            lengths,
            tf.expand_dims(features["age"], 1),
        ]
        hidden = self.tower(tf.concat(parts, 1))
        return {"vector": hidden, "score": self.head(hidden)[:, 0]}


def build_everything():
    return Everything()


def build_everything_huge():
    return Everything(HUGE_ROWS)


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


class Ragged(tf.keras.Model):
    """Ragged ids through layers and plain gathers, made dense in each way that is known; or not at
    all.
    """

    def __init__(self, way=""):
        super().__init__()
        self.items = tf.keras.layers.Embedding(ROWS, 4, name="items")
        self.items.build(None)
        self.pool = tf.keras.layers.GlobalAveragePooling1D()
        self.out = dense(2)
        self.way = way

    def call(self, features):
        bag = features["bag"]
        recent = features["recent"]
        if self.way:
            rows = tf.nn.relu(self.items(bag)) if self.way == "odd" else self.items(bag).to_tensor()
            return self.out(tf.reduce_sum(rows, 1))
        parts = [
            self.pool(self.items(bag)),
            tf.reduce_sum(tf.gather(self.items.embeddings, bag), axis=1),
            tf.reshape(self.items(recent).to_tensor(shape=[None, 3, None]), [-1, 12]),
            tf.cast(tf.expand_dims(bag.row_lengths(), 1), tf.float32),
        ]
        return self.out(tf.concat(parts, 1))


def build_ragged():
    return Ragged()


def build_ragged_odd():
    return Ragged("odd")


def build_ragged_of_any_length():
    return Ragged("any")
