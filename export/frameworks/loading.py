"""Imports TensorFlow lazily, configured for the exporter."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from export.errors import NotConvertible

SUPPORTED = {"tensorflow": "2.20", "tf-keras": "2.20", "keras": "3.15"}
"""Releases whose internals the exporter relies on; others may move them and are rejected."""
WRITTEN_FOR = {**SUPPORTED, "keras-rs": "0.4"}
"""Also libraries that only some models import; other releases are rejected only if they moved something."""


def load_tensorflow() -> Any:
    """Returns the module `tensorflow`, with the Keras that TFRS is written for, on CPUs only.

    TFRS and every Keras 2 model need `tf.keras` to be tf-keras, which TensorFlow decides by an environment variable
    when `tf.keras` is first touched. A model that imports Keras 3 as `keras` is not affected.

    Raises:
      NotConvertible: TensorFlow is not installed, or its release is not supported.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are raised anyway
    if "tensorflow" not in sys.modules:
        _check_releases()
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the parity rule is stated for CPUs
    try:
        import tensorflow as tf
    except ImportError as problem:
        raise NotConvertible(
            f"towers need TensorFlow: {problem}; install rowcast[export]"
        ) from problem
    return tf


class _TensorFlow:
    """The module `tensorflow`, imported on first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_tensorflow(), name)


tf: Any = _TensorFlow()


def _check_releases() -> None:
    for name, release in SUPPORTED.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if not found.startswith(f"{release}."):
            wrong = f"rowcast-export {version('rowcast')} supports {name} {release}; found {found}"
            raise NotConvertible(f"{wrong}: install '{name}~={release}.0'")
