"""Towers that run: a LiteRT flatbuffer, one interpreter per calling thread, or the SavedModel where there is none.

Source: ai-edge-litert 2.3, `interpreter.py`: `invoke` releases the GIL; an interpreter serves one thread at a time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from bundle import files, manifest
from runtime.errors import InputRefused, TowerUnreadable, ValuesRefused
from runtime.native_output import silenced

Array = NDArray[Any]
Device = Literal["cpu", "gpu"]
SIGNATURE = "serving_default"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a tower as its file declares it; None in `shape` is any size, mostly the batch."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class Tower(Protocol):
    """A dense network without tables: activations and dense features in, vectors or scores out. Safe for any thread."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs, in the order that `run_in_order` takes them."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs, in the order that `run_in_order` gives them."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the tower once.

        Args:
          inputs: an array for each input by name, dtype and shape as declared; further names are ignored.
        Returns:
          An array for each output by name, owned by the caller.
        Raises:
          InputRefused: an input is missing or has another dtype or shape.
          ValuesRefused: the tower cannot compute with values of one.
        """

    def run_in_order(self, values: Sequence[Array]) -> list[Array]:
        """Does the same as `run` for callers that keep the order of the inputs and outputs: no names are looked up."""

    def buffers(self, n: int) -> Mapping[str, Array]:
        """Returns arrays in which a caller may lay out the inputs of n examples, where the tower has such.

        `run` takes them as they are, where it copies any other array. They belong to the calling thread until its next
        call of this tower, which may leave anything in them.
        """

    def prepare(self) -> None:
        """Has the first call of one further thread find everything made, for examples as the calling thread ran last.
        Dear."""

    def hand_on(self) -> None:
        """Leaves what the calling thread has of its own to the next thread that has nothing yet."""


class CompiledTower:
    """A LiteRT flatbuffer. Rows of a batch are computed independently, bit for bit, whatever the batch.

    Threads share the file's bytes; each has its own interpreter, made on its first call, with one thread of its own:
    callers, not operations, run in parallel. Values are passed on as they are, NaN included.
    """

    def __init__(self, path: Path) -> None:
        """Reads and checks a flatbuffer.

        Raises:
          TowerUnreadable: the file is missing, is no flatbuffer, or has no signature of inputs and outputs by name.
        """
        self._name = path.name
        try:
            self._content = path.read_bytes()
        except OSError as problem:
            raise TowerUnreadable(f"tower file {path.name!r} cannot be read: {problem.strerror}") from problem
        self._local = threading.local()
        runner = _Runner(self._name, self._content)
        self._spare = [runner]
        """For threads that have none yet."""
        self.inputs, self.outputs = runner.inputs, runner.outputs
        self._input_names = tuple(tensor.name for tensor in self.inputs)
        self._output_names = tuple(tensor.name for tensor in self.outputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See Tower.run."""
        try:
            values = [inputs[name] for name in self._input_names]
        except KeyError as problem:
            raise missing_input(self._name, inputs, self._input_names) from problem
        try:
            run: _Runner = self._local.runner
        except AttributeError:
            run = self._runner()
        return dict(zip(self._output_names, run(values), strict=True))

    def run_in_order(self, values: Sequence[Array]) -> list[Array]:
        """See Tower.run_in_order."""
        try:
            run: _Runner = self._local.runner
        except AttributeError:
            run = self._runner()
        return run(values)

    def buffers(self, n: int) -> Mapping[str, Array]:
        """See Tower.buffers."""
        try:
            run: _Runner = self._local.runner
        except AttributeError:
            run = self._runner()
        return run.buffers(n)

    def prepare(self) -> None:
        """See Tower.prepare."""
        runner = _Runner(self._name, self._content)
        if (own := getattr(self._local, "runner", None)) is not None:
            runner.run_as(own)
        self._spare.append(runner)

    def hand_on(self) -> None:
        """See Tower.hand_on."""
        if (own := self._local.__dict__.pop("runner", None)) is not None:
            self._spare.append(own)

    def _runner(self) -> _Runner:
        try:
            runner = self._spare.pop()
        except IndexError:
            runner = _Runner(self._name, self._content)
        self._local.runner = runner
        return runner


