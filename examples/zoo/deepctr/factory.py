"""Constructs the models of DeepCTR as its documentation does, for the columns of MovieLens."""

from __future__ import annotations

import os
from collections.abc import Callable
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


def of_columns(build: Callable[..., Any]) -> Callable[[], Any]:
    """Returns the factory of a model whose linear part and whose network read the same columns."""
    return lambda: build(columns(), columns(), task="binary")


def of_history(build: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    """Returns the factory of a model that reads the history beside the movie."""
    return lambda: build(sequence_columns(), ["movie_id"], task="binary", **options)


def of_tasks(build: Callable[..., Any]) -> Callable[[], Any]:
    """Returns the factory of a model with two tasks."""
    return lambda: build(columns(), task_types=("binary", "binary"), task_names=TASKS)


def ccpm() -> Any:
    """Returns a CCPM, whose network reads ids alone."""
    ids = [column for column in columns() if isinstance(column, SparseFeat)]
    return models.CCPM(columns(), ids, task="binary")


def fgcnn() -> Any:
    """Returns an FGCNN of two convolutions, each of which halves the number of features."""
    widths = {"conv_kernel_width": (3, 2), "pooling_width": (2, 2)}
    return models.FGCNN(columns(), columns(), **widths, conv_filters=(8, 4), new_maps=(2, 2))


def flen() -> Any:
    """Returns a FLEN, whose columns are in groups: those of the user, and those of the movie."""
    grouped: list[Any] = [
        SparseFeat(name, size, embedding_dim=8, group_name=name.partition("_")[0])
        for name, size in SIZES.items()
    ]
    grouped.append(DenseFeat("user_rating", 1))
    return models.FLEN(grouped, grouped, task="binary")


def pnn() -> Any:
    """Returns a PNN, which has no linear part."""
    return models.PNN(columns(), task="binary")


def dsin() -> Any:
    """Returns a DSIN, which divides the history into two sessions."""
    movie = SparseFeat("movie_id", MOVIES, embedding_dim=8)
    sessions = [
        VarLenSparseFeat(
            SparseFeat(f"sess_{number}_movie_id", MOVIES, 8, embedding_name="movie_id"),
            maxlen=HISTORY // 2,
        )
        for number in range(2)
    ]
    user = SparseFeat("user_id", USERS, embedding_dim=8)
    return models.DSIN([user, movie, *sessions], ["movie_id"], sess_max_count=2)


autoint = of_columns(models.AutoInt)
bst = of_history(models.BST, att_head_num=4)
dcnmix = of_columns(models.DCNMix)
deepfm = of_columns(models.DeepFM)
din = of_history(models.DIN)
esmm = of_tasks(models.ESMM)
fibinet = of_columns(models.FiBiNET)
mmoe = of_tasks(models.MMOE)
nfm = of_columns(models.NFM)
onn = of_columns(models.ONN)
ple = of_tasks(models.PLE)
xdeepfm = of_columns(models.xDeepFM)
