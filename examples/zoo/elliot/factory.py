"""Constructs the neural models of Elliot as its recommenders do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

from rowcast.model_code import definitions

MODELS = "elliot/elliot/recommender/neural"
USERS = 611
MOVIES = 9_743


def published(file: str) -> Any:
    """Returns the definitions of a file with a model."""
    return definitions(Path(__file__).parent / MODELS / file)


def neumf() -> Any:
    """Returns a NeuMF."""
    file = "NeuMF/neural_matrix_factorization_model.py"
    model = published(file).NeuralMatrixFactorizationModel
    return model(USERS, MOVIES, 10, 10, [64, 32], 0.0, is_mf_train=True, is_mlp_train=True)


def deepfm() -> Any:
    """Returns a DeepFM."""
    model = published("DeepFM/deep_fm_model.py").DeepFMModel
    return model(USERS, MOVIES, 10, [(64, "relu"), (32, "relu")], 0.01)


def gmf() -> Any:
    """Returns a generalized factorization of a matrix."""
    file = "GeneralizedMF/generalized_matrix_factorization_model.py"
    model = published(file).GeneralizedMatrixFactorizationModel
    return model(USERS, MOVIES, 10, is_edge_weight_train=True)


def nfm() -> Any:
    """Returns an NFM."""
    model = published("NFM/neural_fm_model.py").NeuralFactorizationMachineModel
    return model(USERS, MOVIES, 10, [(64, "relu"), (32, "relu")], 0.01)
