"""Ranking models to split by data flow, as a user would write them: nothing here
imports rowcast.
"""

# mypy: ignore-errors

import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding
FEATURES = ("user", "history", "item", "shop")


def dense(units, activation=None):
    return tf.keras.layers.Dense(units, activation, bias_initializer="ones")


def embedding(names, rows=30, dim=16):
    config = {
        name: E.FeatureConfig(
            E.TableConfig(rows, dim, name=f"{name}_table", combiner="mean"), name=name
        )
        for name in names
    }
    return tfrs.layers.embedding.TPUEmbedding(config, None)


def called(model):
    """Calls a model once, as training does, so that it has its weights."""
    names = [*FEATURES, *getattr(model, "NAMES", ())]
    ids = {name: tf.constant([1, 2], tf.int64) for name in names}
    model(
        {
            **ids,
            "history": tf.ragged.constant([[1], [2, 3]], dtype=tf.int64),
            "age": tf.constant([0.5, 1.5]),
        }
    )
    return model


class Experts(tf.keras.Model):
    """PLE in small: a user network, experts of each task and shared ones, gates, three heads and
    their product.
    """

    TASKS = ("click", "like", "share")

    def __init__(self):
        super().__init__()
        self.embedding = embedding(FEATURES)
        self.user = tf.keras.Sequential([dense(32, "relu"), dense(16, "relu")])
        self.shared = [dense(16, "relu") for _ in range(2)]
        self.own = {task: dense(16, "relu") for task in self.TASKS}
        self.gates = {task: dense(3, "softmax") for task in self.TASKS}
        self.heads = {
            task: tf.keras.Sequential([dense(16, "relu"), dense(1, "sigmoid")])
            for task in self.TASKS
        }

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in FEATURES})
        user = self.user(tf.concat([found["user"], found["history"], features["age"][:, None]], 1))
        both = tf.concat([user, found["item"], found["shop"]], 1)
        shared = [expert(both) for expert in self.shared]
        scores = {}
        for task in self.TASKS:
            experts = tf.stack([*shared, self.own[task](both)], 1)
            mixed = tf.reduce_sum(experts * self.gates[task](both)[:, :, None], 1)
            scores[task] = self.heads[task](mixed)[:, 0]
        return {**scores, "both": scores["click"] * scores["like"], "loyal": tf.reduce_sum(user, 1)}


def build_experts():
    return called(Experts())


class Mixed(tf.keras.Model):
    """Nothing to split: what it computes of a user looks at all users of the batch."""

    def __init__(self):
        super().__init__()
        self.embedding = embedding(FEATURES)
        self.user = dense(32)
        self.net = tf.keras.Sequential([dense(32, "relu"), dense(2)])

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in FEATURES})
        user = tf.concat([found["user"], found["history"]], 1)
        user = self.user(user - tf.reduce_mean(user, 0, keepdims=True))
        out = self.net(tf.concat([user, found["item"], found["shop"]], 1))
        return {"click": out[:, 0], "like": out[:, 1]}


def build_mixed():
    return called(Mixed())


class Recurrent(tf.keras.Model):
    """A user's history read by attention and a GRU, whose loop no list of operations knows."""

    def __init__(self):
        super().__init__()
        table = E.TableConfig(30, 8, name="items")
        config = {
            "history": E.FeatureConfig(table, max_sequence_length=5),
            "item": E.FeatureConfig(table),
        }
        self.embedding = tfrs.layers.embedding.TPUEmbedding(config, None)
        self.attention = tf.keras.layers.MultiHeadAttention(2, 4)
        self.gru = tf.keras.layers.GRU(16)
        self.net = tf.keras.Sequential([dense(16, "relu"), dense(1)])

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in ("history", "item")})
        user = self.gru(self.attention(found["history"], found["history"]))
        return {"score": self.net(tf.concat([user, found["item"]], 1))[:, 0]}


def build_recurrent():
    return called(Recurrent())


class Joined(tf.keras.Model):
    """One network over many features of a context and an item side by side, its input read once
    more besides.
    """

    NAMES = tuple(f"c{number}" for number in range(40))

    def __init__(self):
        super().__init__()
        self.embedding = embedding([*self.NAMES, "item"], rows=5, dim=4)
        self.net = tf.keras.Sequential([dense(16, "relu"), dense(1)])
        self.other = dense(8, "tanh")

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in [*self.NAMES, "item"]})
        both = tf.concat(
            [*(found[name] for name in self.NAMES[:20]), found["item"], found["c30"], found["c31"]],
            1,
        )
        return {"score": self.net(both)[:, 0] + tf.reduce_sum(self.other(both), 1)}


def build_joined():
    return called(Joined())
