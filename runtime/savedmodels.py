"""A tower that only TensorFlow can run. Nothing else in `runtime` imports it; this does so lazily."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import InputRefused, LibraryMissing, TowerUnreadable
from runtime.towers import SIGNATURE, Array, Tensor, missing_input


class SavedModelTower:
    """A SavedModel's `serving_default` signature, run by TensorFlow; the same face as a compiled tower."""

    def __init__(self, path: Path) -> None:
        """Loads a SavedModel; the first one of a process imports TensorFlow, which takes seconds.

        Raises:
          TowerUnreadable: the directory is missing, damaged, or has no signature `serving_default`.
          LibraryMissing: TensorFlow is not installed.
        """
        self._tensorflow = tensorflow = _imported(path.parent.name)
        try:
            # The signature is of use only while the object that owns its variables lives.
            self._loaded = tensorflow.saved_model.load(str(path))
        except (OSError, ValueError, tensorflow.errors.OpError) as problem:
            raise TowerUnreadable(f"SavedModel {path.parent.name}/{path.name} cannot be loaded: {problem}") from problem
        if SIGNATURE not in self._loaded.signatures:
            raise TowerUnreadable(
                f"SavedModel {path.parent.name}/{path.name} has signatures {sorted(self._loaded.signatures)}; "
                f"{SIGNATURE!r} was expected"
            )
        self._name = path.parent.name
        self._function = self._loaded.signatures[SIGNATURE]
        declared, made = self._function.structured_input_signature[1], self._function.structured_outputs
        self.inputs = tuple(_tensor(name, declared[name]) for name in sorted(declared))
        self.outputs = tuple(_tensor(name, made[name]) for name in sorted(made))
        self._input_names = tuple(tensor.name for tensor in self.inputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See runtime.towers.Tower.run."""
        try:
            values = {name: inputs[name] for name in self._input_names}
        except KeyError as problem:
            raise missing_input(self._name, inputs, self._input_names) from problem
        tensorflow = self._tensorflow
        try:
            tensors = {name: tensorflow.constant(value) for name, value in values.items()}
            results = self._function(**tensors)
        except (ValueError, TypeError, tensorflow.errors.OpError) as problem:
            shapes = {name: f"{value.dtype}{list(value.shape)}" for name, value in values.items()}
            declared = {tensor.name: f"{tensor.dtype}{list(tensor.shape)}" for tensor in self.inputs}
            raise InputRefused(f"tower {self._name!r} failed on {shapes}; {declared} was expected") from problem
        return {name: np.array(result.numpy()) for name, result in results.items()}

    def run_in_order(self, values: Sequence[Array]) -> list[Array]:
        """See runtime.towers.Tower.run_in_order."""
        if len(values) != len(self.inputs):
            raise InputRefused(f"tower {self._name!r} takes {len(self.inputs)} inputs; {len(values)} were given")
        results = self.run(dict(zip(self._input_names, values, strict=True)))
        return [results[tensor.name] for tensor in self.outputs]


def _imported(tower: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what matters is raised; its lines are no log's
    try:
        import tensorflow
    except ImportError as problem:
        raise LibraryMissing(
            f"tower {tower!r} has no compiled form, and TensorFlow, which runs its SavedModel, is not installed; "
            "install rowcast[savedmodel], or export the tower again with a compiled form"
        ) from problem
    # One thread per call, as many calls as callers. TensorFlow refuses a change once it has run something.
    with contextlib.suppress(RuntimeError):
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    return tensorflow


def _tensor(name: str, spec: Any) -> Tensor:
    return Tensor(name, spec.dtype.name, tuple(spec.shape))
