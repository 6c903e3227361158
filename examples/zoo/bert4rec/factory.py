"""Constructs the BERT4Rec of BERT4Rec-VAE-Pytorch, and describes its file to the exporter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

MOVIES = 9_742


def bert4rec_model() -> Any:
    """Returns a BERT4Rec, whose mask is the id behind those of the movies."""
    from models.bert import BERTModel

    arguments = SimpleNamespace(
        model_init_seed=0,
        num_items=MOVIES,
        bert_max_len=20,
        bert_hidden_units=32,
        bert_num_blocks=2,
        bert_num_heads=2,
        bert_dropout=0.1,
    )
    return BERTModel(arguments)


def bert4rec() -> Any:
    """Returns no tables, since the module looks up itself, and the file of the module."""
    return [], {"": "bert4rec.npz"}
