"""Constructs the SASRec of Microsoft's recommenders."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import tensorflow as tf
from recommenders.models.sasrec.model import SASREC


def sasrec() -> Any:
    """Returns the model, and what its `predict` does, for more than one user."""
    model = SASREC(
        item_num=9_742,
        seq_max_len=20,
        num_blocks=2,
        embedding_dim=32,
        attention_dim=32,
        attention_num_heads=1,
        conv_dims=[32, 32],
        dropout_rate=0.2,
        num_neg_test=4,
    )

    def predict(inputs: dict[str, Any]) -> Any:  # wrapper
        mask = tf.cast(inputs["input_seq"] != 0, tf.float32)[..., tf.newaxis]  # wrapper
        items, positions = model.embedding(inputs["input_seq"])  # wrapper
        sequence = model.encoder((items + positions) * mask, False, mask)  # wrapper
        last = model.layer_normalization(sequence)[:, -1]  # wrapper
        return tf.reduce_sum(last * model.item_embedding_layer(inputs["candidate"]), -1)  # wrapper

    model.served = predict  # wrapper
    return model
