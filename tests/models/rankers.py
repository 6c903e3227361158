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


class Crossed(tf.keras.Model):
    """DCN v2 over a user network and an item's rows, which join the batch's size of the other side
    on their way.
    """

    def __init__(self):
        super().__init__()
        self.embedding = embedding(FEATURES)
        self.user = tf.keras.Sequential([dense(64, "relu"), dense(16)])
        self.crosses = [tfrs.layers.dcn.Cross() for _ in range(2)]
        self.head = dense(1)

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in FEATURES})
        user = self.user(tf.concat([found["user"], found["history"]], 1))
        ones = tf.ones([tf.shape(user)[0], 2])
        first = tf.concat(
            [
                tf.reshape(user, [tf.shape(found["item"])[0], -1]),
                found["item"],
                found["shop"],
                ones,
            ],
            1,
        )
        first = tf.ensure_shape(first, [None, 50])
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        return {"score": self.head(crossed)[:, 0]}


def build_crossed():
    return called(Crossed())


class Together(tf.keras.Model):
    """Nothing to split: all goes into one network at once; `mixed` looks at all users of the batch
    before.
    """

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.embedding = embedding(FEATURES)
        self.user = dense(32)
        self.net = tf.keras.Sequential([dense(32, "relu"), dense(2)])

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in FEATURES})
        user = tf.concat([found["user"], found["history"]], 1)
        if self.way == "mixed":
            user = self.user(user - tf.reduce_mean(user, 0, keepdims=True))
        out = self.net(tf.concat([user, found["item"], found["shop"]], 1))
        return {"click": out[:, 0], "like": out[:, 1]}


def build_together():
    return called(Together(""))


def build_mixed():
    return called(Together("mixed"))


class Wide(tf.keras.Model):
    """Many features of one context and an item: joined in an order of its own, and some read once
    more.
    """

    NAMES = tuple(f"c{number}" for number in range(90))

    def __init__(self):
        super().__init__()
        self.embedding = embedding([*self.NAMES, "item"], rows=5, dim=2)
        self.user = tf.keras.Sequential([dense(16, "relu"), dense(8)])
        self.net = tf.keras.Sequential([dense(16, "relu"), dense(1)])

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in [*self.NAMES, "item"]})
        joined = tf.concat(
            [*[found[name] for name in reversed(self.NAMES)], features["age"][:, None]], 1
        )
        user = self.user(joined) + tf.reduce_sum(found["c3"] * found["c4"], 1, keepdims=True)
        return {"score": self.net(tf.concat([user, found["item"]], 1))[:, 0]}


def build_wide():
    return called(Wide())


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


class Interacting(tf.keras.Model):
    """DLRM in small: vectors above each other, a bottom network's among them, and the products of
    all pairs.
    """

    NAMES = tuple(f"s{number}" for number in range(12))

    def __init__(self):
        super().__init__()
        self.embedding = embedding(self.NAMES, rows=5, dim=4)
        self.bottom = dense(4)
        self.top = dense(1)

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in self.NAMES})
        vectors = [self.bottom(features["age"][:, None]), *found.values()]
        stacked = tf.stack(vectors, 1)
        products = tf.matmul(stacked, stacked, transpose_b=True)
        return {"score": self.top(tf.reshape(products, [-1, 13 * 13]))[:, 0]}


def build_stack():
    return called(Interacting())


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
