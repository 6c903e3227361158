"""Constructs the models of DeepCTR as its documentation does, for the columns of MovieLens."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

from deepctr import models
from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat

USERS = 611
MOVIES = 9_743
HISTORY = 10
SIZES = {"user_id": USERS, "movie_id": MOVIES, "user_gender": 2, "bucketized_user_age": 60}
TASKS = ("finish", "like")


def columns(dim: int = 8) -> list[Any]:
    """Returns a column for each feature, and one for a number."""
    ids = [SparseFeat(name, size, embedding_dim=dim) for name, size in SIZES.items()]
    return [*ids, DenseFeat("user_rating", 1)]


def sequence_columns(dim: int = 8) -> list[Any]:
    """Returns the columns, and one for the history, which reads the table of the movies."""
    movie = SparseFeat("hist_movie_id", MOVIES, embedding_dim=dim, embedding_name="movie_id")
    return [*columns(dim), VarLenSparseFeat(movie, maxlen=HISTORY, length_name="seq_length")]


def deepfm() -> Any:
    """Returns a DeepFM."""
    return models.DeepFM(columns(), columns(), task="binary")


def xdeepfm() -> Any:
    """Returns an xDeepFM."""
    return models.xDeepFM(columns(), columns(), task="binary")


def dcnmix() -> Any:
    """Returns a DCN-Mix."""
    return models.DCNMix(columns(), columns(), task="binary")


def autoint() -> Any:
    """Returns an AutoInt."""
    return models.AutoInt(columns(), columns(), task="binary")


def din() -> Any:
    """Returns a DIN, which attends to the history."""
    return models.DIN(sequence_columns(), ["movie_id"], task="binary")


def bst() -> Any:
    """Returns a BST, a transformer over the history."""
    return models.BST(sequence_columns(), ["movie_id"], att_head_num=4, task="binary")


def mmoe() -> Any:
    """Returns an MMOE with two tasks."""
    return models.MMOE(columns(), task_types=("binary", "binary"), task_names=TASKS)


def ple() -> Any:
    """Returns a PLE with two tasks."""
    return models.PLE(columns(), task_types=("binary", "binary"), task_names=TASKS)
