"""Loads the models that the scripts of SparrowRecSys build: they have no functions that do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import tensorflow as tf


def saved_model() -> Any:
    """Returns the model that a script saved."""
    return tf.keras.models.load_model(Path(__file__).parent / "model.h5")
