"""Constructs the models of RecLearn as its examples do."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

from reclearn.models import matching, ranking

SIZES = {"user_id": 611, "movie_id": 9_743, "user_gender": 2, "bucketized_user_age": 60}
USERS = SIZES["user_id"]
MOVIES = SIZES["movie_id"]
COLUMNS = [{"feat_name": name, "feat_num": size, "embed_dim": 8} for name, size in SIZES.items()]


def dcn() -> Any:
    """Returns a Deep & Cross network."""
    return ranking.DCN(COLUMNS, [32, 16])


def deepfm() -> Any:
    """Returns a DeepFM."""
    return ranking.DeepFM(COLUMNS, [32, 16])


def xdeepfm() -> Any:
    """Returns an xDeepFM."""
    return ranking.xDeepFM(COLUMNS, [32, 16], [8, 8])


def fm() -> Any:
    """Returns a factorization machine, whose layer has an underscore in the name of its class."""
    return ranking.FM(COLUMNS)


def ncf() -> Any:
    """Returns an NCF, which scores a positive and a negative movie."""
    return matching.NCF(USERS, MOVIES, 8, [16, 8])


def bpr() -> Any:
    """Returns a factorization of a matrix, which is trained by pairs."""
    return matching.BPR(USERS, MOVIES, 8)


def sasrec() -> Any:
    """Returns a SASRec."""
    return matching.SASRec(MOVIES, 8, seq_len=10)


def mind() -> Any:
    """Returns a MIND."""
    return matching.MIND(MOVIES, 8, seq_len=10, batch_size=500)


def gru4rec() -> Any:
    """Returns a GRU4Rec."""
    return matching.GRU4Rec(MOVIES, 8)


def youtubednn() -> Any:
    """Returns a YoutubeDNN."""
    return matching.YoutubeDNN(MOVIES, 8, [16, 8], batch_size=500)
