"""Towers that run: what every form of one has in common, and opening the form that a bundle holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from bundle.format import manifest
from bundle.storage import files
from runtime.errors import InvalidInput, TowerUnreadable

Array = NDArray[Any]
Device = Literal["cpu", "gpu"]
SIGNATURE = "serving_default"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a tower as its file declares it; None in `shape` is any size, mostly the batch."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns whether an array of this shape can be the tensor."""
        return len(shape) == len(self.shape) and all(
            size is None or given == size for given, size in zip(shape, self.shape, strict=True)
        )


class Tower(Protocol):
    """A dense network without tables: activations and dense features in, vectors or scores out. Safe for any thread."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs, ordered by name."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs, ordered by name."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the tower once.

        Args:
          inputs: an array for each input by name, dtype and shape as declared; further names are ignored.
        Returns:
          An array for each output by name, owned by the caller.
        Raises:
          InvalidInput: an input is missing or has another dtype or shape.
          ComputationFailed: the tower cannot compute with the values of one.
        """

    def buffers(self, n: int) -> Mapping[str, Array]:
        """Returns arrays in which to lay out the inputs of n examples; empty: the tower has none to lend.

        They are plain memory that is used again, which spares the caller fresh pages. They belong to the calling thread
        until it calls `buffers` again.
        """

    def prepare_thread(self) -> None:
        """Makes what one further thread needs for its first call, for examples like those of the last run. Slow."""

    def release_thread(self) -> None:
        """Leaves what the calling thread has of its own to the next thread that has nothing yet."""


def open_tower(
    root: Path, tower: manifest.Tower, precision: manifest.Precision | None = None
) -> Tower:
    """Opens the best form of a tower: compiled if there is one of the precision, else the SavedModel.

    Args:
      root: directory of the bundle.
      tower: its entry in the manifest.
      precision: None takes the one that the manifest serves.
    Raises:
      TowerUnreadable: there is no such form; otherwise as `open_form`.
    """
    wanted = precision or tower.serve
    form = find_form(tower.forms, ("litert", wanted), ("saved_model", wanted))
    if form is None:
        known = ", ".join(sorted(f"{form.kind} {form.precision}" for form in tower.forms)) or "none"
        raise TowerUnreadable(
            f"no form of precision {wanted!r} was exported for this tower; forms: {known}"
        )
    return open_form(root, tower, form)


def find_form(
    forms: Sequence[manifest.TowerForm], *wanted: tuple[str, manifest.Precision]
) -> manifest.TowerForm | None:
    """Returns the first of the wanted kinds and precisions that exists; None: none of them does."""
    found = {(form.kind, form.precision): form for form in forms}
    return next((found[each] for each in wanted if each in found), None)


def open_form(
    root: Path,
    entry: manifest.Tower | manifest.TowerPart,
    form: manifest.TowerForm,
    device: Device = "cpu",
) -> Tower:
    """Opens one form of a tower, or of a part of one.

    Args:
      root: directory of the bundle.
      entry: the tower's or part's in the manifest.
      form: which of its forms.
      device: where a SavedModel runs; compiled forms run on the CPU.
    Raises:
      TowerUnreadable: it is damaged, or its inputs and outputs are not the manifest's.
      DigestMismatch, UnsafePath: its file is missing, or lies outside the bundle.
      LibraryMissing: it is a SavedModel, and TensorFlow is not installed.
    """
    opened: Tower
    if form.kind == "litert":
        from runtime.litert import CompiledTower

        opened = CompiledTower(files.locate(root, form.path))
    else:
        from runtime.savedmodel import DEVICES, SavedModelTower

        opened = SavedModelTower(files.locate(root, form.path), DEVICES[device])
    _check_tensors("input", opened.inputs, entry.inputs)
    _check_tensors("output", opened.outputs, entry.outputs)
    return opened


def missing_input(
    name: str, given: Mapping[str, Array], expected: Sequence[Tensor]
) -> InvalidInput:
    """Returns the error that names the inputs which were not given."""
    absent = [tensor.name for tensor in expected if tensor.name not in given]
    return InvalidInput(f"tower {name!r} lacks inputs {absent}; given: {sorted(given)}")


def shape_text(shape: Sequence[int | None]) -> str:
    """Returns a declared shape for messages: `[any, 32]`."""
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _check_tensors(
    kind: str, found: Sequence[Tensor], listed: Sequence[manifest.TowerInput | manifest.TowerOutput]
) -> None:
    expected = {tensor.name: tensor for tensor in listed}
    if {tensor.name for tensor in found} != set(expected):
        raise TowerUnreadable(
            f"the tower has {kind}s {sorted(tensor.name for tensor in found)}, the manifest says {sorted(expected)}"
        )
    for tensor in found:
        entry = expected[tensor.name]
        # A compiled output may know less of its shape than the manifest; a size that is known must be the same one.
        same = len(tensor.shape) == len(entry.shape) and all(
            have in (None, size) or size is None
            for have, size in zip(tensor.shape, entry.shape, strict=True)
        )
        if tensor.dtype != entry.dtype or not same:
            raise TowerUnreadable(
                f"{kind} {tensor.name!r} is {tensor.dtype} {shape_text(tensor.shape)}, "
                f"the manifest says {entry.dtype} {shape_text(entry.shape)}"
            )
