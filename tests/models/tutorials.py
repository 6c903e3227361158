"""The retrieval model of TensorFlow Recommenders' tutorials on side features and deep retrieval, as
they write it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

USERS = [str(place) for place in range(40)]
NAMES = [
    "Star Wars",
    "Toy Story",
    "Don't Look Now",
    "The City of Lost Children",
    "Am\u00e9lie",
    "Seven (a.k.a. Se7en)",
]
MOVIES = [
    f"{NAMES[place % len(NAMES)]}{' II' * (place // 12)} ({1970 + place})" for place in range(60)
]
TIMES = np.linspace(8.7e8, 8.9e8, 500, dtype=np.float32)
MAX_TOKENS = 10_000


class UserModel(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        layers = tf.keras.layers
        buckets = np.linspace(TIMES.min(), TIMES.max(), num=1000)
        users = layers.StringLookup(vocabulary=USERS, mask_token=None)
        self.user_embedding = tf.keras.Sequential([users, layers.Embedding(len(USERS) + 1, 8)])
        discretized = layers.Discretization(buckets.tolist())
        self.timestamp_embedding = tf.keras.Sequential(
            [discretized, layers.Embedding(len(buckets) + 1, 8)]
        )
        self.normalized_timestamp = layers.Normalization(axis=None)
        self.normalized_timestamp.adapt(TIMES)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        times = inputs["timestamp"]
        told = [self.user_embedding(inputs["user_id"]), self.timestamp_embedding(times)]
        return tf.concat([*told, tf.reshape(self.normalized_timestamp(times), (-1, 1))], axis=1)


class MovieModel(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        layers = tf.keras.layers
        titles = layers.StringLookup(vocabulary=MOVIES, mask_token=None)
        self.title_embedding = tf.keras.Sequential([titles, layers.Embedding(len(MOVIES) + 1, 8)])
        self.title_vectorizer = layers.TextVectorization(max_tokens=MAX_TOKENS)
        self.title_text_embedding = tf.keras.Sequential(
            [
                self.title_vectorizer,
                layers.Embedding(MAX_TOKENS, 8, mask_zero=True),
                layers.GlobalAveragePooling1D(),
            ]
        )
        self.title_vectorizer.adapt(MOVIES)

    def call(self, titles: Any) -> Any:
        return tf.concat([self.title_embedding(titles), self.title_text_embedding(titles)], axis=1)


class MovielensModel(tfrs.models.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.query_model = tf.keras.Sequential([UserModel(), tf.keras.layers.Dense(8)])
        self.candidate_model = tf.keras.Sequential([MovieModel(), tf.keras.layers.Dense(8)])
        self.task = tfrs.tasks.Retrieval()

    def call(self, features: Mapping[str, Any]) -> Any:
        user = {"user_id": features["user_id"], "timestamp": features["timestamp"]}
        query = self.query_model(user)
        candidate = self.candidate_model(features["movie_title"])
        return {
            "query": query,
            "candidate": candidate,
            "score": tf.reduce_sum(query * candidate, 1),
        }

    def compute_loss(self, features: Mapping[str, Any], training: bool = False) -> Any:
        del training
        found = self(features)
        return self.task(found["query"], found["candidate"], compute_metrics=False)


def index_of_users() -> tf.keras.Model:
    """Returns the layer that the tutorials save to serve retrieval: a query model and an index."""
    layers = tf.keras.layers
    users = layers.StringLookup(vocabulary=USERS, mask_token=None)
    query_model = tf.keras.Sequential([users, layers.Embedding(len(USERS) + 1, 8)])
    return tfrs.layers.factorized_top_k.BruteForce(query_model)
