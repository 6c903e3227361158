"""Constructs models of FuxiCTR, and describes their files to the exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rowcast.model_code import definitions

MODELS = Path(__file__).parent / "FuxiCTR/model_zoo"
DIM = 16
LENGTH = 20


def bst_model() -> Any:
    """Returns a BST of two layers, whose history does not see the movie behind it."""
    from fuxictr.features import FeatureMap

    features = FeatureMap("movielens", "")
    features.features.update(
        user_id={"type": "categorical", "vocab_size": 611},
        movie_id={"type": "categorical", "vocab_size": 9_743, "padding_idx": 0},
        history={
            "type": "sequence",
            "vocab_size": 9_743,
            "max_len": LENGTH,
            "padding_idx": 0,
            "share_embedding": "movie_id",
        },
    )
    features.default_emb_dim = DIM
    return definitions(MODELS / "BST/src/BST.py").BST(
        features,
        embedding_dim=DIM,
        stacked_transformer_layers=2,
        bst_target_field=["movie_id"],
        bst_sequence_field=["history"],
        seq_pooling_type="target",
        use_causal_mask=True,
        optimizer="adam",
        loss="binary_crossentropy",
        metrics=["AUC"],
        verbose=0,
        model_root="",
    )


def bst() -> Any:
    """Returns no tables, since the module looks up itself, and the file of the module."""
    return [], {"": "bst.npz"}
