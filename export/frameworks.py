"""Imports TensorFlow, in one place, the way that the exporter needs it; nothing is imported before it is asked for."""

from __future__ import annotations

import os
import sys
from typing import Any

from export.errors import NotConvertible


def load_tensorflow() -> Any:
    """Returns the module `tensorflow`, with the Keras that TFRS is written for, on CPUs only.

    TFRS and every Keras 2 model need `tf.keras` to be tf-keras, which TensorFlow decides by an environment variable
    when `tf.keras` is first touched. A model that imports Keras 3 as `keras` is not affected.

    Raises:
      NotConvertible: TensorFlow is not installed.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what matters is raised
    if "tensorflow" not in sys.modules:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the parity rule is stated for CPUs
    try:
        import tensorflow as tf
    except ImportError as problem:
        raise NotConvertible(f"towers need TensorFlow: {problem}; install rowcast[export]") from problem
    return tf
