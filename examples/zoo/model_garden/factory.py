"""Constructs the ranking models of TensorFlow's Model Garden from their configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import tf_keras
from official.recommendation.ranking import task
from official.recommendation.ranking.configs import config

from rowcast.model_code import definitions

VOCABULARY_SIZES = [9_743, 611, 2_000, 100]


def dlrm() -> Any:
    """Returns a DLRM, whose features interact by dot products."""
    return ranking("dot")


def dcn() -> Any:
    """Returns a DCN v2, whose features interact by a cross layer."""
    return ranking("cross")


def ncf() -> Any:
    """Returns a NeuMF; `tf.estimator`, which its file imports, is no longer part of TensorFlow."""
    published = definitions(Path(task.__file__).parents[1] / "neumf_model.py")
    user = tf_keras.Input((1,), name="user_id", dtype="int32")
    item = tf_keras.Input((1,), name="item_id", dtype="int32")
    parameters = {
        "num_users": 611,
        "num_items": 9_743,
        "mf_dim": 8,
        "model_layers": [64, 32, 16, 8],
        "mf_regularization": 0.0,
        "mlp_reg_layers": [0.0, 0.0, 0.0, 0.0],
    }
    return published.construct_model(user, item, parameters)


def ranking(interaction: str) -> Any:
    """Returns the model that the trainer of the Model Garden builds."""
    parameters = config.Task()
    parameters.train_data.global_batch_size = 500
    parameters.model = config.ModelConfig(
        num_dense_features=13,
        vocab_sizes=VOCABULARY_SIZES,
        embedding_dim=16,
        size_threshold=1_000,
        bottom_mlp=[64, 16],
        top_mlp=[64, 1],
        interaction=interaction,
    )
    return task.RankingTask(parameters, config.TrainerConfig()).build_model()
