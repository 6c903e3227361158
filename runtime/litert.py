"""Compiled towers: LiteRT flatbuffers, one interpreter for each calling thread.

Source: ai-edge-litert 2.3, `interpreter.py`: `invoke` releases the GIL; an interpreter serves one
thread at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from runtime.errors import ComputationFailed, InvalidInput, TowerUnreadable
from runtime.native_output import silenced
from runtime.tower import SIGNATURE, Array, Tensor, missing_input, shape_text


class CompiledTower:
    """A LiteRT flatbuffer. Rows of a batch are computed independently, bit for bit, whatever the
    batch.

    Threads share the file's bytes; each has its own interpreter, made on its first call, with one
    thread of its own: callers, not operations, run in parallel. Values are passed on as they are,
    NaN included.
    """

    def __init__(self, path: Path) -> None:
        """Reads and checks a flatbuffer.

        Raises:
          TowerUnreadable: The file is missing, is no flatbuffer, or has no signature of inputs and
            outputs by name.
        """
        self._name = path.name
        try:
            self._content = path.read_bytes()
        except OSError as problem:
            raise TowerUnreadable(
                f"tower file {path.name!r} cannot be read: {problem.strerror}"
            ) from problem
        self._local = threading.local()
        runner = _Runner(self._name, self._content)
        self._spare_runners = [runner]
        """The runners that no thread has taken yet."""
        self.inputs = runner.inputs
        self.outputs = runner.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See Tower.run."""
        return self._runner().run(inputs)

    def buffers(self, n: int) -> Mapping[str, Array]:
        """See Tower.buffers. `run` copies them into the interpreter, as any other array."""
        return self._runner().buffers(n)

    def prepare_thread(self) -> None:
        """See Tower.prepare_thread."""
        spare_runner = _Runner(self._name, self._content)
        runner_of_thread = getattr(self._local, "runner", None)
        if runner_of_thread is not None:
            spare_runner.warm_up(runner_of_thread.shapes)
        self._spare_runners.append(spare_runner)

    def release_thread(self) -> None:
        """See Tower.release_thread."""
        runner = self._local.__dict__.pop("runner", None)
        if runner is not None:
            self._spare_runners.append(runner)

    def _runner(self) -> _Runner:
        """Returns the runner of the calling thread."""
        try:
            runner: _Runner = self._local.runner
        except AttributeError:
            try:
                # Not tested for being empty: another thread may take the last one in between.
                runner = self._spare_runners.pop()
            except IndexError:
                runner = _Runner(self._name, self._content)
            self._local.runner = runner
        return runner


