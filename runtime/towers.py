"""Opens the form of a tower that a bundle holds: compiled, or a SavedModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bundle.format import manifest
from bundle.storage import files
from runtime.errors import TowerUnreadable
from runtime.litert import CompiledTower
from runtime.savedmodel import DEVICES, SavedModelTower
from runtime.tower import Device, Tensor, Tower, shape_text


def open_tower(
    root: Path, tower: manifest.Tower, precision: manifest.Precision | None = None
) -> Tower:
    """Opens the best form of a tower: compiled if there is one of the precision, else the
    SavedModel.

    Args:
      root: The directory of the bundle.
      tower: The entry of the tower in the manifest.
      precision: The precision of the form; None: the one that the manifest serves.

    Raises:
      TowerUnreadable: There is no such form, or a reason of `open_form`.
      DigestMismatch, UnsafePath, LibraryMissing: See `open_form`.
    """
    precision = precision or tower.serve
    form = find_form(tower.forms, ("litert", precision), ("saved_model", precision))
    if form is None:
        exported = sorted(f"{form.kind} {form.precision}" for form in tower.forms) or ["none"]
        raise TowerUnreadable(
            f"no form of precision {precision!r} was exported for this tower; forms: "
            f"{', '.join(exported)}"
        )
    return open_form(root, tower, form)


def find_form(
    forms: Sequence[manifest.TowerForm], *choices: tuple[str, manifest.Precision]
) -> manifest.TowerForm | None:
    """Returns the form of the first kind and precision that exists; None: none of them does."""
    form_by_choice = {(form.kind, form.precision): form for form in forms}
    for choice in choices:
        if choice in form_by_choice:
            return form_by_choice[choice]
    return None


def open_form(
    root: Path,
    entry: manifest.Tower | manifest.TowerPart,
    form: manifest.TowerForm,
    device: Device = "cpu",
) -> Tower:
    """Opens one form of a tower, or of a part of one.

    Args:
      root: The directory of the bundle.
      entry: The entry of the tower, or of the part, in the manifest.
      form: The form to open.
      device: The device of a SavedModel; compiled forms run on the CPU.

    Raises:
      TowerUnreadable: The form is damaged, or its inputs and outputs differ from the manifest.
      DigestMismatch, UnsafePath: Its file is missing, or lies outside the bundle.
      LibraryMissing: It is a SavedModel, and TensorFlow is not installed.
    """
    opened: Tower
    if form.kind == "litert":
        opened = CompiledTower(files.locate(root, form.path))
    else:
        opened = SavedModelTower(files.locate(root, form.path), DEVICES[device])
    _check_tensors("input", opened.inputs, entry.inputs)
    _check_tensors("output", opened.outputs, entry.outputs)
    return opened


def _check_tensors(
    kind: str,
    tensors: Sequence[Tensor],
    entries: Sequence[manifest.TowerInput | manifest.TowerOutput],
) -> None:
    """Compares the inputs or outputs of a file with those in the manifest.

    Raises:
      TowerUnreadable: They differ.
    """
    entry_by_name = {entry.name: entry for entry in entries}
    names = sorted(tensor.name for tensor in tensors)
    if names != sorted(entry_by_name):
        raise TowerUnreadable(
            f"the tower has {kind}s {names}, the manifest says {sorted(entry_by_name)}"
        )
    for tensor in tensors:
        entry = entry_by_name[tensor.name]
        if tensor.dtype != entry.dtype or not _agree(tensor.shape, entry.shape):
            raise TowerUnreadable(
                f"{kind} {tensor.name!r} is {tensor.dtype} {shape_text(tensor.shape)}, "
                f"the manifest says {entry.dtype} {shape_text(entry.shape)}"
            )


def _agree(shape: Sequence[int | None], other_shape: Sequence[int | None]) -> bool:
    """Returns whether two shapes can be those of one tensor. A compiled output may know less of its
    shape than the manifest: sizes that both know must be equal.
    """
    if len(shape) != len(other_shape):
        return False
    sizes = zip(shape, other_shape, strict=True)
    return all(None in (size, other_size) or size == other_size for size, other_size in sizes)