class _Runner:
    """One interpreter: belongs to one thread."""

    _greeting: ClassVar = threading.Lock()
    _greeted: ClassVar[bool] = False

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        if content[4:8] != b"TFL3":
            raise TowerUnreadable(f"tower file {name!r} is no LiteRT flatbuffer; export the bundle again")
        try:
            self._interpreter = Interpreter(model_content=content, num_threads=1)
            signature = self._interpreter.get_signature_runner(SIGNATURE)
            inputs, outputs = signature.get_input_details(), signature.get_output_details()
        except (ValueError, RuntimeError) as problem:
            raise TowerUnreadable(f"tower file {name!r} cannot be run by LiteRT: {problem}") from problem
        self.inputs = tuple(_tensor(key, inputs[key]) for key in sorted(inputs))
        self.outputs = tuple(_tensor(key, outputs[key]) for key in sorted(outputs))
        self._input_indices = [int(inputs[tensor.name]["index"]) for tensor in self.inputs]
        self._output_indices = [int(outputs[tensor.name]["index"]) for tensor in self.outputs]
        self._shapes: list[tuple[int, ...]] | None = None
        self._empty = False
        self._buffers: dict[str, Array] = {}
        self._own: Sequence[Array | None] = [None] * len(self.inputs)
        """`_buffers`, in the order of the inputs."""
        self._buffered = 0
        self._buffered_at = 0

    def __call__(self, values: Sequence[Array]) -> list[Array]:
        shapes = [value.shape for value in values]
        if shapes != self._shapes:
            self._resize(shapes)
        if self._empty:
            return [np.empty([size or 0 for size in tensor.shape], tensor.dtype) for tensor in self.outputs]
        interpreter = self._interpreter
        try:
            for index, value, own in zip(self._input_indices, values, self._own, strict=True):
                if value is not own:
                    interpreter.set_tensor(index, value)
            interpreter.invoke()
        except (ValueError, RuntimeError) as problem:
            raise self._refused(values, problem) from problem
        return [interpreter.get_tensor(index) for index in self._output_indices]

    def run_as(self, other: _Runner) -> None:
        """Runs it on zeros of the shapes that another ran on last: weights are packed by the first run."""
        if other._shapes is not None:
            self([np.zeros(shape, one.dtype) for shape, one in zip(other._shapes, self.inputs, strict=True)])

    def buffers(self, n: int) -> Mapping[str, Array]:
        """See Tower.buffers."""
        if self._buffers and n == self._buffered and self._address() == self._buffered_at:
            return self._buffers
        if (
            not n
            or not self.inputs
            or any(tensor.shape[:1] != (None,) or None in tensor.shape[1:] for tensor in self.inputs)
        ):
            return {}
        shapes = [(n, *(size or 0 for size in tensor.shape[1:])) for tensor in self.inputs]
        if shapes != self._shapes:
            self._resize(shapes)
        if not self._empty:
            pairs = zip(self.inputs, self._input_indices, strict=True)
            self._buffers = {tensor.name: self._buffer(index) for tensor, index in pairs}
            self._own = list(self._buffers.values())
            self._buffered, self._buffered_at = n, self._address()
        return self._buffers

    def _address(self) -> int:
        """Where the inputs are: all of them in one piece of memory.

        That stays until the next resizing, or until a run needs more than was planned for it: sizes that only values
        tell, as of a boolean mask, are not known before. It may have been moved then.
        """
        address: int = self._interpreter.tensor(self._input_indices[0])().__array_interface__["data"][0]
        return address

    def _buffer(self, index: int) -> Array:
        # LiteRT's own view of a tensor must be gone before anything is run, and one that an error's traceback still
        # holds would refuse the next call. So this one is made of the address.
        view = self._interpreter.tensor(index)()
        memory = (ctypes.c_char * view.nbytes).from_address(view.ctypes.data)
        memory.owner = self._interpreter  # lives as long as the array does
        return np.frombuffer(memory, view.dtype).reshape(view.shape)

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        # Costs about 4 us for a small tower and keeps no memory but the largest batch' activations.
        self._shapes = None
        self._buffers, self._own = {}, [None] * len(self.inputs)
        if len(shapes) != len(self.inputs):
            raise InputRefused(f"tower {self._name!r} takes {len(self.inputs)} inputs; {len(shapes)} were given")
        for tensor, shape in zip(self.inputs, shapes, strict=True):
            if not _fits(shape, tensor.shape):
                raise InputRefused(f"input {tensor.name!r} has shape {shape}; {_told(tensor.shape)} was expected")
        self._empty = any(0 in shape for shape in shapes)
        if not self._empty:
            try:
                for index, shape in zip(self._input_indices, shapes, strict=True):
                    self._interpreter.resize_tensor_input(index, shape)
                self._allocate()
            except (ValueError, RuntimeError) as problem:
                raise InputRefused(f"tower {self._name!r} takes no inputs of shapes {shapes}: {problem}") from problem
        self._shapes = shapes

    def _allocate(self) -> None:
        if _Runner._greeted:
            self._interpreter.allocate_tensors()
            return
        # LiteRT tells once in a process, on stderr and with no setting against it, that it made its XNNPACK delegate:
        # between the JSON lines of a service's log that is no line at all.
        with _Runner._greeting, silenced():
            self._interpreter.allocate_tensors()
            _Runner._greeted = True

    def _refused(self, values: Sequence[Array], problem: Exception) -> InputRefused:
        for tensor, value in zip(self.inputs, values, strict=True):
            if value.dtype.name != tensor.dtype:
                return InputRefused(f"input {tensor.name!r} has dtype {value.dtype}; {tensor.dtype} was expected")
        return ValuesRefused(f"tower {self._name!r} failed on inputs of shapes {self._shapes}: {problem}")


