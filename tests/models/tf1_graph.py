"""A ranker of TF1 whose constructor makes its graph, its placeholders, its session and its saver,
as most published programs of TF1 do.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

DIM = 8


class Iterator:
    """The inputs of the model."""

    def __init__(self, graph: Any) -> None:
        """Makes the placeholders."""
        with graph.as_default():
            self.user = tf.placeholder(tf.int32, [None], name="user")
            self.seen = tf.placeholder(tf.int32, [None, None], name="seen")
            self.ad = tf.placeholder(tf.int32, [None], name="ad")
            self.label = tf.placeholder(tf.float32, [None], name="label")


class Ranker:
    """The model."""

    def __init__(self) -> None:
        """Builds the graph, and opens a session."""
        tf.reset_default_graph()
        self.graph = tf.Graph()
        self.iterator = Iterator(self.graph)
        with self.graph.as_default():
            self.keep = tf.placeholder(tf.float32, name="keep")
            self.is_training = tf.placeholder_with_default(False, (), name="is_training")
            self.rate = tf.placeholder(tf.float32, [])
            self._build()
            self.saver = tf.train.Saver()
            self.session = tf.Session(graph=self.graph)
            self.session.run(tf.global_variables_initializer())

    def _build(self) -> None:
        users = tf.get_variable("users", [90, DIM])
        ads = tf.get_variable("ads", [40, DIM])
        user = tf.nn.embedding_lookup(users, self.iterator.user)
        ad = tf.nn.embedding_lookup(ads, self.iterator.ad)
        seen = tf.reduce_sum(tf.nn.embedding_lookup(ads, self.iterator.seen), 1)
        joined = tf.nn.dropout(tf.concat([user, ad, seen], 1), keep_prob=self.keep[0])
        kernel = tf.get_variable("kernel", [3 * DIM, 2])
        bias = tf.get_variable("bias", [])
        self.logits = tf.matmul(joined, kernel)
        self.logits += tf.cond(self.is_training, lambda: 1.0, lambda: bias)
        self.scores = {"click": tf.sigmoid(self.logits[:, 0]), "buy": self.logits[:, 1]}
        losses = tf.square(self.scores["click"] - self.iterator.label)
        self.loss = tf.reduce_mean(losses) + 1e-3 * tf.nn.l2_loss(ads)
        optimizer = tf.train.AdamOptimizer(self.rate)
        gradients, variables = zip(*optimizer.compute_gradients(self.loss), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 5.0)
        self.step = optimizer.apply_gradients(zip(clipped, variables, strict=True))