class _Runner:
    """One interpreter: belongs to one thread."""

    _first_allocation: ClassVar = threading.Lock()
    _has_allocated: ClassVar[bool] = False

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        if content[4:8] != b"TFL3":
            raise TowerUnreadable(
                f"tower file {name!r} is no LiteRT flatbuffer; export the bundle again"
            )
        try:
            self._interpreter = Interpreter(model_content=content, num_threads=1)
            signature = self._interpreter.get_signature_runner(SIGNATURE)
            inputs = signature.get_input_details()
            outputs = signature.get_output_details()
        except (ValueError, RuntimeError) as problem:
            raise TowerUnreadable(
                f"tower file {name!r} cannot be run by LiteRT: {problem}"
            ) from problem
        self.inputs = tuple(_tensor(key, inputs[key]) for key in sorted(inputs))
        self.outputs = tuple(_tensor(key, outputs[key]) for key in sorted(outputs))
        self._input_indices = [int(inputs[tensor.name]["index"]) for tensor in self.inputs]
        self._output_indices = [
            (tensor.name, int(outputs[tensor.name]["index"])) for tensor in self.outputs
        ]
        self.shapes: list[tuple[int, ...]] | None = None
        """The shapes of inputs for which memory is allocated."""
        self._has_no_rows = False
        self._buffers: dict[str, Array] = {}
        self._is_batched = bool(self.inputs) and all(
            tensor.shape[:1] == (None,) and None not in tensor.shape[1:] for tensor in self.inputs
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See Tower.run."""
        try:
            values = [inputs[tensor.name] for tensor in self.inputs]
        except KeyError as problem:
            raise missing_input(self._name, inputs, self.inputs) from problem
        shapes = [value.shape for value in values]
        if shapes != self.shapes:
            self._resize(shapes)
        if self._has_no_rows:
            return {
                tensor.name: np.empty([size or 0 for size in tensor.shape], tensor.dtype)
                for tensor in self.outputs
            }
        interpreter = self._interpreter
        try:
            for index, value in zip(self._input_indices, values, strict=True):
                interpreter.set_tensor(index, value)
            interpreter.invoke()
        except (ValueError, RuntimeError) as problem:
            raise self._failure(values, problem) from problem
        return {name: interpreter.get_tensor(index) for name, index in self._output_indices}

    def warm_up(self, shapes: list[tuple[int, ...]] | None) -> None:
        """Runs the tower on zeros of some shapes, since the first run packs the weights."""
        if shapes is None:
            return
        zeros = {
            tensor.name: np.zeros(shape, tensor.dtype)
            for shape, tensor in zip(shapes, self.inputs, strict=True)
        }
        # A tower may reject zeros that no client sends, such as a history without an id.
        with contextlib.suppress(ComputationFailed):
            self.run(zeros)

    def buffers(self, n: int) -> Mapping[str, Array]:
        """See Tower.buffers."""
        if not self._is_batched:
            return {}
        if not self._buffers or len(next(iter(self._buffers.values()))) < n:
            self._buffers = {
                tensor.name: np.empty((n, *(size or 0 for size in tensor.shape[1:])), tensor.dtype)
                for tensor in self.inputs
            }
        return {name: array[:n] for name, array in self._buffers.items()}

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        """Allocates memory for inputs of other shapes, which takes about 4 us for a small tower.
        What remains allocated are the activations of the largest batch.
        """
        # None until all is well: after an error, the next run must not compute with these shapes.
        self.shapes = None
        for tensor, shape in zip(self.inputs, shapes, strict=True):
            if not tensor.fits(shape):
                raise InvalidInput(
                    f"input {tensor.name!r} has shape {shape}; {shape_text(tensor.shape)} was "
                    "expected"
                )
        self._has_no_rows = any(0 in shape for shape in shapes)
        if not self._has_no_rows:
            try:
                for index, shape in zip(self._input_indices, shapes, strict=True):
                    self._interpreter.resize_tensor_input(index, shape)
                self._allocate()
            except (ValueError, RuntimeError) as problem:
                raise InvalidInput(
                    f"tower {self._name!r} takes no inputs of shapes {shapes}: {problem}"
                ) from problem
        self.shapes = shapes

    def _allocate(self) -> None:
        if _Runner._has_allocated:
            self._interpreter.allocate_tensors()
            return
        # Once in a process, LiteRT prints to stderr that it created its XNNPACK delegate, and has
        # no setting against that. The log of a service there is JSON lines.
        with _Runner._first_allocation, silenced():
            self._interpreter.allocate_tensors()
            _Runner._has_allocated = True

    def _failure(self, values: Sequence[Array], problem: Exception) -> InvalidInput:
        """Returns the error for a run that failed."""
        for tensor, value in zip(self.inputs, values, strict=True):
            if value.dtype.name != tensor.dtype:
                return InvalidInput(
                    f"input {tensor.name!r} has dtype {value.dtype}; {tensor.dtype} was expected"
                )
        return ComputationFailed(
            f"tower {self._name!r} failed on inputs of shapes {self.shapes}: {problem}"
        )


def _tensor(name: str, details: Mapping[str, Any]) -> Tensor:
    sizes = details["shape_signature"]
    if not len(sizes):
        # LiteRT leaves it empty where every size is known.
        sizes = details["shape"]
    shape = tuple(int(size) if size >= 0 else None for size in sizes)
    return Tensor(name, np.dtype(details["dtype"]).name, shape)
