"""User models of TPUEmbedding, the mid-level API: nothing here imports rowcast."""

# mypy: ignore-errors

import tensorflow as tf

# Bound before anything is intercepted, as in a module of the user.
from tensorflow.tpu.experimental.embedding import serving_embedding_lookup

E = tf.tpu.experimental.embedding


class Ads(tf.Module):
    """The mid-level API: weights, a sequence, a sparse bag, one id in a dimension of its own, calls
    as tf.functions.
    """

    def __init__(self):
        super().__init__()
        ads = E.TableConfig(30, 4, name="ads", combiner="mean")
        self.words = E.FeatureConfig(E.TableConfig(100, 6, name="words", combiner="sqrtn"))
        self.config = {
            "ad": E.FeatureConfig(ads),
            "clicks": E.FeatureConfig(ads),
            "recent": E.FeatureConfig(ads, max_sequence_length=3),
        }
        self.tables = E.TPUEmbedding({**self.config, "words": self.words}, E.SGD(0.1))
        self.tables.build()
        self.near = E.TPUEmbeddingForServing(
            {"slots": E.FeatureConfig(E.TableConfig(7, 2, name="slots"))}, None
        )
        self.near.build()
        self.kernel = tf.Variable(tf.random.normal([30, 5]), name="kernel")
        self.scale = tf.Variable(tf.ones([5]), name="scale")
        self.unused = tf.Variable(tf.ones([2]), name="unused")

    @tf.function
    def context(self, inputs):
        return tf.nn.relu(self.activations(inputs) @ self.kernel)

    @tf.function
    def activations(self, inputs):
        tables = self.tables.embedding_tables
        ids = {
            "ad": tf.expand_dims(inputs["ad"], 1),
            "clicks": inputs["clicks"],
            "recent": inputs["recent"],
        }
        weights = {"ad": None, "clicks": inputs["click_weights"], "recent": None}
        found = serving_embedding_lookup(ids, weights, tables, self.config)
        words = serving_embedding_lookup(
            inputs["words"], inputs["word_weights"], tables, self.words
        )
        slots = tf.reshape(self.near({"slots": inputs["slots"]})["slots"], [-1, 4])
        n = tf.shape(inputs["ad"])[0]
        recent = tf.reshape(found["recent"], [n, 12])
        return tf.concat([found["ad"][:, 0], found["clicks"], recent, words, slots], 1)

    def rank(self, inputs):
        hidden = self.context(inputs)
        if tf.reduce_any(hidden > 1e9):  # needs AutoGraph
            hidden = tf.zeros_like(hidden)
        return {"click": tf.reduce_sum(hidden * self.scale, 1), "hidden": hidden}


def build_ads():
    return Ads()


class MidLevel(tf.Module):
    """The mid-level API of each generation of TPUs; weights, sequences and shapes as FeatureConfigs
    state.
    """

    def __init__(self, layer):
        super().__init__()
        items = E.TableConfig(40, 4, name="items", combiner="mean", optimizer=E.SGD(0.1))
        self.layer = layer(
            {
                "item": E.FeatureConfig(items),
                "bag": E.FeatureConfig(items),
                "recent": E.FeatureConfig(items, max_sequence_length=2),
            },
            E.SGD(0.1),
        )
        self.layer.build()
        self.returns_more = layer is E.TPUEmbeddingV2
        self.kernel = tf.Variable(tf.random.normal([16, 3]), name="kernel")

    def __call__(self, features):
        weights = {"item": None, "bag": features["weights"], "recent": None}
        found = self.layer({name: features[name] for name in weights}, weights)
        if self.returns_more:
            found, _partitioned = found
        recent = tf.reshape(found["recent"], [-1, 8])
        return tf.concat([found["item"], found["bag"], recent], 1) @ self.kernel

    def placed(self, features):
        return self({**features, "item": features["item"][:, 1]})

    def twice(self, features):
        return self({**features, "recent": features["bag"]})


def build_serving():
    return MidLevel(E.TPUEmbeddingForServing)


def build_v0():
    return MidLevel(E.TPUEmbeddingV0)


def build_v2():
    return MidLevel(E.TPUEmbeddingV2)
