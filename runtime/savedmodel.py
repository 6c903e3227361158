"""A tower that only TensorFlow can run. Nothing else in `runtime` imports it; this does
so lazily.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import (
    ComputationFailed,
    DeviceMissing,
    InvalidInput,
    LibraryMissing,
    TowerUnreadable,
)
from runtime.tower import SIGNATURE, Array, Device, Tensor, missing_input

DEVICES: dict[Device, str] = {"cpu": "/device:CPU:0", "gpu": "/device:GPU:0"}
"""The names of devices in TensorFlow."""


class SavedModelTower:
    """A SavedModel's `serving_default` signature, run by TensorFlow; a Tower like the
    compiled one.
    """

    def __init__(self, path: Path, device: str = DEVICES["cpu"]) -> None:
        """Loads a SavedModel onto a device; the first one of a process imports TensorFlow, which
        takes seconds.

        Args:
          path: The directory of the SavedModel.
          device: TensorFlow's name of the device on which its variables lie and its operations run.

        Raises:
          TowerUnreadable: The directory is missing, damaged, or has no signature `serving_default`.
          LibraryMissing: TensorFlow is not installed.
        """
        message = (
            f"tower {path.parent.name!r} has no compiled form, and TensorFlow, which runs its "
            "SavedModel, is not installed; run `pip install 'rowcast[savedmodel]'`, or export the "
            "tower again with a compiled form"
        )
        self._tensorflow = tensorflow = _import_tensorflow(message)
        self._device = device
        try:
            # The attribute keeps the variables alive: the signature alone does not. They lie on the
            # device, and so does what is computed with them.
            with tensorflow.device(self._device):
                self._loaded = tensorflow.saved_model.load(str(path))
        except (OSError, ValueError, tensorflow.errors.OpError) as problem:
            raise TowerUnreadable(
                f"SavedModel {path.parent.name}/{path.name} cannot be loaded: {problem}"
            ) from problem
        if SIGNATURE not in self._loaded.signatures:
            raise TowerUnreadable(
                f"SavedModel {path.parent.name}/{path.name} has signatures "
                f"{sorted(self._loaded.signatures)}; {SIGNATURE!r} was expected"
            )
        self._name = path.parent.name
        self._function = self._loaded.signatures[SIGNATURE]
        declared = self._function.structured_input_signature[1]
        outputs = self._function.structured_outputs
        self.inputs = tuple(_tensor(name, declared[name]) for name in sorted(declared))
        self.outputs = tuple(_tensor(name, outputs[name]) for name in sorted(outputs))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See Tower.run."""
        try:
            values = {tensor.name: inputs[tensor.name] for tensor in self.inputs}
        except KeyError as problem:
            raise missing_input(self._name, inputs, self.inputs) from problem
        tensorflow = self._tensorflow
        try:
            with tensorflow.device(self._device):
                tensors = {name: tensorflow.constant(value) for name, value in values.items()}
                results = self._function(**tensors)
        except (ValueError, TypeError, tensorflow.errors.OpError) as problem:
            raise self._failure(values, problem) from problem
        # Copied: the array of a tensor on the CPU may share its memory, and callers own results.
        return {name: np.array(result.numpy()) for name, result in results.items()}

    def _failure(self, values: Mapping[str, Array], problem: Exception) -> InvalidInput:
        """Returns the error for a run that failed."""
        shapes = {name: f"{value.dtype}{list(value.shape)}" for name, value in values.items()}
        declared = {tensor.name: f"{tensor.dtype}{list(tensor.shape)}" for tensor in self.inputs}
        message = f"tower {self._name!r} failed on {shapes}; {declared} was expected"
        # If the shapes and dtypes are right, the values are at fault.
        fits = all(
            tensor.dtype in ("string", values[tensor.name].dtype.name)
            and tensor.fits(values[tensor.name].shape)
            for tensor in self.inputs
        )
        if fits and isinstance(problem, self._tensorflow.errors.OpError):
            return ComputationFailed(message)
        return InvalidInput(message)

    def buffers(self, n: int) -> Mapping[str, Array]:  # noqa: ARG002 - the argument of every tower
        """Returns no arrays: TensorFlow copies the inputs of each run."""
        return {}

    def prepare_thread(self) -> None:
        """Does nothing: threads share it."""

    def release_thread(self) -> None:
        """Does nothing: threads share it."""


def require_library(option: str) -> None:
    """Finds TensorFlow, which is loaded when the first tower needs it.

    Args:
      option: What needs TensorFlow, the subject of a sentence: `--precision bf16`.

    Raises:
      LibraryMissing: TensorFlow is not installed.
    """
    if find_spec("tensorflow") is None:
        raise LibraryMissing(_needs_tensorflow(option))


def require_gpu() -> None:
    """Finds a GPU, and has TensorFlow take its memory as it is needed instead of all at once.

    Raises:
      LibraryMissing: TensorFlow is not installed.
      DeviceMissing: TensorFlow finds no GPU.
    """
    tensorflow = _import_tensorflow(_needs_tensorflow("--device gpu", "gpu"))
    gpus = tensorflow.config.list_physical_devices("GPU")
    if not gpus:
        version = tensorflow.__version__
        if not tensorflow.test.is_built_with_cuda():
            version += " (it is built without CUDA)"
        raise DeviceMissing(
            f"TensorFlow {version} sees no GPU here; install CUDA's libraries (the extra `gpu`) "
            "and a driver, or leave --device out"
        )
    # What has no kernel for a GPU runs on the CPU.
    tensorflow.config.set_soft_device_placement(True)
    for gpu in gpus:
        with contextlib.suppress(RuntimeError):  # it has run something there already
            tensorflow.config.experimental.set_memory_growth(gpu, True)


def _needs_tensorflow(option: str, extra: str = "savedmodel") -> str:
    """Returns the message for an option that needs TensorFlow, and the extra that installs it."""
    return (
        f"{option} needs TensorFlow, which is not installed; run `pip install 'rowcast[{extra}]'`"
    )


def _import_tensorflow(message: str) -> Any:
    """Imports TensorFlow; `message` is that of the error if it is not installed."""
    # Its failures are raised. The lines that it logs are no JSON, which the log of a service is.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow
    except ImportError as problem:
        raise LibraryMissing(message) from problem
    # Callers run in parallel, not the operations of a call. TensorFlow rejects the change once it
    # has run something.
    with contextlib.suppress(RuntimeError):
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    # Otherwise, GPUs round the factors of products to 10 bits, and a tower in float32 differs from
    # the original model by more than the tolerance.
    tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    return tensorflow


def _tensor(name: str, spec: Any) -> Tensor:
    """Returns the tensor that TensorFlow's specification describes."""
    return Tensor(name, spec.dtype.name, tuple(spec.shape))
