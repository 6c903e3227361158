"""Constructs models of Torch-RecHub, and describes their files to the exporter."""

from __future__ import annotations

from typing import Any

USERS = 611
MOVIES = 9_743
DIM = 16
LENGTH = 20


def bst_model() -> Any:
    """Returns a BST of a history and the movie behind it."""
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.models.ranking import BST

    history = SequenceFeature(
        "history", MOVIES, DIM, pooling="concat", shared_with="movie_id", padding_idx=0
    )
    return BST(
        features=[SparseFeature("user_id", USERS, DIM)],
        history_features=[history],
        target_features=[SparseFeature("movie_id", MOVIES, DIM, padding_idx=0)],
        mlp_params={"dims": [64, 32], "activation": "relu"},
        nhead=4,
        max_seq_len=LENGTH + 1,
    )


def gru4rec_model() -> Any:
    """Returns a GRU4Rec, whose mode says which tower it computes."""
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.models.matching import GRU4Rec

    shared: dict[str, Any] = {"embed_dim": DIM, "shared_with": "movie_id", "pooling": "concat"}
    return GRU4Rec(
        user_features=[SparseFeature("user_id", USERS, DIM)],
        history_features=[SequenceFeature("history", MOVIES, **shared)],
        item_features=[SparseFeature("movie_id", MOVIES, DIM)],
        neg_item_feature=[SequenceFeature("other_movies", MOVIES, **shared)],
        user_params={"dims": [64, DIM]},
    )


def bst() -> Any:
    """Returns no tables, since the module looks up itself, and the file of the module."""
    return [], {"": "bst.npz"}


def gru4rec() -> Any:
    """Returns no tables, since the module looks up itself, and the file of each tower."""
    return [], {"user": "user.npz", "item": "item.npz"}