def open_tower(root: Path, tower: manifest.Tower, precision: manifest.Precision | None = None) -> Tower:
    """Opens the best form of a tower: compiled if there is one of the precision, else the SavedModel.

    Args:
      root: directory of the bundle.
      tower: what the manifest says of it.
      precision: None takes the one that the manifest serves.
    Raises:
      TowerUnreadable: there is no such form; otherwise as `open_form`.
    """
    wanted = precision or tower.serve
    form = find_form(tower.forms, ("litert", wanted), ("saved_model", wanted))
    if form is None:
        known = ", ".join(sorted(f"{form.kind} {form.precision}" for form in tower.forms)) or "none"
        raise TowerUnreadable(f"no form of precision {wanted!r} was exported for this tower; forms: {known}")
    return open_form(root, tower, form)


def find_form(
    forms: Sequence[manifest.TowerForm], *wanted: tuple[str, manifest.Precision]
) -> manifest.TowerForm | None:
    """Returns the first of the wanted kinds and precisions that there is; None: there is none of them."""
    found = {(form.kind, form.precision): form for form in forms}
    return next((found[each] for each in wanted if each in found), None)


def open_form(
    root: Path, page: manifest.Tower | manifest.TowerPart, form: manifest.TowerForm, device: Device = "cpu"
) -> Tower:
    """Opens one form of a tower, or of a part of one.

    Args:
      root: directory of the bundle.
      page: what the manifest says of the tower or part.
      form: which of its forms.
      device: where a SavedModel runs; compiled forms run on the CPU.
    Raises:
      TowerUnreadable: it is damaged, or its inputs and outputs are not the manifest's.
      DigestMismatch, UnsafePath: its file is missing, or lies outside the bundle.
      LibraryMissing: it is a SavedModel, and TensorFlow is not installed.
    """
    opened: Tower
    if form.kind == "litert":
        opened = CompiledTower(files.locate(root, form.path))
    else:
        from runtime.savedmodels import DEVICES, SavedModelTower

        opened = SavedModelTower(files.locate(root, form.path), DEVICES[device])
    _agree("input", opened.inputs, page.inputs)
    _agree("output", opened.outputs, page.outputs)
    return opened


def missing_input(name: str, given: Mapping[str, Array], expected: Sequence[str]) -> InputRefused:
    """Returns the error that names the inputs which were not given."""
    absent = [key for key in expected if key not in given]
    return InputRefused(f"tower {name!r} lacks inputs {absent}; given: {sorted(given)}")


def _agree(kind: str, found: Sequence[Tensor], told: Sequence[manifest.TowerInput | manifest.TowerOutput]) -> None:
    promised = {tensor.name: tensor for tensor in told}
    if {tensor.name for tensor in found} != set(promised):
        raise TowerUnreadable(
            f"the tower has {kind}s {sorted(tensor.name for tensor in found)}, the manifest says {sorted(promised)}"
        )
    for tensor in found:
        want = promised[tensor.name]
        # A compiled output may know less of its shape than the manifest; a size that is known must be the same one.
        same = len(tensor.shape) == len(want.shape) and all(
            have in (None, size) or size is None for have, size in zip(tensor.shape, want.shape, strict=True)
        )
        if tensor.dtype != want.dtype or not same:
            raise TowerUnreadable(
                f"{kind} {tensor.name!r} is {tensor.dtype} {_told(tensor.shape)}, "
                f"the manifest says {want.dtype} {_told(want.shape)}"
            )


def _tensor(name: str, details: Mapping[str, Any]) -> Tensor:
    # LiteRT leaves the signature of a shape empty where every size is known.
    sizes = details["shape_signature"] if len(details["shape_signature"]) else details["shape"]
    return Tensor(name, np.dtype(details["dtype"]).name, tuple(None if size < 0 else int(size) for size in sizes))


def _fits(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    return len(shape) == len(declared) and all(
        want is None or have == want for have, want in zip(shape, declared, strict=True)
    )


def _told(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
