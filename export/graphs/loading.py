"""Imports TensorFlow lazily, configured for the exporter."""

from __future__ import annotations

import gc
import os
import sys
from importlib.metadata import version
from typing import Any

from export.errors import NotConvertible

TESTED = {
    "tensorflow": ("2.20", "2.21"),
    "tf-keras": ("2.20", "2.21"),
    "keras": ("3.15",),
    "keras-rs": ("0.4",),
    "jax": ("0.10", "0.11", "0.12"),
    "jax-tpu-embedding": ("0.1", "0.2"),
}
"""Releases that the exporter's tests run with, in ascending order. It relies on internals of these
libraries: a release that moved one of them is rejected where it is needed, and any other release is
a note. Any other release of JAX is rejected.
"""

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""The environment variable by which TensorFlow decides what `tf.keras` is when it is first touched:
tf-keras (1), which TFRS and every Keras 2 model need, or Keras 3.
"""


KERAS_BACKEND = "KERAS_BACKEND"
"""The environment variable that names what Keras 3 runs on."""


_backends = ["tensorflow"]
"""What Keras 3 is to run on in this process: the last entry."""


def run_keras_on(backend: str) -> None:
    """Makes Keras 3 run on a backend in this process, in which it is not imported yet."""
    os.environ[KERAS_BACKEND] = backend
    _backends.append(backend)


def prefer_keras(generation: int | None) -> None:
    """Makes `tf.keras` the Keras of this generation, unless the environment says otherwise; 2 if it
    is not known. A model that imports Keras 3 as `keras` is not affected.
    """
    os.environ.setdefault(_LEGACY_KERAS, _legacy_value(generation))


def how_to_prefer_keras(generation: int | str) -> str:
    """Returns what a user does to make `tf.keras` the Keras of this generation, for a message."""
    return (
        f"set {_LEGACY_KERAS}={_legacy_value(generation)} in the environment of rowcast-export, so "
        f"that tf.keras is Keras {generation}"
    )


def _legacy_value(generation: int | str | None) -> str:
    if str(generation) == "3":
        return "0"
    return "1"


def load_tensorflow() -> Any:
    """Returns the module `tensorflow`, on CPUs only; `tf.keras` is as `prefer_keras` decided.

    Raises:
      NotConvertible: TensorFlow is not installed.
    """
    prefer_keras(None)
    # Level 3 silences the log of errors, too, since errors are raised anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]

    # The parity rule is stated for CPUs.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # Models of other backends have no TensorFlow graph.
    os.environ[KERAS_BACKEND] = _backends[-1]
    try:
        import tensorflow as tf
    except ImportError as problem:
        raise NotConvertible(
            f"towers need TensorFlow: {problem}; run `pip install 'rowcast[export]'`"
        ) from problem
    # LiteRT's converter collects all garbage for each tower. TensorFlow's modules, 350,000 objects
    # that a collection would visit in 0.15 s, are none.
    gc.freeze()
    return tf


class _TensorFlow:
    """The module `tensorflow`, imported on first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_tensorflow(), name)


tf: Any = _TensorFlow()


def is_tested(package: str, release: str) -> bool:
    """Returns whether the exporter's tests run with a release of a library, such as `2.20.1`."""
    return release.startswith(tuple(f"{tested}." for tested in TESTED[package]))


def describe_tested(package: str) -> str:
    """Returns the releases of a library that the tests run with, such as `0.10, 0.11 or 0.12`."""
    *earlier, newest = TESTED[package]
    if not earlier:
        return newest
    return f"{', '.join(earlier)} or {newest}"


def tested_range(package: str) -> str:
    """Returns the requirement that installs the newest tested release that this Python can run."""
    major, minor = TESTED[package][-1].split(".")
    return f"'{package}>={TESTED[package][0]},<{major}.{int(minor) + 1}'"


def note_untested_releases() -> tuple[str, ...]:
    """Returns a note for each imported library in a release that the tests do not run with.

    Modules tell their release, since distributions of other names, such as tensorflow-cpu or
    keras-nightly, hold the same modules.
    """
    notes = []
    for package in TESTED:
        module = sys.modules.get(package.replace("-", "_"))
        release = getattr(module, "__version__", None)
        if release is not None and not is_tested(package, release):
            notes.append(
                f"{package} {release}: rowcast-export {version('rowcast')} is tested with "
                f"{describe_tested(package)}; every function that it replaces is there, and what "
                "it writes is compared with the original model as always"
            )
    return tuple(notes)


def moved(name: str, package: str) -> NotConvertible:
    """Returns the error about an internal of a library that this release has moved."""
    release = getattr(sys.modules.get(package.replace("-", "_")), "__version__", "this release")
    return NotConvertible(
        f"{name} is not in {package} {release}; rowcast-export {version('rowcast')} needs it and "
        f"is tested with {describe_tested(package)}: install {tested_range(package)}"
    )


def other_backend() -> str:
    """Returns the backend that Keras 3 runs on, or is set to run on; "" if that is the one that it
    is to run on.
    """
    backend = os.environ.get(KERAS_BACKEND, "tensorflow")
    keras = sys.modules.get("keras")
    # Keras reads the variable only while it is imported; its own configuration counts after that.
    if keras is not None and hasattr(keras, "config"):
        backend = str(keras.config.backend())
    return "" if backend == _backends[-1] else backend
