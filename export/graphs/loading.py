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
"""Also libraries that only some models import; other releases are rejected only if they moved
something.
"""


LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""The environment variable by which TensorFlow decides what `tf.keras` is when it is first touched:
tf-keras (1), which TFRS and every Keras 2 model need, or Keras 3.
"""


KERAS_BACKEND = "KERAS_BACKEND"
"""The environment variable that names what Keras 3 runs on."""


def prefer_keras(generation: int | None) -> None:
    """Makes `tf.keras` the Keras of this generation, unless the environment says otherwise; 2 if it
    is not known. A model that imports Keras 3 as `keras` is not affected.
    """
    os.environ.setdefault(LEGACY_KERAS, "0" if generation == 3 else "1")


def load_tensorflow() -> Any:
    """Returns the module `tensorflow`, on CPUs only; `tf.keras` is as `prefer_keras` decided.

    Raises:
      NotConvertible: TensorFlow is not installed, or its release is not supported.
    """
    prefer_keras(None)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are raised anyway
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]

    _check_distributions()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the parity rule is stated for CPUs
    os.environ[KERAS_BACKEND] = "tensorflow"  # models of other backends have no TensorFlow graph
    try:
        import tensorflow as tf
    except ImportError as problem:
        raise NotConvertible(
            f"towers need TensorFlow: {problem}; in a checkout of rowcast, run `pip install "
            "'.[export]'`"
        ) from problem
    check_module("tensorflow")
    return tf


class _TensorFlow:
    """The module `tensorflow`, imported on first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_tensorflow(), name)


tf: Any = _TensorFlow()


def check_module(name: str) -> None:
    """Checks the release of an imported library: distributions of other names, such as
    tensorflow-cpu or keras-nightly, hold the same modules.

    Raises:
      NotConvertible: The release is not supported.
    """
    package = name.replace("_", "-")
    found = getattr(sys.modules.get(name), "__version__", None)
    if package in SUPPORTED and found is not None:
        _check_release(package, found)


def other_backend() -> str:
    """Returns what Keras 3 runs on, or was told to run on; "" if that is TensorFlow."""
    told = os.environ.get(KERAS_BACKEND, "tensorflow")
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "config"):
        told = str(keras.config.backend())
    return "" if told == "tensorflow" else told


def _check_distributions() -> None:
    for name in SUPPORTED:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        _check_release(name, found)


def _check_release(name: str, found: str) -> None:
    release = SUPPORTED[name]
    if not found.startswith(f"{release}."):
        raise NotConvertible(
            f"rowcast-export {version('rowcast')} supports {name} {release}; found {found}: "
            f"install '{name}~={release}.0'"
        )
