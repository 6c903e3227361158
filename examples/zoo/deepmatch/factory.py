"""Constructs the models of DeepMatch as its examples do."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import numpy as np
import tensorflow as tf
from deepctr.feature_column import SparseFeat, VarLenSparseFeat
from deepmatch.models import DSSM, MIND, NCF, YoutubeDNN
from deepmatch.utils import NegativeSampler

DIM = 16
HISTORY = 10
USERS = 611
MOVIES = 9_743


def ncf() -> Any:
    """Returns an NCF."""
    return NCF({"user_id": USERS, "user_gender": 2}, {"movie_id": MOVIES})


def youtubednn() -> Any:
    """Returns a YoutubeDNN, and its two parts."""
    return retrieval(YoutubeDNN)


def dssm() -> Any:
    """Returns a DSSM, and its two parts."""
    return retrieval(DSSM, item_dnn_hidden_units=(64, DIM))


def mind() -> Any:
    """Returns a MIND, and its two parts."""
    return retrieval(MIND)


def retrieval(build: Any, **options: Any) -> Any:
    """Returns a model of two towers, and its two parts, as the examples build them."""
    tf.compat.v1.disable_eager_execution()
    watched = SparseFeat("hist_movie_id", MOVIES, DIM, embedding_name="movie_id")
    user = [
        SparseFeat("user_id", USERS, DIM),
        SparseFeat("user_gender", 2, DIM),
        VarLenSparseFeat(watched, HISTORY, "mean", "hist_len"),
    ]
    sampler = NegativeSampler(
        "frequency", num_sampled=5, item_name="movie_id", item_count=np.ones(MOVIES, np.int64)
    )
    model = build(
        user,
        [SparseFeat("movie_id", MOVIES, DIM)],
        user_dnn_hidden_units=(64, DIM),
        sampler_config=sampler,
        **options,
    )
    return SimpleNamespace(
        model=model,
        user=tf.keras.Model(inputs=model.user_input, outputs=model.user_embedding),
        movie=tf.keras.Model(inputs=model.item_input, outputs=model.item_embedding),
    )
