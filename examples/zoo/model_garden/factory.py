"""Constructs the ranking models of TensorFlow's Model Garden from their configuration."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

from official.recommendation.ranking import task
from official.recommendation.ranking.configs import config

VOCABULARY_SIZES = [9_743, 611, 2_000, 100]


def dlrm() -> Any:
    """Returns a DLRM, whose features interact by dot products."""
    return ranking("dot")


def dcn() -> Any:
    """Returns a DCN v2, whose features interact by a cross layer."""
    return ranking("cross")


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
