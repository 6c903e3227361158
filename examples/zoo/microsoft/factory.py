"""Constructs models of Microsoft's recommenders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import tensorflow as tf
from recommenders.models.sasrec.model import SASREC
from recommenders.models.sasrec.ssept import SSEPT

SIZES = {
    "item_num": 9_742,
    "seq_max_len": 20,
    "num_blocks": 2,
    "embedding_dim": 32,
    "attention_num_heads": 1,
    "dropout_rate": 0.2,
    "num_neg_test": 4,
}


def sasrec() -> Any:
    """Returns the model, and what its `predict` does, for more than one user."""
    model = SASREC(**SIZES, attention_dim=32, conv_dims=[32, 32])

    def predict(inputs: dict[str, Any]) -> Any:  # wrapper
        mask = tf.cast(inputs["input_seq"] != 0, tf.float32)[..., tf.newaxis]  # wrapper
        items, positions = model.embedding(inputs["input_seq"])  # wrapper
        sequence = model.encoder((items + positions) * mask, False, mask)  # wrapper
        last = model.layer_normalization(sequence)[:, -1]  # wrapper
        return tf.reduce_sum(last * model.item_embedding_layer(inputs["candidate"]), -1)  # wrapper

    model.served = predict  # wrapper
    return model


def ssept() -> Any:
    """Returns the model, and what its `predict` does, for more than one user."""
    model = SSEPT(**SIZES, attention_dim=64, conv_dims=[64, 64], user_num=610)

    def predict(inputs: dict[str, Any]) -> Any:  # wrapper
        mask = tf.cast(inputs["input_seq"] != 0, tf.float32)[..., tf.newaxis]  # wrapper
        items, positions = model.embedding(inputs["input_seq"])  # wrapper
        user = model.user_embedding_layer(inputs["user"]) * 32**0.5  # wrapper
        users = tf.tile(user[:, tf.newaxis], [1, 20, 1])  # wrapper
        sequence = tf.concat([items, users], -1) + positions  # wrapper
        sequence = model.encoder(sequence * mask, False, mask)  # wrapper
        last = model.layer_normalization(sequence)[:, -1]  # wrapper
        movie = model.item_embedding_layer(inputs["candidate"])  # wrapper
        return tf.reduce_sum(last * tf.concat([movie, user], -1), -1)  # wrapper

    model.served = predict  # wrapper
    return model


def nrms() -> Any:
    """Returns an NRMS for vectors of words that training wrote."""
    # Its module disables eager execution.
    from recommenders.models.deeprec.deeprec_utils import HParams
    from recommenders.models.newsrec.models.nrms import NRMSModel

    settings = {
        "title_size": 10,
        "his_size": 5,
        "npratio": 4,
        "head_num": 4,
        "head_dim": 5,
        "attention_hidden_dim": 8,
        "word_emb_dim": 20,
        "dropout": 0.2,
        "loss": "cross_entropy_loss",
        "optimizer": "adam",
        "learning_rate": 0.001,
        "wordEmb_file": str(Path(__file__).parent / "words.npy"),
        "support_quick_scoring": True,
    }
    return NRMSModel(HParams(settings), lambda *_, **__: None)
